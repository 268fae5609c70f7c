// What tests of kernels share: random values, and comparisons with the generic twin.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ggml/check.h"
#include "ggml/random_blocks.h"
#include "kernels/kernels.h"

using namespace ggml;
using namespace ggml::cpu;

namespace {

std::mt19937 rng(1);

std::vector<float> random_floats(int64_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> v(n);
    for (float& x : v) x = normal(rng);
    return v;
}

std::vector<uint8_t> random_rows(DType type, int64_t rows, int64_t cols) {
    return random_blocks(type, random_floats(rows * cols));
}

// The largest difference relative to the size of the values. Sums in another order differ by a few
// rounding errors per addition; 1e-5 allows about a thousand of them.
double distance(const std::vector<float>& a, const std::vector<float>& b, double least = 1e-30) {
    double difference = 0, norm = least;
    for (size_t i = 0; i < a.size(); i++) {
        difference = std::max(difference, double(std::fabs(a[i] - b[i])));
        norm = std::max(norm, double(std::fabs(b[i])));
    }
    return difference / norm;
}
constexpr double kRounding = 1e-5;

// One product, or both of two, may nearly be 0, but its rounding errors have the size of its terms,
// which add up to about the root of their number.
double least_size(int64_t products, int64_t cols) {
    return products <= 2 ? std::sqrt(double(cols)) / 4 : 1e-30;
}

// Computes nt tokens at once and each one alone: bits must not depend on the tile.
template <typename F>
bool same_alone(const F& all_tokens, const std::vector<float>& together, int64_t nt,
                int64_t width) {
    for (int64_t t = 0; t < nt; t++) {
        std::vector<float> one(static_cast<size_t>(width));
        all_tokens(t, 1, one.data());
        if (std::memcmp(one.data(), together.data() + t * width, size_t(width) * sizeof(float)))
            return false;
    }
    return true;
}

}  // namespace
