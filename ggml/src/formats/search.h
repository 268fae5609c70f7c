// The search for scales in the encoders of Q2_K..Q6_K and IQ4.
//
// Each group gets a scale (and a min) by weighted least squares over a set of trial roundings. Then
// the block rounds the scales of its groups to a few bits: it tries neighbouring values, rounds the
// weights again for each, and fits its own scale to the resulting codes. The weight of a squared
// error is the importance of its column. If that is not known, it is sigma + |x|, so large values
// count up to a few times as much as small ones; other encoders of these formats do the same.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/parts.h"
#include "ggml/blocks.h"

namespace ggml {

constexpr float kTiny = 1e-20f;  // blocks with only smaller magnitudes are written as zeros

// The codes of a block before packing. q: the value that the scale of a group multiplies.
struct Codes {
    f16_t d = 0, dmin = 0;
    int scale[kQK / 16] = {};
    int min[kQK / 16] = {};
    int8_t q[kQK] = {};
};

// Calls encode(x, importance, block) for each block, which begins as zeros. importance: of the
// columns, or null.
template <typename Block, typename F>
void each_block(const float* src, const float* importance, void* dst, int64_t n, const F& encode) {
    constexpr int64_t size = BlockTraits<Block>::size;
    auto* to = static_cast<uint8_t*>(dst);
    for (int64_t i = 0; i < n; i += size, to += sizeof(Block)) {
        Block block;
        std::memset(&block, 0, sizeof(block));
        encode(src + i, importance ? importance + i : nullptr, block);
        std::memcpy(to, &block, sizeof(block));
    }
}

// Rounds half to even without a library call (baseline x86-64 has no instruction for it) and clips.
// NaN becomes low.
inline float nearest(float v, float low, float high) {
    v = v > low ? v : low;
    v = v < high ? v : high;
    return v + 12582912.0f - 12582912.0f;
}

// The value with the largest magnitude; 0 if the block is to be written as zeros.
inline float extreme(const float* x, int n) {
    float found = 0;
    for (int i = 0; i < n; i++) found = std::fabs(x[i]) > std::fabs(found) ? x[i] : found;
    return std::fabs(found) < kTiny || !std::isfinite(found) ? 0 : found;
}

// Weights of the squared errors in groups of n values. importance: of their columns, or null; if
// all of it is 0, it says nothing. Where only some is 0, the small term chooses among equals.
inline void error_weights(const float* x, const float* importance, int n, int groups,
                          float* weight) {
    float most = 0;
    for (int i = 0; importance && i < n * groups; i++) most = std::fmax(most, importance[i]);
    for (int g = 0; g < groups; g++) {
        float squares = 0;
        for (int i = g * n; i < (g + 1) * n; i++) squares += x[i] * x[i];
        const float sigma = std::sqrt(squares / float(n));
        for (int i = g * n; i < (g + 1) * n; i++) {
            weight[i] = most > 0 ? importance[i] / most + 1e-8f : sigma + std::fabs(x[i]);
        }
    }
}

// Rounding to q in -levels..levels - 1.
struct Uniform {
    float levels;
    float reach() const { return levels; }
    float operator()(float v) const { return nearest(v, -levels, levels - 1); }
};

// Rounding to the table of IQ4.
struct Uneven {
    float reach() const { return 127; }
    float operator()(float v) const {
        int i = 0;
        for (int k = 0; k < 15; k++) i += v > 0.5f * float(kIQ4[k] + kIQ4[k + 1]);
        return kIQ4[i];
    }
};

// Sums for the best scale for given codes. The fixed number of partial sums allows vectorisation.
struct ScaleFit {
    float xq = 0, qq = 0;
    float scale() const { return qq > 0 ? xq / qq : 0; }
    float gain() const { return qq > 0 ? xq * xq / qq : 0; }  // reduction of the error
};

template <typename Round>
ScaleFit fit_scale(const Round& round, const float* x, const float* w, int n, float inverse) {
    float xq[4] = {}, qq[4] = {};
    for (int i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++) {
            const float q = round(x[i + j] * inverse), wq = w[i + j] * q;
            xq[j] += wq * x[i + j];
            qq[j] += wq * q;
        }
    }
    return {xq[0] + xq[1] + xq[2] + xq[3], qq[0] + qq[1] + qq[2] + qq[3]};
}

// The best scale of a group.
template <typename Round>
float search_scale(const Round& round, const float* x, const float* w, int n, float steps) {
    const float most = extreme(x, n);
    if (most == 0) return 0;
    ScaleFit best;
    // The extreme value gets the first code, or the last one: the table of IQ4 is not symmetric,
    // and an unimportant value may as well be clipped.
    for (float side = -1; side <= 1; side += 2) {
        for (int trial = -9; trial <= 9; trial += side < 0 ? 1 : 3) {
            const float inverse = side * (round.reach() + steps * float(trial)) / most;
            const ScaleFit fit = fit_scale(round, x, w, n, inverse);
            if (fit.gain() > best.gain()) best = fit;
        }
    }
    for (int again = 0; again < 4 && best.scale() != 0; again++) {
        const ScaleFit fit = fit_scale(round, x, w, n, 1 / best.scale());
        if (!(fit.gain() > best.gain())) break;
        best = fit;
    }
    return best.scale();
}

// Encodes a block with one scale, which is returned.
template <typename Round>
f16_t search_codes(const Round& round, const float* x, const float* importance, float steps,
                   int8_t q[kQ]) {
    float w[kQ];
    error_weights(x, importance, kQ, 1, w);
    const f16_t half = f32_to_f16(search_scale(round, x, w, kQ, steps));
    const float d = f16_to_f32(half), inverse = d != 0 && std::isfinite(d) ? 1 / d : 0;
    for (int i = 0; i < kQ; i++) q[i] = int8_t(round(x[i] * inverse));
    return half;
}

template <typename Round>
float error_at(const Round& round, const float* x, const float* w, int n, float scale) {
    const float inverse = scale != 0 ? 1 / scale : 0;
    float sum[4] = {};
    for (int i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++) {
            const float e = x[i + j] - scale * round(x[i + j] * inverse);
            sum[j] += w[i + j] * e * e;
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

// Encodes a block of groups of `size`; the scale of a group is -levels..levels - 1 times d.
// importance: of the columns, or null.
template <typename Round>
void search_block(const Round& round, const float* x, const float* importance, int size, int levels,
                  float steps, Codes& out) {
    const int groups = kQK / size;
    float w[kQK], scale[kQK / 16], most = 0;
    out = Codes();
    if (extreme(x, kQK) == 0) return;
    error_weights(x, importance, size, groups, w);
    for (int g = 0; g < groups; g++) {
        scale[g] = search_scale(round, x + g * size, w + g * size, size, steps);
        if (std::fabs(scale[g]) > std::fabs(most)) most = scale[g];
    }
    float d = most / -float(levels), least = INFINITY;
    for (int pass = 0; pass < 3; pass++) {
        const f16_t half = f32_to_f16(d);
        d = f16_to_f32(half);
        if (d == 0 || !std::isfinite(d)) return;
        float total = 0;
        int choice[kQK / 16];
        for (int g = 0; g < groups; g++) {
            const float middle = nearest(scale[g] / d, float(-levels), float(levels - 1));
            float lowest = INFINITY;
            choice[g] = 0;
            for (int k = -1; k <= 1; k++) {
                const float s = nearest(middle + float(k), float(-levels), float(levels - 1));
                const float e = error_at(round, x + g * size, w + g * size, size, d * s);
                if (e < lowest) lowest = e, choice[g] = int(s);
            }
            total += lowest;
        }
        if (!(total < least)) return;
        least = total;
        out.d = half;
        ScaleFit fit;
        for (int g = 0; g < groups; g++) {
            out.scale[g] = choice[g];
            const float s = float(choice[g]), inverse = s != 0 ? 1 / (d * s) : 0;
            for (int i = g * size; i < (g + 1) * size; i++) {
                const float q = round(x[i] * inverse);
                out.q[i] = int8_t(q);
                fit.xq += w[i] * x[i] * s * q;
                fit.qq += w[i] * s * q * s * q;
            }
        }
        d = fit.scale();
    }
}

// The same with scales and mins: w = d * scale * q - dmin * min, scale and min in 0..levels, q in
// 0..top.
void search_block_min(const float* x, const float* importance, int size, int levels, float top,
                      Codes& out);

// The best w = scale * q - min of a group, q in 0..top. positive: min must not be below 0.
void search_group(const float* x, const float* w, int n, float top, bool positive, float* scale,
                  float* min);

}  // namespace ggml
