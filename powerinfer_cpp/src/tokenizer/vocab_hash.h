// A hash with a seed per process, for keys that come from a file. In the standard library, the hash
// of an integer is the integer, and that of a text has a known seed. 100,000 merges chosen to fall
// into one bucket took 22 s to read.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace powerinfer {

struct VocabHash {
    size_t operator()(uint64_t key) const { return size_t(mix(key ^ seed(), kOdd)); }

    size_t operator()(std::string_view text) const {
        uint64_t h = seed() ^ text.size();
        for (; text.size() > 8; text.remove_prefix(8)) h = mix(word(text, 8) ^ h, kOdd);
        return size_t(mix(word(text, text.size()) ^ h, kOdd));
    }

 private:
    static constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;

    static uint64_t word(std::string_view text, size_t n) {
        uint64_t w = 0;
        if (n) std::memcpy(&w, text.data(), n);
        return w;
    }

    // Mixes the upper half into the lower one and multiplies, twice, so that every bit of a affects
    // the low bits.
    static uint64_t mix(uint64_t a, uint64_t b) {
        a = (a ^ a >> 32) * b;
        a = (a ^ a >> 29) * 0xBF58476D1CE4E5B9;
        return a ^ a >> 32;
    }

    // Differs between processes. No result depends on it: the maps are never iterated.
    static uint64_t seed() {
        static const uint64_t value =
            uint64_t(std::chrono::steady_clock::now().time_since_epoch().count()) ^
            uint64_t(reinterpret_cast<uintptr_t>(&kOdd)) << 16;
        return value;
    }
};

}  // namespace powerinfer
