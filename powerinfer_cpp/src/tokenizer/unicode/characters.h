// Kinds of characters, and the scripts that pre-tokenisers name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace powerinfer {

// upper: also title case. letter: neither upper nor lower case. digit: of decimal numbers.
// letter_number: such as Roman numerals. number: other ones, such as fractions.
enum class CharKind : uint8_t {
    other,
    upper,
    lower,
    letter,
    mark,
    digit,
    letter_number,
    number,
    punctuation,
    symbol,
    space
};

// Unicode 16.0 (unicode_tables.inc); `other` beyond U+10FFFF.
CharKind char_kind(uint32_t code_point);

// \w of regular expressions, without the two joiners.
bool is_word(uint32_t code_point);

// A character of a text. An invalid UTF-8 byte is a character of kind `other` by itself.
struct Char {
    size_t begin;    // in bytes
    uint32_t point;  // no_point for an invalid byte
    CharKind kind;

    static constexpr uint32_t no_point = UINT32_MAX;
};

// The letters that DeepSeek LLM lists: letters with case, but not all of them.
bool deepseek_letter(const Char& c);

// [!-/:-~！-／：-～‘-‟　-。]
bool deepseek_mark(const Char& c);

// [一-龥ࠀ-一가-퟿], which llama.cpp and tokenizer.json agree on, wide as it is
bool deepseek_ideograph(const Char& c);

// [一-龥぀-ゟ゠-ヿ]
bool deepseek3_ideograph(const Char& c);

// \p{Han}
bool han(const Char& c);

// Which of the scripts without spaces a character is of, as AFMoE lists them: 1 for ideographs and
// kana, 2 to 6 for Thai, Lao, Khmer, Myanmar's and Hangul; 0 for none of them.
int spaceless_script(const Char& c);

}  // namespace powerinfer
