// Tokens in the order of their bytes, to find those that a text begins with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace powerinfer {

class PrefixIndex {
 public:
    PrefixIndex() = default;
    // text_of(id): the bytes of a token, which are not empty. They stay where they are.
    template <typename F>
    PrefixIndex(const std::vector<int32_t>& ids, const F& text_of) {
        for (const int32_t id : ids) sorted_.push_back({text_of(id), id});
        // string_view compares bytes as unsigned.
        std::sort(sorted_.begin(), sorted_.end(),
                  [](const Entry& a, const Entry& b) { return a.text < b.text; });
        for (int byte = 0; byte <= 256; byte++) {
            by_byte_[byte] = int32_t(
                std::partition_point(sorted_.begin(), sorted_.end(),
                                     [&](const Entry& e) { return uint8_t(e.text[0]) < byte; }) -
                sorted_.begin());
        }
    }

    // Calls use(id, bytes) for each token that a text begins with, the shortest one first.
    template <typename F>
    void each(std::string_view text, const F& use) const {
        if (text.empty()) return;
        const auto first = uint8_t(text[0]);
        auto begin = sorted_.begin() + by_byte_[first], end = sorted_.begin() + by_byte_[first + 1];
        for (size_t n = 1; begin < end; n++) {
            // The tokens of [begin, end) have the first n bytes of the text in common.
            if (begin->text.size() == n) {
                use(begin->id, n);
                begin++;
            }
            if (n == text.size()) return;
            const auto next = uint8_t(text[n]);
            const auto byte = [&](const Entry& e) { return uint8_t(e.text[n]); };
            begin =
                std::partition_point(begin, end, [&](const Entry& e) { return byte(e) < next; });
            end = std::partition_point(begin, end, [&](const Entry& e) { return byte(e) <= next; });
        }
    }

 private:
    struct Entry {
        std::string_view text;
        int32_t id;
    };
    std::vector<Entry> sorted_;
    int32_t by_byte_[257] = {};  // where those with each first byte begin
};

}  // namespace powerinfer
