// Sums and products of sizes that saturate instead of wrapping around. A result that does not fit
// 64 bits becomes the largest number, which no memory and no budget allows.
#pragma once

#include <cstdint>
#include <limits>

namespace ggml {

constexpr uint64_t kMostBytes = std::numeric_limits<uint64_t>::max();

constexpr uint64_t size_product(uint64_t a, uint64_t b) {
    return b && a > kMostBytes / b ? kMostBytes : a * b;
}

constexpr uint64_t size_sum(uint64_t a, uint64_t b) {
    return a > kMostBytes - b ? kMostBytes : a + b;
}

template <typename... Rest>
constexpr uint64_t size_product(uint64_t a, uint64_t b, Rest... rest) {
    // A saturated product stays saturated, unless a factor is 0.
    return size_product(size_product(a, b), uint64_t(rest)...);
}

template <typename... Rest>
constexpr uint64_t size_sum(uint64_t a, uint64_t b, Rest... rest) {
    return size_sum(size_sum(a, b), uint64_t(rest)...);
}

// The next multiple of `unit`.
constexpr uint64_t size_rounded_up(uint64_t bytes, uint64_t unit) {
    return bytes > kMostBytes - unit ? kMostBytes : (bytes + unit - 1) / unit * unit;
}

}  // namespace ggml
