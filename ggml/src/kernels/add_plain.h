// Weighted sums of neuron rows with blocks of 32 or 64 as stored (stored_add) and in tiles
// (tiled_add), for registers of any width.
//
// Before it is included, the namespace has: Floats, a register of kWide floats, with load_f32,
// store, splat and add_product; kTogether and kFewer, tokens that share loads of values; and
// decode_plain<F>(row, at, j, values), which decodes 32 columns j of the block `at` bytes into a
// row without the scale that all of them share, and returns that scale.
#pragma once

#include "ggml/blocks.h"
#include "kernels/add_rows.h"

namespace ggml::cpu::GGML_ISA {

constexpr int kParts = kQ / kWide;  // registers of 32 columns

// Calls body(c, at, j) for each 32 columns of a row: they begin at column c, and are columns j of
// the block `at` bytes into the row.
template <typename F, int apart, typename Body>
[[gnu::always_inline]] inline void for_columns(int64_t cols, const Body& body) {
    constexpr int64_t size = apart * int64_t(sizeof(typename F::Block));
    constexpr int n = BlockTraits<typename F::Block>::size / kQ;
    for (int64_t c = 0, at = 0; c < cols; at += size) {
        for (int j = 0; j < n; j++, c += kQ) body(c, at, j);
    }
}

// For one token: R rows at a time share loads and stores of y. A row's blocks are `apart` blocks
// apart: 1, or kStrip in tiles.
template <typename F, int apart, int R>
void add_plain_tile(const uint8_t* const* rows, const uint8_t* const* ahead, const float* h,
                    float* y, int64_t cols) {
    constexpr int64_t size = sizeof(typename F::Block);
    for_columns<F, apart>(cols, [&](int64_t c, int64_t at, int j) {
        if constexpr (apart == 1) {
            for (int r = 0; r < R && at % 64 < size; r++) __builtin_prefetch(ahead[r] + at, 0, 2);
        }
        Floats sum[kParts];
        for (int i = 0; i < kParts; i++) sum[i] = load_f32(y + c + kWide * i);
        for (int r = 0; r < R; r++) {
            Floats values[kParts];
            const Floats factor = splat(h[r] * decode_plain<F>(rows[r], at, j, values));
            for (int i = 0; i < kParts; i++) sum[i] = add_product(sum[i], factor, values[i]);
        }
        for (int i = 0; i < kParts; i++) store(y + c + kWide * i, sum[i]);
    });
}

// 32 columns of up to kMostRows rows, for several tokens. They stay in the L1 cache.
struct alignas(64) PlainPiece {
    float values[kMostRows][kQ];
    float scale[kMostRows];
};

// Adds n rows to T tokens, all rows for each of them. factors: [T][kMostRows].
template <int T>
void add_all(const PlainPiece& piece, int64_t n, const float* factors, float* y, int64_t ldy) {
    Floats sum[T][kParts];
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < kParts; i++) sum[t][i] = load_f32(y + t * ldy + kWide * i);
    }
    for (int64_t r = 0; r < n; r++) {
        Floats values[kParts];
        for (int i = 0; i < kParts; i++) values[i] = load_f32(piece.values[r] + kWide * i);
        for (int t = 0; t < T; t++) {
            const Floats factor = splat(factors[t * kMostRows + r]);
            for (int i = 0; i < kParts; i++) {
                sum[t][i] = add_product(sum[t][i], factor, values[i]);
            }
        }
    }
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < kParts; i++) store(y + t * ldy + kWide * i, sum[t][i]);
    }
}

// Adds those of one token.
inline void add_listed(const PlainPiece& piece, const int32_t* row, const float* h, int64_t n,
                       float* y) {
    Floats sum[kParts];
    for (int i = 0; i < kParts; i++) sum[i] = load_f32(y + kWide * i);
    for (int64_t e = 0; e < n; e++) {
        const Floats factor = splat(h[e] * piece.scale[row[e]]);
        const float* const values = piece.values[row[e]];
        for (int i = 0; i < kParts; i++) {
            sum[i] = add_product(sum[i], factor, load_f32(values + kWide * i));
        }
    }
    for (int i = 0; i < kParts; i++) store(y + kWide * i, sum[i]);
}

// For several tokens: decodes 32 columns of all rows once.
template <typename F, int apart>
void add_plain_unpacked(const uint8_t* const* rows, int64_t n, int64_t cols,
                        const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy) {
    PlainPiece piece;
    float factors[kTogether * kMostRows];
    const bool all = weighted.first[nt] - weighted.first[0] == n * nt;
    for_columns<F, apart>(cols, [&](int64_t c, int64_t at, int j) {
        for (int64_t r = 0; r < n; r++) {
            Floats values[kParts];
            piece.scale[r] = decode_plain<F>(rows[r], at, j, values);
            for (int i = 0; i < kParts; i++) store(piece.values[r] + kWide * i, values[i]);
        }
        int64_t t = 0;
        const auto tiles = [&](auto count) {
            for (; all && t + count <= nt; t += count) {
                for (int i = 0; i < count; i++) {
                    const float* const h = weighted.h + weighted.first[t + i];
                    for (int64_t r = 0; r < n; r++) {
                        factors[i * kMostRows + r] = h[r] * piece.scale[r];
                    }
                }
                add_all<count>(piece, n, factors, y + t * ldy + c, ldy);
            }
        };
        tiles(Count<kTogether>());
        tiles(Count<kFewer>());
        for (; t < nt; t++) {
            const int32_t begin = weighted.first[t], count = weighted.first[t + 1] - begin;
            if (count) {
                add_listed(piece, weighted.row + begin, weighted.h + begin, count, y + t * ldy + c);
            }
        }
    });
}

template <typename F, int apart>
void add_plain(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
               const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy) {
    const auto at = [&](int32_t id) {
        return apart == 1 ? w + id * stride : tiled_row(w, stride, id, sizeof(typename F::Block));
    };
    const auto tile = [&](auto count, auto... of) { add_plain_tile<F, apart, count>(of..., cols); };
    const auto unpacked = [&](const uint8_t* const* rows) {
        add_plain_unpacked<F, apart>(rows, n, cols, weighted, nt, y, ldy);
    };
    add_blocks<apart == 1 ? 4 : kStrip>(at, ids, n, weighted, nt, y, ldy, tile, unpacked);
}

}  // namespace ggml::cpu::GGML_ISA
