// What one token and several have in common: a neuron's value, and the tree that adds segments.
#pragma once

#include "ggml/neurons.h"

namespace ggml::cpu {

// Out of line, so that the comparison that ReLU is gets inlined where it is called.
float activate_smooth(const Neurons& w, float v);

inline float activate(const Neurons& w, float v) {
    switch (w.act) {
        case Activation::relu:
        case Activation::drelu:
            return v > w.threshold ? v : 0;
        case Activation::relu2:
            return v > w.threshold ? v * v : 0;
        default:
            return activate_smooth(w, v);
    }
}

// What a neuron sends down, from its activated gate and its up product.
inline float value(const Neurons& w, float gate, float up) {
    return gate * (w.act == Activation::drelu ? activate(w, up) : up);
}

inline uint64_t row_bytes(const Neurons& w, const NeuronRows& rows) {
    return uint64_t(info(rows.type).size(w.cols));
}

// The rows that decide who fires, and their bias.
inline const NeuronRows& first_rows(const Neurons& w) {
    return w.gate ? w.gate : w.up;
}
inline const float* first_bias(const Neurons& w) {
    return w.gate ? w.gate_bias : w.up_bias;
}

// How many sums of `size` values are there at once while segments are added.
constexpr int64_t kSums = 6;
static_assert(int64_t(1) << (kSums - 1) == kSegments);

// Adds the sums of all segments, `size` values each, into the first of `sums`: neighbours, then
// pairs, and so on, but as soon as both are there. Where the number of a segment ends in ones, as
// many additions follow it. put(s, sum) writes those of segment s.
template <typename F>
void add_segments(float* sums, int64_t size, const F& put) {
    float* sum = sums;
    for (int64_t s = 0; s < kSegments; s++, sum += size) {
        put(s, sum);
        for (int64_t ones = s; ones % 2; ones /= 2) {
            sum -= size;
            for (int64_t i = 0; i < size; i++) sum[i] += sum[size + i];
        }
    }
}

}  // namespace ggml::cpu
