// Sequence breakers of DRY (dry.h): texts at which a repetition ends, as tokens of a vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.h"

namespace powerinfer {

// A breaker occurs where a token contains its text, or where a token ends with the beginning of the
// text and the tokens of the rest follow. As in llama.cpp, only the first 40 bytes of a text and 20
// tokens of a rest count.
//
// Tokens are compared with the texts when they occur, since a vocabulary has so many that no text
// has: 262,144 tokens and 32 texts of 40 bytes took 0.6 s for a list of all, and now a token takes
// a microsecond.
class Breakers {
 public:
    using Tail = std::vector<int32_t>;  // the tokens after the first one

    // Throws Error(argument) for an empty text, or more than 256.
    Breakers(std::shared_ptr<const Vocab> vocab, const std::vector<std::string_view>& texts);
    // The tails of the breakers that begin with a token. They belong to this object.
    std::vector<const Tail*> find(int32_t head) const;

 private:
    struct Text {
        std::string bytes;
        std::vector<Tail> rests;  // [bytes]: the tokens of what follows the first n
    };
    // Texts [begin, end) begin with the same bytes.
    struct Range {
        size_t begin, end;
    };
    // Those of a range that go on with a byte behind the first n.
    Range going_on(Range range, size_t n, char byte) const;

    std::shared_ptr<const Vocab> vocab_;
    std::vector<Text> texts_;  // sorted, each once
    Range first_[256];         // that begin with a byte
};

}  // namespace powerinfer
