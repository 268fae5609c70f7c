// The family of formats with a scale and a min per 32 columns. Codes are unsigned. The min is
// multiplied by d * the sum of the activations, with one operation per block.
#pragma once

#include "cpu/lanes/accumulate.h"
#include "cpu/lanes/block_kernels.h"

namespace ggml::cpu::GGML_ISA {

template <typename F>
struct MinFormat {
    static constexpr int blocks = 1, bias = 0, halves = 1;
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
    static Numbers numbers(const uint8_t* w, int, int) {
        return {load_f16(w), load_f16(w + kStrip * offsetof(typename F::Block, m))};
    }
};

}  // namespace ggml::cpu::GGML_ISA
