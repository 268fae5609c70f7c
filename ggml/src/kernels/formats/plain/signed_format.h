// The family of formats with one scale per 32 columns and signed values, which have all 8 bits.
#pragma once

#include "kernels/lanes/accumulate.h"
#include "kernels/lanes/block_kernels.h"
#include "kernels/lanes/plain_rows.h"

namespace ggml::cpu::GGML_ISA {

template <typename F>
struct SignedFormat {
    static constexpr int bias = 0, halves = 1, straight = 1, tokens = 8;
    static constexpr bool has_min = false, integers = false;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, f32x8 (&sum)[T]) {
        for (int j = 0; j < F::blocks; j++) {
            const int64_t b = first + j;
            i256 product[T];
            signed_products32([&](int v) { return F::weights(w, j, v); },
                              [&](int t) { return x.values(t, b); },
                              [&](int t) { return x.sum8(t, b); }, product);
            const f32x8 scales = F::scales(w, j);
            for (int t = 0; t < T; t++) {
                sum[t] = add_block(sum[t], scales, x.scale(t, b), product[t]);
            }
        }
    }
    static i256 products(i256 codes, i256 x) { return signed_products(codes, x); }
    static i256 totals(const i256 (&v)[8]) { return lane_totals(v); }
    template <typename X>
    static f32x8 add_totals(f32x8 sum, const uint8_t* const (&block)[8], i256 totals, const X& x) {
        return add_block(sum, gather_f16(block), x.scale(), totals);
    }
    template <typename Block>
    static void values(const Block& block, f32x8 (&out)[4]) {
        F::unscaled(block, out);
        for (f32x8& v : out) v = mul(splat(f16_value(block.d)), v);
    }
    static Numbers numbers(const uint8_t* w, int j, int) { return {F::scales(w, j), splat(0)}; }
};

}  // namespace ggml::cpu::GGML_ISA
