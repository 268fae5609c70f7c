// Kernels of neuron rows with blocks of 32 or 64 as stored (stored_dot, stored_add) and in tiles
// (tiled_add): for rows that cannot be folded. Blocks of 64 are computed by their halves.
//
// A product computes eight pairs of a row and a token at a time, one per lane. The integer sum of a
// block is exact, and a lane adds its blocks in ascending order, so the bits are those of the same
// rows as strips.
#pragma once

#include "kernels/lanes/accumulate.h"
#include "kernels/lanes/strip.h"

namespace ggml::cpu::GGML_ISA {

// Block b of the activations of one token, for eight rows.
struct OneToken {
    OneToken(const Q8Rows& rows, const int32_t* token) : x(rows), first(*token * (x.cols / kQ)) {}
    void at(int64_t block) { b = first + block; }

    i256 values(int) const { return load(x.q + b * kQ); }
    f32x8 scale() const { return splat(x.d[b]); }
    f32x8 scaled_sum() const { return splat(x.ds[b]); }
    i256 sum8() const { return splat32(x.s8[b]); }
    i256 sums16() const { return word(x.s16 + 2 * b); }

    const Q8Rows& x;
    int64_t first, b = 0;
};

// The same for eight tokens.
struct EightTokens {
    EightTokens(const Q8Rows& rows, const int32_t* const (&tokens)[8]) : x(rows) {
        for (int i = 0; i < 8; i++) first[i] = *tokens[i] * (x.cols / kQ);
    }
    void at(int64_t block) { b = block; }

    i256 values(int i) const { return load(x.q + (first[i] + b) * kQ); }
    f32x8 scale() const { return gathered(x.d); }
    f32x8 scaled_sum() const { return gathered(x.ds); }
    i256 sum8() const {
        int32_t sums[8];
        for (int i = 0; i < 8; i++) sums[i] = x.s8[first[i] + b];
        return load(sums);
    }
    i256 sums16() const {
        int16_t sums[16];
        for (int i = 0; i < 8; i++) std::memcpy(sums + 2 * i, x.s16 + 2 * (first[i] + b), 4);
        return load(sums);
    }
    f32x8 gathered(const float* from) const {
        float values[8];
        for (int i = 0; i < 8; i++) values[i] = from[first[i] + b];
        return load_f32(values);
    }

    const Q8Rows& x;
    int64_t first[8], b = 0;
};

// Adds the products of 32 columns, of j of their blocks.
template <typename F, typename X>
inline f32x8 add_columns(f32x8 sum, const uint8_t* const (&block)[8], int j, const X& x) {
    i256 product[8];
    for (int i = 0; i < 8; i++) {
        if constexpr (F::blocks == 1) {
            product[i] = F::products(F::codes(block[i]), x.values(i));
        } else {
            product[i] = F::products(F::codes(block[i], j), x.values(i));
        }
    }
    if constexpr (F::blocks == 1) {
        return F::add_totals(sum, block, F::totals(product), x);
    } else {
        return F::add_products(sum, block, j, product, x);
    }
}

template <typename F, typename X>
[[gnu::noinline]] void dot_eight(const uint8_t* const (&rows)[8], const uint8_t* const* ahead,
                                 int64_t n_blocks, X x, float* y) {
    constexpr int64_t size = sizeof(typename F::Block);
    f32x8 sum = splat(0);
    for (int64_t b = 0, at = 0; b < n_blocks; b += F::blocks, at += size) {
        if (ahead && at % 64 < size) {
            for (int i = 0; i < 8; i++) __builtin_prefetch(ahead[i] + at, 0, 2);
        }
        const uint8_t* block[8];
        for (int i = 0; i < 8; i++) block[i] = rows[i] + at;
        for (int j = 0; j < F::blocks; j++) {
            x.at(b + j);
            sum = add_columns<F>(sum, block, j, x);
        }
    }
    store(y, sum);
}

template <typename F>
void dot_plain(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t,
               const NeuronInput& in, const int32_t* tokens, int64_t nt, float* y) {
    const Q8Rows& x = in.q8;
    const Prefetch& next = in.prefetch;
    const int64_t pairs = n * nt, n_blocks = x.cols / kQ;
    for (int64_t p = 0; p < pairs; p += 8) {
        const uint8_t *rows[8], *ahead[8];
        const int32_t* of[8];
        for (int64_t i = 0; i < 8; i++) {  // those beyond the end repeat the last one
            const int64_t at = p + i < pairs ? p + i : pairs - 1, row = at / nt;
            rows[i] = w + ids[row] * stride;
            ahead[i] = next.row(row, rows[i]);
            of[i] = tokens + at % nt;
        }
        float sums[8];
        if (nt == 1) {
            dot_eight<F>(rows, next.n ? ahead : nullptr, n_blocks, OneToken(x, tokens), sums);
        } else {
            dot_eight<F>(rows, nullptr, n_blocks, EightTokens(x, of), sums);
        }
        for (int64_t i = 0; i < 8 && p + i < pairs; i++) y[p + i] = sums[i];
    }
}

using Floats = f32x8;
constexpr int kWide = 8, kTogether = 2, kFewer = 2;

// For add_plain.h. The scale is 1 where weights have a minimum as well, or more than one scale.
template <typename F>
float decode_plain(const uint8_t* row, int64_t at, int j, f32x8 (&values)[4]) {
    const auto& block = *reinterpret_cast<const typename F::Block*>(row + at);
    if constexpr (F::blocks > 1) {
        F::values(block, j, values);
        return 1;
    } else if constexpr (F::has_min) {
        F::values(block, values);
        return 1;
    } else {
        F::unscaled(block, values);
        return block_scale(block);
    }
}

}  // namespace ggml::cpu::GGML_ISA

#include "kernels/add_plain.h"

#define PLAIN_DOT(Format, dot_name, ...) const stored_dot_fn dot_name = dot_plain<Format>;
#if defined(GGML_STRIPS_ALONE) && !defined(GGML_FREQUENT_NEURONS)
#define PLAIN_KERNELS(...)
#elif defined(GGML_STRIPS_ALONE)
#define PLAIN_KERNELS PLAIN_DOT
#else
#define PLAIN_KERNELS(Format, dot_name, add_name, tiled_add_name) \
    PLAIN_DOT(Format, dot_name, add_name, tiled_add_name)         \
    const stored_add_fn add_name = add_plain<Format, 1>;          \
    const tiled_add_fn tiled_add_name = add_plain<Format, kStrip>;
#endif
