// The family of formats with the values -d, 0 and d: codes 0 to 2, and one scale per 256 columns.
#pragma once

#include "kernels/lanes/block_kernels.h"

namespace ggml::cpu::GGML_ISA {

template <typename F, typename Place = Interleaved>
struct TernaryFormat {
    static constexpr int blocks = Place::blocks, bias = 1, halves = 1, straight = 8;
    static constexpr int tokens = 8;
    static constexpr bool has_min = false, integers = false;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, f32x8 (&sum)[T]) {
        const f32x8 scale = Place::halves(w, offsetof(typename F::Block, d));
#pragma GCC unroll 8
        for (int j = 0; j < blocks; j++) {
            const int64_t b = first + j;
            i256 weights[8];
            all_weights<F>(w, j, weights);
            for (int t = 0; t < T; t++) {
                const i256 product = products32<4>(weights, x.values(t, b));
                const i256 offset = add_pairs(splat16(bias), x.sums16(t, b));
                sum[t] = add_block(sum[t], scale, x.scale(t, b), sub32(product, offset));
            }
        }
    }
    static Numbers numbers(const uint8_t* w, int, int) {
        return {Place::halves(w, offsetof(typename F::Block, d)), splat(0)};
    }
};

}  // namespace ggml::cpu::GGML_ISA
