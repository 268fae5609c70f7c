// UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace powerinfer {

// Bytes of the character at the start of text, 1..4; 0 if text is empty or begins with invalid
// UTF-8.
inline size_t utf8_length(std::string_view text) {
    const auto byte = [&](size_t i) { return uint8_t(text[i]); };
    const auto follows = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
    if (text.empty()) return 0;
    const uint8_t first = byte(0);
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4 || !follows(1)) return 0;
    if (first < 0xE0) return 2;
    const uint8_t second = byte(1);
    if (first < 0xF0) {
        const bool overlong = first == 0xE0 && second < 0xA0;
        const bool surrogate = first == 0xED && second > 0x9F;
        return follows(2) && !overlong && !surrogate ? 3 : 0;
    }
    const bool overlong = first == 0xF0 && second < 0x90;
    const bool too_large = first == 0xF4 && second > 0x8F;
    return follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
}

inline bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const size_t n = utf8_length(text);
        if (n == 0) return false;
        text.remove_prefix(n);
    }
    return true;
}

}  // namespace powerinfer
