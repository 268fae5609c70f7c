// Finds special tokens in raw text, all in one pass, for any number and length of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace powerinfer {

// An Aho-Corasick automaton. After some bytes its node is the longest suffix of them that is a
// prefix of a special token.
class SpecialTokens {
 public:
    SpecialTokens() = default;
    // Texts and their tokens; no text is empty or repeated. The texts are not kept.
    explicit SpecialTokens(std::vector<std::pair<std::string_view, int32_t>> tokens);

    struct Found {
        size_t begin, size;  // bytes of the text
        int32_t token;
    };
    // The special tokens in a text, from left to right, without overlaps. Longer ones are chosen
    // before shorter ones, wherever they are; of equally long ones the leftmost.
    std::vector<Found> find(std::string_view text) const;

 private:
    struct Node {
        int32_t children;  // the first child; the others follow, up to those of the next node
        int32_t fallback;  // the longest proper suffix of this node that is a node
        int32_t match;     // the longest token that ends here, an index of matches_; -1: none
        uint8_t byte;      // on the edge from its parent
    };

    struct Match {
        size_t size;
        int32_t token;
        int32_t shorter;  // the next shorter one with the same end; -1: none
        int32_t jump;     // a much shorter one (skip pointer)
        int32_t depth;    // number of shorter ones
    };

    int32_t child(int32_t node, uint8_t byte) const;
    int32_t step(int32_t node, uint8_t byte) const;
    int32_t at_most(int32_t match, size_t size) const;
    std::vector<Node> nodes_;  // by depth, root first; one extra at the end
    std::vector<Match> matches_;
};

}  // namespace powerinfer
