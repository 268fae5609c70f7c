// Norms, activations, convolutions and what else lies between products, for rows of floats. Plain
// loops of sixteen lanes, which each instruction set's compiler flags turn into its registers. All
// give the same bits: every value has its own operations, and every sum its lanes.
#pragma once

#include <cmath>

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml::cpu {

namespace {

constexpr int64_t kLanes = 16;

// x[i] = f(x[i]) for whole registers. Not inlined: a loop whose length is known is unrolled before
// it could be vectorised.
template <typename F>
[[gnu::noinline]] void each_whole(float* x, int64_t n, F f) {
    for (int64_t i = 0; i < n; i++) x[i] = f(x[i]);
}

// The last values are computed in a whole register, too: each alone takes as long.
template <typename F>
inline void each(float* x, int64_t n, F f) {
    const int64_t rest = n % kLanes, whole = n - rest;
    each_whole(x, whole, f);
    if (rest == 0) return;
    float last[kLanes] = {};
    for (int64_t i = 0; i < rest; i++) last[i] = x[whole + i];
    each_whole(last, kLanes, f);
    for (int64_t i = 0; i < rest; i++) x[whole + i] = last[i];
}

// Calls use(f) with an activation as a function of one value. Values below the threshold become 0,
// NaN stays NaN: comparisons with it are false.
template <typename F>
inline void with_activation(Activation act, float threshold, const F& use) {
    using math::choose;
    const auto relu = [=](float v) { return choose(v <= threshold, 0.0f, v); };
    const auto keep = [=](float a) { return choose(::fabsf(a) < threshold, 0.0f, a); };
    switch (act) {
        case Activation::relu:
        case Activation::drelu:
            return use(relu);
        case Activation::relu2:
            return use([=](float v) { return choose(v <= threshold, 0.0f, v * v); });
        case Activation::silu:
            return use([=](float v) { return keep(silu(v)); });
        case Activation::gelu:
            return use([=](float v) { return keep(gelu(v)); });
        case Activation::gelu_tanh:
            return use([=](float v) { return keep(gelu_tanh(v)); });
        case Activation::swiglu_oai:
            return use([=](float v) { return keep(oai_gate(v)); });
        case Activation::xielu:
            return;  // see xielu()
    }
}

void activate(Activation act, float threshold, float* x, int64_t n) {
    with_activation(act, threshold, [=](auto f) { each(x, n, f); });
}

void gate(Activation act, float* x, const float* up, int64_t n) {
    if (act == Activation::drelu) {
        with_activation(act, 0, [=](auto relu) {
            for (int64_t i = 0; i < n; i++) x[i] = relu(x[i]) * relu(up[i]);
        });
    } else {
        activate(act, 0, x, n);
        if (act == Activation::swiglu_oai) {
            for (int64_t i = 0; i < n; i++) x[i] *= oai_up(up[i]);
        } else {
            for (int64_t i = 0; i < n; i++) x[i] *= up[i];
        }
    }
}

void sigmoid_gate(float* x, float* gate, int64_t n) {
    each(gate, n, [](float v) { return sigmoid(v); });
    for (int64_t i = 0; i < n; i++) x[i] *= gate[i];
}

void softcap(float* x, float cap, int64_t n) {
    each(x, n, [=](float v) { return cap * tanh_f32(v / cap); });
}

void xielu(const Xielu& how, float* x, int64_t n) {
    const float beta = how.beta, eps = how.eps, p = float(softplus_f64(how.alpha_p)),
                q = float(double(beta) + softplus_f64(how.alpha_n));
    each(x, n, [=](float v) {
        const float low = math::choose(v < eps, v, eps);
        const float negative = q * (exp_tail(low) + (low - v)), positive = p * v * v;
        return math::choose(v > 0, positive, negative) + beta * v;
    });
}

void add_scaled(float* x, float scale, const float* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += scale * y[i];
}

void mix(float* x, float a, const float* y, float b, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = a * x[i] + b * y[i];
}

// The sum of value(i) over i < n, i in lane i % 16, and of the lanes in order.
template <typename T, typename F>
inline double sum(int64_t n, const F& value) {
    T lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int64_t j = 0; j < kLanes; j++) lanes[j] += value(i + j);
    }
    for (int64_t j = 0; i + j < n; j++) lanes[j] += value(i + j);
    double total = 0;
    for (T lane : lanes) total += lane;
    return total;
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
    const double squares = sum<float>(n, [=](int64_t i) { return x[i] * x[i]; });
    const float scale = float(1.0 / std::sqrt(squares / double(n) + eps));
    if (!weight) {
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale;
        return;
    }
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                float* y) {
    const double mean = sum<double>(n, [=](int64_t i) { return double(x[i]); }) / double(n);
    const double squares = sum<double>(n, [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    const double scale = 1.0 / std::sqrt(squares / double(n) + eps);
    for (int64_t i = 0; i < n; i++) y[i] = float((x[i] - mean) * scale) * weight[i];
    if (!bias) return;
    for (int64_t i = 0; i < n; i++) y[i] += bias[i];
}

// Rotates pairs of adjacent values: factors[k] multiplies value k, across[k] its neighbour. Written
// as differences, GCC 12 would make one fused instruction of it (vfmaddsub), -ffp-contract=off or
// not.
inline void rope_adjacent(float* x, const float* factors, const float* across, int64_t n) {
    for (int64_t k = 0; k < n; k += 2) {
        const float a = x[k], b = x[k + 1];
        x[k] = a * factors[k] + b * across[k];
        x[k + 1] = b * factors[k + 1] + a * across[k + 1];
    }
}

// Pairs whose values are `apart`.
inline void rope_halves(float* x, int64_t apart, const float* cosine, const float* sine,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float a = x[i], b = x[i + apart];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + apart] = a * sine[i] + b * cosine[i];
    }
}

void rope(float* x, int64_t n_head, int64_t head_dim, const float* cos_sin, int64_t n_pairs,
          RopePairs pairs) {
    constexpr int64_t kMost = 64;  // pairs at a time, whose factors all heads share
    for (int64_t i = 0; i < n_pairs; i += kMost) {
        const int64_t n = n_pairs - i < kMost ? n_pairs - i : kMost;
        const float* table = cos_sin + 2 * i;
        float first[2 * kMost], second[2 * kMost];
        if (pairs == RopePairs::adjacent) {
            for (int64_t k = 0; k < n; k++) {
                first[2 * k] = first[2 * k + 1] = table[2 * k];
                second[2 * k] = -table[2 * k + 1];
                second[2 * k + 1] = table[2 * k + 1];
            }
            for (int64_t h = 0; h < n_head; h++) {
                rope_adjacent(x + h * head_dim + 2 * i, first, second, 2 * n);
            }
        } else {
            for (int64_t k = 0; k < n; k++) {
                first[k] = table[2 * k];
                second[k] = table[2 * k + 1];
            }
            for (int64_t h = 0; h < n_head; h++) {
                rope_halves(x + h * head_dim + i, n_pairs, first, second, n);
            }
        }
    }
}

// Convolution::past(), which would be code of all instruction sets.
inline int64_t past_of(const Convolution& how) {
    return (how.taps - 1) * how.dilation;
}

// What convolve() keeps of some channels: weights, and the last columns of x in a ring, column t in
// place t % past.
struct Convolved {
    float weight[kMostTaps][kConvolved], columns[kMostTaps][kConvolved], bias[kConvolved];
    float sum[kConvolved];
};

// A row of n channels, and x in the place of the oldest column. known: taps without dilation, or 0
// for any.
template <int64_t known>
inline void convolve_row(Convolved& v, const Convolution& how, int64_t t, const float* x,
                         int64_t n) {
    const int64_t past = known ? known - 1 : past_of(how);
    if (known) {  // all taps in one loop
        float* columns[known + 1];
        for (int64_t j = 0; j < past; j++) columns[j] = v.columns[(t + j) % past];
        for (int64_t c = 0; c < n; c++) {
            float sum = v.bias[c];
            for (int64_t j = 0; j < past; j++) sum += v.weight[j][c] * columns[j][c];
            v.sum[c] = sum + v.weight[past][c] * x[c];
        }
    } else {
        const int64_t last = how.taps - 1;
        for (int64_t c = 0; c < n; c++) v.sum[c] = v.bias[c];
        for (int64_t j = 0; j < last; j++) {
            const float* column = v.columns[(t + j * how.dilation) % past];
            for (int64_t c = 0; c < n; c++) v.sum[c] += v.weight[j][c] * column[c];
        }
        for (int64_t c = 0; c < n; c++) v.sum[c] += v.weight[last][c] * x[c];
    }
    if (past == 0) return;
    float* column = v.columns[t % past];
    for (int64_t c = 0; c < n; c++) column[c] = x[c];
}

template <int64_t known>
void convolve_some(const Convolution& how, int64_t first, int64_t n, const StateRows& sequence,
                   const float* x, int64_t x_row, float* y, int64_t y_row) {
    const int64_t taps = known ? known : how.taps, past = known ? known - 1 : past_of(how);
    Convolved v;
    const float* weight = how.weight + first * taps;
    const auto fetch = [](const float* p, int64_t count) {
        for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + i);
    };
    // What the next channels need: runs of a state too short for the processor's own prefetchers.
    if (const int64_t next = first + n; next + n <= how.channels) {
        fetch(weight + n * taps, n * taps);
        for (int64_t j = 0; j < past && sequence.before; j++) {
            fetch(sequence.before + j * how.channels + next, n);
        }
    }
    for (int64_t c = 0; c < n; c++) {
        for (int64_t j = 0; j < taps; j++) v.weight[j][c] = weight[c * taps + j];
    }
    for (int64_t j = 0; j < past; j++) {
        for (int64_t c = 0; c < n; c++) {
            v.columns[j][c] = sequence.before ? sequence.before[j * how.channels + first + c] : 0;
        }
    }
    for (int64_t c = 0; c < n; c++) v.bias[c] = how.bias ? how.bias[first + c] : 0;
    for (int64_t t = 0; t < sequence.n; t++) {
        if (t + 1 < sequence.n) {  // too short a run for the processor's own prefetchers
            fetch(x + sequence.rows[t + 1] * x_row + first, n);
        }
        convolve_row<known>(v, how, t, x + sequence.rows[t] * x_row + first, n);
        if (how.silu) activate(Activation::silu, 0, v.sum, n);
        float* out = y + sequence.rows[t] * y_row + first;
        for (int64_t c = 0; c < n; c++) out[c] = v.sum[c];
    }
    for (int64_t j = 0; j < past; j++) {
        const float* column = v.columns[(sequence.n + j) % past];
        float* to = sequence.after + j * how.channels + first;
        for (int64_t c = 0; c < n; c++) to[c] = column[c];
    }
}

void convolve(const Convolution& how, int64_t first, int64_t n, const StateRows& sequence,
              const float* x, int64_t x_row, float* y, int64_t y_row) {
    const auto some = how.dilation != 1 ? convolve_some<0>
                      : how.taps == 4   ? convolve_some<4>
                      : how.taps == 3   ? convolve_some<3>
                                        : convolve_some<0>;
    some(how, first, n, sequence, x, x_row, y, y_row);
}

}  // namespace

}  // namespace ggml::cpu

// Names them in the namespace of an instruction set.
#define ELEMENTWISE_KERNELS                                 \
    const activate_fn activate__f32 = activate;             \
    const gate_fn gate__f32 = gate;                         \
    const sigmoid_gate_fn sigmoid_gate__f32 = sigmoid_gate; \
    const softcap_fn softcap__f32 = softcap;                \
    const xielu_fn xielu__f32 = xielu;                      \
    const add_scaled_fn add_scaled__f32 = add_scaled;       \
    const mix_fn mix__f32 = mix;                            \
    const rms_norm_fn rms_norm__f32 = rms_norm;             \
    const layer_norm_fn layer_norm__f32 = layer_norm;       \
    const rope_fn rope__f32 = rope;                         \
    const convolve_fn convolve__f32 = convolve;
