// Kernels of NVFP4. Its bits are described in ggml/blocks.h. The products of 16 columns with their
// scale are exact in floats, so the sum of two of them rounds once, with or without FMA.
#include "kernels/lanes/accumulate.h"
#include "kernels/lanes/block_kernels.h"
#include "kernels/lanes/plain_rows.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// half_e4m3 of byte i of each lane.
inline f32x8 scales_of(i256 bytes, int i) {
    bytes = bytes & greater8(splat8(127), bytes);  // 127 is 0
    const i256 bits = i < 3 ? shift_left32(bytes, 20 - 8 * i) : shift_right32(bytes, 4);
    return mul(as_float(bits & splat32(127 << 20)), splat(kHalfE4M3));
}

struct NVFP4 {
    using Block = BlockNVFP4;
    static constexpr int blocks = 2, bias = 16, halves = 2, straight = 2, tokens = 8;
    static constexpr bool has_min = false, integers = false;

    static i256 weights(const uint8_t* w, int j, int v) {
        const int word = 4 * j + v / 4 * 2 + v % 2;
        const i256 pairs = load(w + kStrip * offsetof(Block, qs) + kGroup * word);
        return table16(kE2M1, nibbles_of(pairs, v % 4 >= 2));
    }
    static Numbers numbers(const uint8_t* w, int j, int half) {
        return {scales_of(load(w), 2 * j + half), splat(0)};
    }
    // The products of both 16 columns with their scales, less the bias: sums are of 16 activations.
    static f32x8 scaled(f32x8 first_scale, f32x8 second_scale, i256 first, i256 second, i256 sums) {
        first = sub32(first, add_pairs(splat32(bias), sums));
        second = sub32(second, add_pairs(splat32(bias << 16), sums));
        return add_product(mul(first_scale, to_float(first)), second_scale, to_float(second));
    }

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t b, f32x8 (&sum)[T]) {
#pragma GCC unroll 2
        for (int j = 0; j < blocks; j++) {
            i256 weights[8];
            all_weights<NVFP4>(w, j, weights);
            const f32x8 first = numbers(w, j, 0).scale, second = numbers(w, j, 1).scale;
            for (int t = 0; t < T; t++) {
                const auto values = x.values(t, b + j);
                // Four byte products of at most 2 * 28 * 127 fit 16 bits.
                const f32x8 part = scaled(first, second, products16<4, 0>(weights, values),
                                          products16<4, 4>(weights, values), x.sums16(t, b + j));
                sum[t] = add_product(sum[t], x.scale(t, b + j), part);
            }
        }
    }

    // As stored: 16 bytes of nibbles for 32 columns, 8 for each of their scales.
    static i256 codes(const uint8_t* block, int j) {
        const i256 nibbles = load_codes(block + offsetof(Block, qs) + kQ / 2 * j);
        return table16(kE2M1, swap_middle(nibbles));
    }
    static i256 products(i256 codes, i256 x) { return code_products(codes, x); }
    template <typename X>
    static f32x8 add_products(f32x8 sum, const uint8_t* const (&block)[8], int j,
                              const i256 (&product)[8], const X& x) {
        i256 first, second;
        code_half_totals(product, first, second);
        uint16_t pairs[8];
        for (int i = 0; i < 8; i++) std::memcpy(pairs + i, block[i] + 2 * j, sizeof(pairs[i]));
        const i256 scales = widen16(pairs);
        const f32x8 part =
            scaled(scales_of(scales, 0), scales_of(scales, 1), first, second, x.sums16());
        return add_product(sum, x.scale(), part);
    }
    static void values(const Block& block, int j, f32x8 (&out)[4]) {
        f32x8 v[4];  // the low nibbles of both halves, and the high ones
        to_floats(minus(table16(kE2M1, load_nibbles(block.qs + kQ / 2 * j)), bias), v);
        for (int i = 0; i < 4; i++) {
            out[i] = mul(splat(half_e4m3(block.d[2 * j + i / 2])), v[i % 2 * 2 + i / 2]);
        }
    }
};

}  // namespace

FREQUENT_BLOCK_KERNELS(NVFP4, strip__nvfp4_q8, dot__nvfp4, add__nvfp4)
PLAIN_KERNELS(NVFP4, stored_dot__nvfp4, stored_add__nvfp4, tiled_add__nvfp4)

}  // namespace ggml::cpu::GGML_ISA
