// The family of formats with a scale and a min per 32 columns. Codes are unsigned. The min is
// multiplied by d * the sum of the activations, with one operation per block.
#pragma once

#include "kernels/lanes/accumulate.h"
#include "kernels/lanes/block_kernels.h"
#include "kernels/lanes/plain_rows.h"

namespace ggml::cpu::GGML_ISA {

template <typename F>
struct MinFormat {
    static constexpr int blocks = 1, bias = 0, halves = 1, straight = 1;
    static constexpr bool has_min = true, integers = false;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t b, f32x8 (&sum)[T]) {
        i256 weights[8];
        all_weights<F>(w, 0, weights);
        const Numbers n = numbers(w, 0, 0);
        for (int t = 0; t < T; t++) {
            const i256 product = products32<F::bits>(weights, x.values(t, b));
            sum[t] = add_block(sum[t], n.scale, x.scale(t, b), product);
            sum[t] = add_product(sum[t], n.min, x.scaled_sum(t, b));
        }
    }
    static i256 products(i256 codes, i256 x) { return code_products(codes, x); }
    static i256 totals(const i256 (&v)[8]) { return code_totals(v); }
    template <typename X>
    static f32x8 add_totals(f32x8 sum, const uint8_t* const (&block)[8], i256 totals, const X& x) {
        const uint8_t* min[8];
        for (int i = 0; i < 8; i++) min[i] = block[i] + offsetof(typename F::Block, m);
        sum = add_block(sum, gather_f16(block), x.scale(), totals);
        return add_product(sum, gather_f16(min), x.scaled_sum());
    }
    template <typename Block>
    static void values(const Block& block, f32x8 (&out)[4]) {
        F::unscaled(block, out);
        const f32x8 scale = splat(f16_value(block.d)), min = splat(f16_value(block.m));
        for (f32x8& v : out) v = add_product(min, scale, v);
    }
    static Numbers numbers(const uint8_t* w, int, int) {
        return {load_f16(w), load_f16(w + kStrip * offsetof(typename F::Block, m))};
    }
};

}  // namespace ggml::cpu::GGML_ISA
