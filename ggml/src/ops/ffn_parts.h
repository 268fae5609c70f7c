// Shared by the FFN for one token and for several: counts, and the tree that adds segments.
#pragma once

#include <atomic>

#include "ggml/neurons.h"

namespace ggml::cpu {

inline uint64_t row_bytes(const Neurons& w, const NeuronRows& rows) {
    return uint64_t(info(rows.type).size(w.cols));
}

// The rows that decide which neurons fire, and their bias.
inline const NeuronRows& first_rows(const Neurons& w) {
    return w.gate ? w.gate : w.up;
}
inline const float* first_bias(const Neurons& w) {
    return w.gate ? w.gate_bias : w.up_bias;
}

// What was done of the neurons of some rows (NeuronCounts), and the bytes that were read for it: by
// one thread; and by all.
struct Done {
    int64_t proposed = 0, computed = 0, fired = 0;
    uint64_t bytes = 0;
};
struct Totals {
    std::atomic<int64_t> proposed{0}, computed{0}, fired{0};
    std::atomic<uint64_t> bytes{0};

    void add(const Done& done) {
        proposed += done.proposed;
        computed += done.computed;
        fired += done.fired;
        bytes += done.bytes;
    }
    void report(OpTimer& timer, int64_t rows, NeuronCounts* counts) const {
        timer.read(bytes);
        if (!counts) return;
        counts->rows += rows;
        counts->proposed += proposed;
        counts->computed += computed;
        counts->fired += fired;
    }
};

// Neurons for which a few rows take turns: what they share stays in a core's cache.
constexpr int64_t kTurn = 128;

// The number of sums that exist at the same time while segments are added.
constexpr int64_t kSums = 6;
static_assert(int64_t(1) << (kSums - 1) == kSegments);

// Adds n = 2^k sums of `size` values each in a binary tree: neighbours, then pairs, and so on. The
// result is in the first `size` values of `sums`, which has room for k + 1. Each addition is done
// as soon as both operands exist; after sum i these are as many as i has trailing one bits. put(i,
// sum) writes sum i.
template <typename F>
void add_tree(int64_t n, float* sums, int64_t size, const F& put) {
    float* sum = sums;
    for (int64_t i = 0; i < n; i++, sum += size) {
        put(i, sum);
        for (int64_t ones = i; ones % 2; ones /= 2) {
            sum -= size;
            for (int64_t v = 0; v < size; v++) sum[v] += sum[size + v];
        }
    }
}

}  // namespace ggml::cpu
