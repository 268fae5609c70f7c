// The family of formats with a scale per 16 columns: Q2_K, Q3_K, Q6_K. Offsets and mins are
// multiplied by the sums of 16 activations.
#pragma once

#include "kernels/lanes/block_kernels.h"

namespace ggml::cpu::GGML_ISA {

// The scales of both halves of 32 columns, and their mins as a pair.
struct HalfFactors {
    i256 first, second, offset;
};

inline HalfFactors half_factors(i256 scales, i256 offsets, int j) {
    const int a = 2 * (j % 2), b = a + 1;
    return {signed_factor(scales, a), signed_factor(scales, b), pair(offsets, a, b)};
}

template <typename F, bool min, typename Place = Interleaved>
struct Format16 {
    static constexpr int blocks = Place::blocks, halves = 2, straight = 4, tokens = 8;
    static constexpr bool has_min = min, integers = true;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, f32x8 (&sum)[T]) {
        f32x8 part[T], part_min[T];
        for (int t = 0; t < T; t++) part[t] = part_min[t] = splat(0);
#pragma GCC unroll 8
        for (int j = 0; j < blocks; j++) {
            const int64_t b = first + j;
            const HalfFactors f = F::factors(w, j);
            const i256 offsets = has_min ? f.offset : mul16(f.offset, splat16(F::bias));
            i256 weights[8];
            all_weights<F>(w, j, weights);
            for (int t = 0; t < T; t++) {
                const auto values = x.values(t, b);
                i256 product = add32(products16<F::sums, 0>(weights, values, f.first),
                                     products16<F::sums, 4>(weights, values, f.second));
                const i256 offset = add_pairs(offsets, x.sums16(t, b));
                const f32x8 x_scale = x.scale(t, b);
                if (has_min) {
                    part_min[t] = add_product(part_min[t], x_scale, to_float(offset));
                } else {
                    product = sub32(product, offset);
                }
                part[t] = add_product(part[t], x_scale, to_float(product));
            }
        }
        const f32x8 scale = Place::halves(w, offsetof(typename F::Block, d));
        for (int t = 0; t < T; t++) sum[t] = add_product(sum[t], scale, part[t]);
        if constexpr (has_min) {
            const f32x8 scale_min = Place::halves(w, offsetof(typename F::Block, dmin));
            for (int t = 0; t < T; t++) sum[t] = sub_product(sum[t], scale_min, part_min[t]);
        }
    }
    static Numbers numbers(const uint8_t* w, int j, int half) {
        const HalfFactors f = F::factors(w, j);
        const f32x8 unit = Place::halves(w, offsetof(typename F::Block, d));
        Numbers n{mul(unit, short_to_float(half ? f.second : f.first, 0)), splat(0)};
        if constexpr (has_min) {
            const f32x8 unit_min = Place::halves(w, offsetof(typename F::Block, dmin));
            n.min = sub_product(n.min, unit_min, short_to_float(f.offset, half));
        }
        return n;
    }
};

}  // namespace ggml::cpu::GGML_ISA
