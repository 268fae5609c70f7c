// Splits a text into the pieces that byte-level BPE merges do not cross: words, numbers, runs of
// symbols and of white space. Every model was trained with one such rule; several names can mean
// the same rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/unicode/characters.h"

namespace powerinfer {

struct PreTokenizer {
    // Splits the piece [begin, end) and appends the ends of its parts, which cover it.
    using Pass = void (*)(const Char* begin, const Char* end, std::vector<const Char*>& ends);

    const char* names;           // values of tokenizer.ggml.pre, each between two spaces
    Pass passes[6];              // each splits the pieces of the one before; nullptr after the last
    bool ignore_merges = false;  // a piece that is a token is not split by merges
    bool add_bos = false;        // default of tokenizer.ggml.add_bos_token
    bool has_bos = true;         // without a BOS id in the file, llama.cpp's default applies

    // The end of each piece of the text, in bytes. Takes linear time.
    std::vector<size_t> split(std::string_view text) const;
};

// The rule of this name; nullptr if it is unknown.
const PreTokenizer* find_pretokenizer(std::string_view name);

}  // namespace powerinfer
