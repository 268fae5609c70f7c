// Strips times four tokens at a time, for NEON.
//
// A piece of a strip is unpacked to signed bytes once for all tokens. A tile then has only sums of
// products and scales left to do. A tile that unpacks weights itself would have to share that work
// among 6 tokens, and 32 registers hold the sums of 4. The operations on floats and their order are
// those of the formats' multiply(), and integers are exact, so the bits are the same.
#pragma once

#include "cpu/lanes/strip.h"

namespace ggml::cpu::GGML_ISA {

constexpr int kTile = 4;            // tokens
constexpr int kWorthUnpacking = 8;  // tokens: fewer unpack the weights themselves
constexpr int kMostBlocks = 16;     // blocks of 32 columns in a piece
template <typename F>
constexpr int kPiece = F::integers ? 8 : kMostBlocks;

struct Unpacked {
    int8_t weights[kMostBlocks][8 * kGroup];  // less the bias
    float scales[kMostBlocks][kStrip];        // of formats with floats per 32 columns, or:
    int32_t factors[kMostBlocks][2][kStrip];  // integers per 32 or 16 columns,
    float mins[kMostBlocks][kStrip];          // mins times their unit,
    float unit[kStrip];                       // and the unit of the factors
};

inline void store(void* to, i256 v) {
    vst1q_u8(static_cast<uint8_t*>(to), v.a);
    vst1q_u8(static_cast<uint8_t*>(to) + 16, v.b);
}

// There is no tile for mins per 16 columns (Q2_K).
template <typename F>
constexpr bool kHasTile = !(F::halves == 2 && F::has_min);
template <typename F>
constexpr int64_t in_tiles(int64_t nt) {
    return kHasTile<F> && nt >= kWorthUnpacking ? nt / kTile * kTile : 0;
}

// Block j of unit w as block i of the piece.
template <typename F>
inline void unpack(const uint8_t* w, int j, int i, Unpacked& out) {
    for (int v = 0; v < 8; v++) {
        store(out.weights[i] + kGroup * v, sub8(F::weights(w, j, v), splat8(F::bias)));
    }
    if constexpr (!F::integers) {
        const Numbers n = F::numbers(w, j, 0);
        store(out.scales[i], n.scale);
        if (F::has_min) store(out.mins[i], n.min);
    } else if constexpr (F::halves == 1) {
        const auto groups = F::groups(w);
        const f32x8 unit = Interleaved::halves(w, offsetof(typename F::Block, dmin));
        store(out.factors[i][0], groups.scale(j));
        store(out.mins[i], mul(unit, groups.number(groups.mins, j)));
    } else {
        const auto factors = F::factors(w, j);
        store(out.factors[i][0], factors.first);
        store(out.factors[i][1], factors.second);
    }
}
// n blocks from w on.
template <typename F>
inline void unpack(const uint8_t* w, int64_t unit_bytes, int n, Unpacked& out) {
    if constexpr (F::integers) {
        store(out.unit, Interleaved::halves(w, offsetof(typename F::Block, d)));
    }
    for (int i = 0; i < n; i += F::blocks, w += unit_bytes) {
#pragma GCC unroll 8
        for (int j = 0; j < F::blocks; j++) unpack<F>(w, j, i + j, out);
    }
}

// The sums of products of four tokens with eight rows.
struct Products {
    int32x4_t a[kTile], b[kTile];
};
template <int v>
[[gnu::always_inline]] inline void add_group(const int8_t* w, const int8x16_t (&x)[kTile],
                                             Products& sum) {
    const int8x16_t first = vld1q_s8(w + kGroup * v), second = vld1q_s8(w + kGroup * v + 16);
#pragma GCC unroll 4
    for (int t = 0; t < kTile; t++) {
        sum.a[t] = vdotq_laneq_s32(sum.a[t], first, x[t], v);
        sum.b[t] = vdotq_laneq_s32(sum.b[t], second, x[t], v);
    }
}
// Four groups: 16 columns.
[[gnu::always_inline]] inline void add_groups(const int8_t* w, const int8_t* q, int64_t cols,
                                              Products& sum) {
    int8x16_t x[kTile];
#pragma GCC unroll 4
    for (int t = 0; t < kTile; t++) x[t] = vld1q_s8(q + t * cols);
    add_group<0>(w, x, sum);
    add_group<1>(w, x, sum);
    add_group<2>(w, x, sum);
    add_group<3>(w, x, sum);
}
inline Products zeros() {
    Products p;
#pragma GCC unroll 4
    for (int t = 0; t < kTile; t++) p.a[t] = p.b[t] = vdupq_n_s32(0);
    return p;
}

// The tile of four tokens and n blocks of which q, d and ds are the first; adds to y.
template <typename F>
[[gnu::always_inline]] inline void tile(const Unpacked& w, int n, const int8_t* q, const float* d,
                                        const float* ds, int64_t cols, int64_t blocks, float* y,
                                        int64_t ldy) {
    float32x4_t sum[kTile][2];
#pragma GCC unroll 4
    for (int t = 0; t < kTile; t++) {
        sum[t][0] = F::integers ? vdupq_n_f32(0) : vld1q_f32(y + t * ldy);
        sum[t][1] = F::integers ? vdupq_n_f32(0) : vld1q_f32(y + t * ldy + 4);
    }
#pragma GCC unroll 2
    for (int j = 0; j < n; j++, q += kQ) {
        Products p = zeros();
        add_groups(w.weights[j], q, cols, p);
        if constexpr (F::halves == 2) {
            const int32x4_t fa = vld1q_s32(w.factors[j][0]), fb = vld1q_s32(w.factors[j][0] + 4);
            const int32x4_t ga = vld1q_s32(w.factors[j][1]), gb = vld1q_s32(w.factors[j][1] + 4);
            Products r = zeros();
            add_groups(w.weights[j] + 4 * kGroup, q + 16, cols, r);
#pragma GCC unroll 4
            for (int t = 0; t < kTile; t++) {
                p.a[t] = vmlaq_s32(vmulq_s32(p.a[t], fa), r.a[t], ga);
                p.b[t] = vmlaq_s32(vmulq_s32(p.b[t], fb), r.b[t], gb);
            }
        } else {
            add_groups(w.weights[j] + 4 * kGroup, q + 16, cols, p);
        }
        if constexpr (F::integers) {
            const int32x4_t fa = vld1q_s32(w.factors[j][0]), fb = vld1q_s32(w.factors[j][0] + 4);
#pragma GCC unroll 4
            for (int t = 0; t < kTile; t++) {
                if (F::halves == 1) {
                    p.a[t] = vmulq_s32(p.a[t], fa);
                    p.b[t] = vmulq_s32(p.b[t], fb);
                }
                const float x = d[t * blocks + j];
                sum[t][0] = vfmaq_n_f32(sum[t][0], vcvtq_f32_s32(p.a[t]), x);
                sum[t][1] = vfmaq_n_f32(sum[t][1], vcvtq_f32_s32(p.b[t]), x);
            }
        } else {
            const float32x4_t wa = vld1q_f32(w.scales[j]), wb = vld1q_f32(w.scales[j] + 4);
#pragma GCC unroll 4
            for (int t = 0; t < kTile; t++) {
                const float x = d[t * blocks + j];
                sum[t][0] = vfmaq_f32(sum[t][0], vmulq_n_f32(wa, x), vcvtq_f32_s32(p.a[t]));
                sum[t][1] = vfmaq_f32(sum[t][1], vmulq_n_f32(wb, x), vcvtq_f32_s32(p.b[t]));
            }
            if constexpr (F::has_min) {
                const float32x4_t ma = vld1q_f32(w.mins[j]), mb = vld1q_f32(w.mins[j] + 4);
#pragma GCC unroll 4
                for (int t = 0; t < kTile; t++) {
                    const float x = ds[t * blocks + j];
                    sum[t][0] = vfmaq_n_f32(sum[t][0], ma, x);
                    sum[t][1] = vfmaq_n_f32(sum[t][1], mb, x);
                }
            }
        }
    }
    if constexpr (F::integers) {
        const float32x4_t ua = vld1q_f32(w.unit), ub = vld1q_f32(w.unit + 4);
#pragma GCC unroll 4
        for (int t = 0; t < kTile; t++) {
            sum[t][0] = vfmaq_f32(vld1q_f32(y + t * ldy), ua, sum[t][0]);
            sum[t][1] = vfmaq_f32(vld1q_f32(y + t * ldy + 4), ub, sum[t][1]);
        }
        if constexpr (F::has_min) {
#pragma GCC unroll 8
            for (int j = 0; j < kPiece<F>; j++) {
                const float32x4_t ma = vld1q_f32(w.mins[j]), mb = vld1q_f32(w.mins[j] + 4);
#pragma GCC unroll 4
                for (int t = 0; t < kTile; t++) {
                    const float x = ds[t * blocks + j];
                    sum[t][0] = vfmsq_n_f32(sum[t][0], ma, x);
                    sum[t][1] = vfmsq_n_f32(sum[t][1], mb, x);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTile; t++) {
        vst1q_f32(y + t * ldy, sum[t][0]);
        vst1q_f32(y + t * ldy + 4, sum[t][1]);
    }
}

// A piece: tokens t0 .. t0 + nt - 1 and n blocks from b on. Not inlined: its loops keep their
// registers.
template <typename F>
[[gnu::noinline]] void piece(const Unpacked& w, int n, const Q8Rows& x, int64_t t0, int64_t nt,
                             int64_t b, float* y, int64_t ldy) {
    const int64_t cols = x.cols, blocks = cols / kQ;
    const int8_t* q = x.q + t0 * cols + b * kQ;
    const float *d = x.d + t0 * blocks + b, *ds = x.ds + t0 * blocks + b;
    for (int64_t t = 0; t < nt; t += kTile) {
        tile<F>(w, n, q, d, ds, cols, blocks, y, ldy);
        q += kTile * cols;
        d += kTile * blocks;
        ds += kTile * blocks;
        y += kTile * ldy;
    }
}

// One strip, for whole tiles of tokens.
template <typename F>
void tiles(const uint8_t* w, int64_t unit_bytes, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
           int64_t ldy) {
    Unpacked unpacked;
    const int64_t blocks = x.cols / kQ;
    for (int64_t t = 0; t < nt; t++) store(y + t * ldy, splat(0));
    for (int64_t b = 0; b < blocks; b += kPiece<F>) {
        const int n = int(blocks - b < kPiece<F> ? blocks - b : kPiece<F>);
        unpack<F>(w + b / F::blocks * unit_bytes, unit_bytes, n, unpacked);
        piece<F>(unpacked, n, x, t0, nt, b, y, ldy);
    }
}

}  // namespace ggml::cpu::GGML_ISA
