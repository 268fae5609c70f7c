// Finds special tokens in raw text: all of them in one pass, however many there are and however
// long their texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace powerinfer {

// An automaton after Aho and Corasick: its node after some bytes is the longest end of them that
// begins a special token.
class SpecialTokens {
 public:
    SpecialTokens() = default;
    // Texts, none empty and each once, and their tokens. The texts are not kept.
    explicit SpecialTokens(std::vector<std::pair<std::string_view, int32_t>> tokens);

    struct Found {
        size_t begin, size;  // bytes of the text
        int32_t token;
    };
    // Those that stand in a text, from left to right, none over another. Longer ones go before
    // shorter ones wherever they stand, and of equally long ones the leftmost.
    std::vector<Found> find(std::string_view text) const;

 private:
    struct Node {
        int32_t children;  // the first one; they lie side by side up to those of the next node
        int32_t fallback;  // the longest proper end of this node that is a node
        int32_t match;     // the longest token that ends here, an index of matches_; -1: none
        uint8_t byte;      // from its parent to here
    };

    struct Match {
        size_t size;
        int32_t token;
        int32_t shorter;  // the next one that ends at the same byte; -1: none
        int32_t jump;     // a much shorter one, so that few steps lead to any size
        int32_t depth;    // how many shorter ones there are
    };

    int32_t child(int32_t node, uint8_t byte) const;
    int32_t step(int32_t node, uint8_t byte) const;
    int32_t at_most(int32_t match, size_t size) const;
    std::vector<Node> nodes_;  // by depth, the root first, and one behind the last
    std::vector<Match> matches_;
};

}  // namespace powerinfer
