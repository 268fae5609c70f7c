#include "tokenizer/charsmap.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/utf8.h"

namespace powerinfer {

namespace {

// Bytes of the longest sequence. Those of Unicode's normal forms have a few characters; the limit
// bounds the work where a table has longer ones.
constexpr size_t kLongest = 64;

// The parts of a unit. Its children are at its own place xor the offset xor their byte. If it ends
// a sequence, the child 0 is no unit, but a place in the texts.
bool ends_sequence(uint32_t unit) {
    return unit >> 8 & 1;
}
uint32_t label(uint32_t unit) {
    return unit & (uint32_t(1) << 31 | 0xFF);
}
uint32_t offset(uint32_t unit) {
    return unit >> 10 << ((unit & 1 << 9) >> 6);
}
uint32_t place(uint32_t unit) {
    return unit & ~(uint32_t(1) << 31);
}

uint32_t read_u32(std::string_view bytes) {
    const auto byte = [&](size_t i) { return uint32_t(uint8_t(bytes[i])); };
    return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
    const auto refuse = [](const char* why) { throw std::invalid_argument(why); };
    if (bytes.size() < 4) refuse("is too short for a table of characters");
    const size_t trie_bytes = read_u32(bytes);
    bytes.remove_prefix(4);
    if (trie_bytes > bytes.size() || trie_bytes % 4) {
        refuse("says that its trie has another size than its bytes allow");
    }
    for (size_t i = 0; i < trie_bytes; i += 4) trie_.push_back(read_u32(bytes.substr(i)));
    texts_ = bytes.substr(trie_bytes);
    if (texts_.empty() || texts_.back() != 0) refuse("does not end with a text");
    if (!is_utf8(texts_)) refuse("has a text that is not UTF-8");
}

Charsmap::Found Charsmap::find(std::string_view text) const {
    Found found{utf8_length(text), {}};
    found.instead = text.substr(0, found.size);
    if (found.size == 0) found = {1, "\xEF\xBF\xBD"};
    if (trie_.empty()) return found;
    size_t at = offset(trie_[0]);
    const size_t most = std::min(text.size(), kLongest);
    for (size_t i = 0; i < most; i++) {
        at ^= uint8_t(text[i]);
        if (at >= trie_.size() || label(trie_[at]) != uint8_t(text[i])) break;
        const uint32_t unit = trie_[at];
        at ^= offset(unit);
        if (!ends_sequence(unit)) continue;
        if (at >= trie_.size()) break;
        const size_t begin = place(trie_[at]);
        if (begin < texts_.size()) found = {i + 1, texts_.c_str() + begin};
    }
    return found;
}

}  // namespace powerinfer
