// UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
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

// The code point at the start of text, where utf8_length() is n > 0.
inline uint32_t utf8_point(std::string_view text, size_t n) {
    const auto lead = uint8_t(text[0]);
    uint32_t point = n == 1 ? lead : lead & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) point = point << 6 | (uint8_t(text[i]) & 0x3F);
    return point;
}

inline void append_utf8(uint32_t point, std::string& out) {
    const auto tail = [&](int shift) { out += char(0x80 | (point >> shift & 0x3F)); };
    if (point < 0x80) {
        out += char(point);
    } else if (point < 0x800) {
        out += char(0xC0 | point >> 6);
        tail(0);
    } else if (point < 0x10000) {
        out += char(0xE0 | point >> 12);
        tail(6);
        tail(0);
    } else {
        out += char(0xF0 | point >> 18);
        tail(12);
        tail(6);
        tail(0);
    }
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
