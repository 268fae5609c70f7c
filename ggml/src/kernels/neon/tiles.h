// Strips times four tokens at a time, for NEON.
//
// A piece of a strip is unpacked to signed bytes once for all tokens, and the tokens' columns are
// arranged once for all strips. A tile then has only sums of products and scales left to do. A tile
// that unpacks weights itself would have to share that work among 6 tokens, and 32 registers hold
// the sums of 4. The operations on floats and their order are those of the formats' multiply(), and
// integers are exact, so the bits are the same.
//
// Eight registers hold the sums of a tile. sdot multiplies four columns of four rows with one
// token; smmla (i8mm) multiplies eight columns of two rows with two tokens. Only the order of the
// sums in these registers differs, which the first part of this file describes.
#pragma once

#include "kernels/lanes/strip.h"

namespace ggml::cpu::GGML_ISA {

constexpr int kTile = 4;            // tokens
constexpr int kWorthUnpacking = 8;  // tokens: fewer unpack the weights themselves
constexpr int kMostBlocks = 16;     // blocks of 32 columns in a piece
constexpr int kMostTiles = 16;      // whose columns are arranged at a time
template <typename F>
constexpr int kPiece = F::integers ? 8 : kMostBlocks;

inline void store(void* to, i256 v) {
    vst1q_u8(static_cast<uint8_t*>(to), v.a);
    vst1q_u8(static_cast<uint8_t*>(to) + 16, v.b);
}

// ---- the order of sums -----------------------------------------------------------------------
// Register kRows * t + r belongs to the rows r and the tokens t, of which there are kRows and
// kTokens kinds. Numbers of rows are stored as kRows registers: as the sums need them.
#ifdef __ARM_FEATURE_MATMUL_INT8
// A register: two rows with two tokens each. {row 0 token 0, row 0 token 1, row 1 token 0, ...}
constexpr int kRows = 4, kTokens = 2;
using TokenNumber = float32x4_t;
inline void store_rows(float* to, f32x8 v) {
    vst1q_f32(to, vzip1q_f32(v.a, v.a));
    vst1q_f32(to + 4, vzip2q_f32(v.a, v.a));
    vst1q_f32(to + 8, vzip1q_f32(v.b, v.b));
    vst1q_f32(to + 12, vzip2q_f32(v.b, v.b));
}
inline void store_rows(int32_t* to, i256 v) {
    store_rows(reinterpret_cast<float*>(to),
               {vreinterpretq_f32_u8(v.a), vreinterpretq_f32_u8(v.b)});
}
// Groups v and v + 1: eight columns of rows 0 and 1, of rows 2 and 3, ...
inline void store_weights(int8_t* to, i256 group, i256 next) {
    const auto zip = [&](int i, uint32x4_t a) {
        vst1q_u8(reinterpret_cast<uint8_t*>(to) + 16 * i, vreinterpretq_u8_u32(a));
    };
    zip(0, vzip1q_u32(as_u32(group.a), as_u32(next.a)));
    zip(1, vzip2q_u32(as_u32(group.a), as_u32(next.a)));
    zip(2, vzip1q_u32(as_u32(group.b), as_u32(next.b)));
    zip(3, vzip2q_u32(as_u32(group.b), as_u32(next.b)));
}
// 16 columns of four tokens, `apart` from each other: eight columns of two tokens side by side.
inline void arrange_columns(const int8_t* from, int64_t apart, int8_t* to) {
    for (int t = 0; t < kTokens; t++, from += 2 * apart) {
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(from));
        const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(from + apart));
        vst1q_s8(to + 16 * t, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
        vst1q_s8(to + 16 * (kTokens + t), vreinterpretq_s8_s64(vzip2q_s64(a, b)));
    }
}
// A number of each token.
inline void arrange_numbers(const float* from, int64_t apart, TokenNumber (&to)[kTokens]) {
    for (int t = 0; t < kTokens; t++, from += 2 * apart) {
        const float32x2_t two = {from[0], from[apart]};
        to[t] = vcombine_f32(two, two);
    }
}
inline float32x4_t times(float32x4_t a, TokenNumber x) {
    return vmulq_f32(a, x);
}
inline float32x4_t add_times(float32x4_t sum, float32x4_t a, TokenNumber x) {
    return vfmaq_f32(sum, a, x);
}
inline float32x4_t sub_times(float32x4_t sum, float32x4_t a, TokenNumber x) {
    return vfmsq_f32(sum, a, x);
}
// The outputs of a tile.
inline void load_outputs(const float* y, int64_t ldy, float32x4_t (&sum)[8]) {
    for (int t = 0; t < kTokens; t++, y += 2 * ldy) {
        for (int h = 0; h < 2; h++) {
            const float32x4_t first = vld1q_f32(y + 4 * h), second = vld1q_f32(y + ldy + 4 * h);
            sum[kRows * t + 2 * h] = vzip1q_f32(first, second);
            sum[kRows * t + 2 * h + 1] = vzip2q_f32(first, second);
        }
    }
}
inline void store_outputs(float* y, int64_t ldy, const float32x4_t (&sum)[8]) {
    for (int t = 0; t < kTokens; t++, y += 2 * ldy) {
        for (int h = 0; h < 2; h++) {
            const float32x4_t a = sum[kRows * t + 2 * h], b = sum[kRows * t + 2 * h + 1];
            vst1q_f32(y + 4 * h, vuzp1q_f32(a, b));
            vst1q_f32(y + ldy + 4 * h, vuzp2q_f32(a, b));
        }
    }
}
// Adds the products of 16 columns.
[[gnu::always_inline]] inline void add_columns(const int8_t* w, const int8_t* x,
                                               int32x4_t (&sum)[8]) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; c++, w += 2 * kGroup, x += 16 * kTokens) {
        const int8x16_t x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; r++) {
            const int8x16_t rows = vld1q_s8(w + 16 * r);
            sum[r] = vmmlaq_s32(sum[r], rows, x0);
            sum[kRows + r] = vmmlaq_s32(sum[kRows + r], rows, x1);
        }
    }
}
#else
// A register: four rows with one token.
constexpr int kRows = 2, kTokens = 4;
using TokenNumber = float;
inline void store_rows(float* to, f32x8 v) {
    store(to, v);
}
inline void store_rows(int32_t* to, i256 v) {
    store(to, v);
}
inline void store_weights(int8_t* to, i256 group, i256 next) {
    store(to, group);
    store(to + kGroup, next);
}
// 16 columns of four tokens, `apart` from each other.
inline void arrange_columns(const int8_t* from, int64_t apart, int8_t* to) {
    for (int t = 0; t < kTokens; t++) vst1q_s8(to + 16 * t, vld1q_s8(from + t * apart));
}
// A number of each token.
inline void arrange_numbers(const float* from, int64_t apart, TokenNumber (&to)[kTokens]) {
    for (int t = 0; t < kTokens; t++) to[t] = from[t * apart];
}
inline float32x4_t times(float32x4_t a, TokenNumber x) {
    return vmulq_n_f32(a, x);
}
inline float32x4_t add_times(float32x4_t sum, float32x4_t a, TokenNumber x) {
    return vfmaq_n_f32(sum, a, x);
}
inline float32x4_t sub_times(float32x4_t sum, float32x4_t a, TokenNumber x) {
    return vfmsq_n_f32(sum, a, x);
}
// The outputs of a tile.
inline void load_outputs(const float* y, int64_t ldy, float32x4_t (&sum)[8]) {
    for (int i = 0; i < 8; i++) sum[i] = vld1q_f32(y + i / kRows * ldy + i % kRows * 4);
}
inline void store_outputs(float* y, int64_t ldy, const float32x4_t (&sum)[8]) {
    for (int i = 0; i < 8; i++) vst1q_f32(y + i / kRows * ldy + i % kRows * 4, sum[i]);
}
template <int v>
[[gnu::always_inline]] inline void add_group(const int8_t* w, const int8x16_t (&x)[kTokens],
                                             int32x4_t (&sum)[8]) {
    const int8x16_t first = vld1q_s8(w + kGroup * v), second = vld1q_s8(w + kGroup * v + 16);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; t++) {
        sum[kRows * t] = vdotq_laneq_s32(sum[kRows * t], first, x[t], v);
        sum[kRows * t + 1] = vdotq_laneq_s32(sum[kRows * t + 1], second, x[t], v);
    }
}
// Adds the products of 16 columns.
[[gnu::always_inline]] inline void add_columns(const int8_t* w, const int8_t* columns,
                                               int32x4_t (&sum)[8]) {
    int8x16_t x[kTokens];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; t++) x[t] = vld1q_s8(columns + 16 * t);
    add_group<0>(w, x, sum);
    add_group<1>(w, x, sum);
    add_group<2>(w, x, sum);
    add_group<3>(w, x, sum);
}
#endif
static_assert(kRows * kTokens == 8);

// ---- pieces ----------------------------------------------------------------------------------
// A strip's numbers as registers of the sums' order.
template <typename T>
using PerRow = T[4 * kRows];

struct Unpacked {
    int8_t weights[kMostBlocks][8 * kGroup];  // less the bias
    PerRow<float> scales[kMostBlocks];        // of formats with floats per 32 columns, or:
    PerRow<int32_t> factors[kMostBlocks][2];  // integers per 32 or 16 columns,
    PerRow<float> mins[kMostBlocks];          // mins times their unit,
    PerRow<float> unit;                       // and the unit of the factors
};

// There is no tile for mins per 16 columns (Q2_K), nor for scales per 16 columns that are floats.
template <typename F>
constexpr bool kHasTile = F::halves == 1 || (F::integers && !F::has_min);
template <typename F>
constexpr int64_t in_tiles(int64_t nt) {
    return kHasTile<F> && nt >= kWorthUnpacking ? nt / kTile * kTile : 0;
}

// Block j of unit w as block i of the piece.
template <typename F>
inline void unpack(const uint8_t* w, int j, int i, Unpacked& out) {
    const auto group = [&](int v) { return sub8(F::weights(w, j, v), splat8(F::bias)); };
    for (int v = 0; v < 8; v += 2) {
        store_weights(out.weights[i] + kGroup * v, group(v), group(v + 1));
    }
    if constexpr (!F::integers) {
        const Numbers n = F::numbers(w, j, 0);
        store_rows(out.scales[i], n.scale);
        if (F::has_min) store_rows(out.mins[i], n.min);
    } else if constexpr (F::halves == 1) {
        const auto groups = F::groups(w);
        const f32x8 unit = Interleaved::halves(w, offsetof(typename F::Block, dmin));
        store_rows(out.factors[i][0], groups.scale(j));
        store_rows(out.mins[i], mul(unit, groups.number(groups.mins, j)));
    } else {
        const auto factors = F::factors(w, j);
        store_rows(out.factors[i][0], factors.first);
        store_rows(out.factors[i][1], factors.second);
    }
}
// n blocks from w on.
template <typename F>
inline void unpack(const uint8_t* w, int64_t unit_bytes, int n, Unpacked& out) {
    if constexpr (F::integers) {
        store_rows(out.unit, Interleaved::halves(w, offsetof(typename F::Block, d)));
    }
    for (int i = 0; i < n; i += F::blocks, w += unit_bytes) {
#pragma GCC unroll 8
        for (int j = 0; j < F::blocks; j++) unpack<F>(w, j, i + j, out);
    }
}

// 32 columns of a tile's tokens.
struct Columns {
    int8_t q[kTile * kQ];
    TokenNumber scale[kTokens], scaled_sum[kTokens];
};
// n blocks of tiles of nt tokens, from token t0 and block b on.
template <typename F>
[[gnu::noinline]] void arrange(const Q8Rows& x, int64_t t0, int64_t nt, int64_t b, int n,
                               Columns (*to)[kMostBlocks]) {
    const int64_t blocks = x.cols / kQ;
    for (int64_t t = t0; t < t0 + nt; t += kTile, to++) {
        for (int j = 0; j < n; j++) {
            Columns& out = (*to)[j];
            const int8_t* q = x.q + t * x.cols + (b + j) * kQ;
            arrange_columns(q, x.cols, out.q);
            arrange_columns(q + 16, x.cols, out.q + kTile * 16);
            arrange_numbers(x.d + t * blocks + b + j, blocks, out.scale);
            if (F::has_min) arrange_numbers(x.ds + t * blocks + b + j, blocks, out.scaled_sum);
        }
    }
}

inline void load_rows(const float* from, float32x4_t (&to)[kRows]) {
    for (int r = 0; r < kRows; r++) to[r] = vld1q_f32(from + 4 * r);
}
inline void load_rows(const int32_t* from, int32x4_t (&to)[kRows]) {
    for (int r = 0; r < kRows; r++) to[r] = vld1q_s32(from + 4 * r);
}

// The exact sums over the 32 columns of block j, times their factors.
template <typename F>
[[gnu::always_inline]] inline void sum_block(const Unpacked& w, int j, const Columns& x,
                                             int32x4_t (&sum)[8]) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) sum[i] = vdupq_n_s32(0);
    add_columns(w.weights[j], x.q, sum);
    if constexpr (F::halves == 2) {
        int32x4_t first[kRows], second[kRows], half[8];
        load_rows(w.factors[j][0], first);
        load_rows(w.factors[j][1], second);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) half[i] = vdupq_n_s32(0);
        add_columns(w.weights[j] + 4 * kGroup, x.q + kTile * 16, half);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = vmlaq_s32(vmulq_s32(sum[i], first[i % kRows]), half[i], second[i % kRows]);
        }
    } else {
        add_columns(w.weights[j] + 4 * kGroup, x.q + kTile * 16, sum);
        if constexpr (F::integers) {
            int32x4_t factors[kRows];
            load_rows(w.factors[j][0], factors);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) sum[i] = vmulq_s32(sum[i], factors[i % kRows]);
        }
    }
}

// The tile of four tokens and n blocks; adds to y.
template <typename F>
[[gnu::always_inline]] inline void tile(const Unpacked& w, int n, const Columns* x, float* y,
                                        int64_t ldy) {
    float32x4_t sum[8], rows[kRows];
    if (F::integers) {
#pragma GCC unroll 8
        for (float32x4_t& s : sum) s = vdupq_n_f32(0);
    } else {
        load_outputs(y, ldy, sum);
    }
#pragma GCC unroll 2
    for (int j = 0; j < n; j++) {
        int32x4_t product[8];
        sum_block<F>(w, j, x[j], product);
        const TokenNumber(&scale)[kTokens] = x[j].scale;
        if constexpr (F::integers) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = add_times(sum[i], vcvtq_f32_s32(product[i]), scale[i / kRows]);
            }
        } else {
            load_rows(w.scales[j], rows);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = vfmaq_f32(sum[i], times(rows[i % kRows], scale[i / kRows]),
                                   vcvtq_f32_s32(product[i]));
            }
            if constexpr (F::has_min) {
                load_rows(w.mins[j], rows);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    sum[i] = add_times(sum[i], rows[i % kRows], x[j].scaled_sum[i / kRows]);
                }
            }
        }
    }
    if constexpr (F::integers) {
        float32x4_t total[8];
        load_outputs(y, ldy, total);
        load_rows(w.unit, rows);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) sum[i] = vfmaq_f32(total[i], rows[i % kRows], sum[i]);
        if constexpr (F::has_min) {
#pragma GCC unroll 8
            for (int j = 0; j < kPiece<F>; j++) {
                load_rows(w.mins[j], rows);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    sum[i] = sub_times(sum[i], rows[i % kRows], x[j].scaled_sum[i / kRows]);
                }
            }
        }
    }
    store_outputs(y, ldy, sum);
}

// Tiles of nt tokens and n blocks. Not inlined: its loops keep their registers.
template <typename F>
[[gnu::noinline]] void piece(const Unpacked& w, int n, const Columns (*x)[kMostBlocks], int64_t nt,
                             float* y, int64_t ldy) {
    for (int64_t t = 0; t < nt; t += kTile, x++, y += kTile * ldy) tile<F>(w, n, *x, y, ldy);
}

// n strips, for whole tiles of tokens.
template <typename F>
void tiles(const uint8_t* w, int64_t unit_bytes, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt,
           float* y, int64_t ldy) {
    Columns columns[kMostTiles][kMostBlocks];  // 40 KiB, or 48 for smmla
    Unpacked unpacked;
    const int64_t blocks = x.cols / kQ, size = blocks / F::blocks * unit_bytes;
    constexpr int64_t most = kMostTiles * kTile;
    for (int64_t t = 0; t < nt; t += most, y += most * ldy) {
        const int64_t tokens = nt - t < most ? nt - t : most;
        for (int64_t b = 0; b < blocks; b += kPiece<F>) {
            const int some = int(blocks - b < kPiece<F> ? blocks - b : kPiece<F>);
            arrange<F>(x, t0 + t, tokens, b, some, columns);
            for (int64_t i = 0; i < n; i++) {
                float* to = y + i * kStrip;
                for (int64_t k = 0; b == 0 && k < tokens; k++) store(to + k * ldy, splat(0));
                unpack<F>(w + i * size + b / F::blocks * unit_bytes, unit_bytes, some, unpacked);
                piece<F>(unpacked, some, columns, tokens, to, ldy);
            }
        }
    }
}

}  // namespace ggml::cpu::GGML_ISA
