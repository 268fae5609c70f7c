// Cuts a text into the pieces that byte-level BPE merges do not cross: words, numbers, runs of
// symbols and of white space. Every model was trained with one such rule, which other files call
// by other names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace powerinfer {

enum class CharKind : uint8_t { other, letter, number, punctuation, space };

// Of Unicode 16.0 (unicode_tables.inc); other beyond U+10FFFF.
CharKind char_kind(uint32_t code_point);

// A character of a text. A byte that is no UTF-8 is a character of kind other by itself.
struct Char {
    size_t begin;    // in bytes
    uint32_t point;  // no_point for a byte that is no UTF-8
    CharKind kind;

    static constexpr uint32_t no_point = UINT32_MAX;
};

struct PreTokenizer {
    // Cuts one piece, [begin, end), and appends the ends of its parts, which cover it.
    using Pass = void (*)(const Char* begin, const Char* end, std::vector<const Char*>& ends);

    const char* names;           // of tokenizer.ggml.pre, a space before and after each
    Pass passes[6];              // each cuts what the one before has left; nullptr after the last
    bool ignore_merges = false;  // a piece that is a token stays whole, whatever the merges say
    bool add_bos = false;        // unless the file says
    bool has_bos = true;         // llama.cpp's default id of BOS applies

    // The byte at which each piece of the text ends. Takes time in proportion to the text.
    std::vector<size_t> split(std::string_view text) const;
};

// The rule of this name; nullptr: unknown.
const PreTokenizer* find_pretokenizer(std::string_view name);

}  // namespace powerinfer
