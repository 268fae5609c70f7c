// The family of formats with one scale per 32 columns and unsigned codes less an offset.
#pragma once

#include "kernels/lanes/accumulate.h"
#include "kernels/lanes/block_kernels.h"
#include "kernels/lanes/plain_rows.h"

namespace ggml::cpu::GGML_ISA {

// Multiplies with unsigned codes, then subtracts 8 or 16 * the sum of the activations.
template <typename F>
struct OffsetFormat {
    static constexpr int blocks = 1, halves = 1, straight = 1;
    static constexpr bool has_min = false, integers = false;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t b, f32x8 (&sum)[T]) {
        i256 weights[8];
        all_weights<F>(w, 0, weights);
        const f32x8 scales = load_scales<typename F::Block>(w);
        // Without the pragma GCC unrolls the six tokens of Q4_0 only in part: 10% slower.
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const i256 product = products32<F::bits>(weights, x.values(t, b));
            i256 offset = x.sum8(t, b);
            if (F::bias == 16) offset = add32(offset, offset);
            sum[t] = add_block(sum[t], scales, x.scale(t, b), sub32(product, offset));
        }
    }
    static i256 products(i256 codes, i256 x) { return code_products(codes, x); }
    static i256 totals(const i256 (&v)[8]) { return code_totals(v); }
    template <typename X>
    static f32x8 add_totals(f32x8 sum, const uint8_t* const (&block)[8], i256 totals, const X& x) {
        i256 offset = x.sum8();
        if (F::bias == 16) offset = add32(offset, offset);
        const f32x8 scales = gather_scales<typename F::Block>(block);
        return add_block(sum, scales, x.scale(), sub32(totals, offset));
    }
    static Numbers numbers(const uint8_t* w, int, int) {
        return {load_scales<typename F::Block>(w), splat(0)};
    }
};

}  // namespace ggml::cpu::GGML_ISA
