// Splits a text into the pieces that byte-level BPE merges do not cross: words, numbers, runs of
// symbols and of white space. Every model was trained with one such rule; several names can mean
// the same rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace powerinfer {

// upper: also title case. letter: neither upper nor lower case.
enum class CharKind : uint8_t {
    other,
    upper,
    lower,
    letter,
    mark,
    number,
    punctuation,
    symbol,
    space
};

// Unicode 16.0 (unicode_tables.inc); `other` beyond U+10FFFF.
CharKind char_kind(uint32_t code_point);

// A character of a text. An invalid UTF-8 byte is a character of kind `other` by itself.
struct Char {
    size_t begin;    // in bytes
    uint32_t point;  // no_point for an invalid byte
    CharKind kind;

    static constexpr uint32_t no_point = UINT32_MAX;
};

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
