// Sequence breakers of DRY (dry.h): texts at which a repetition ends, as tokens of a vocabulary.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/vocab.h"

namespace powerinfer {

// A breaker occurs where a token contains its text, or where a token ends with the beginning of the
// text and the tokens of the rest follow. As in llama.cpp, only the first 40 bytes of a text and 20
// tokens of a rest count.
class Breakers {
 public:
    using Tail = std::vector<int32_t>;  // the tokens after the first one

    // Throws Error(argument) for an empty text, or more than 256.
    Breakers(const Vocab& vocab, const std::vector<std::string_view>& texts);
    // The tails of the breakers that begin with a token; null: none does.
    const std::vector<Tail>* find(int32_t head) const;
    // Is this token a breaker by itself?
    bool is_one(int32_t token) const;

 private:
    void add(const Vocab& vocab, std::string_view text);
    std::unordered_map<int32_t, std::vector<Tail>> tails_;  // by head
};

}  // namespace powerinfer
