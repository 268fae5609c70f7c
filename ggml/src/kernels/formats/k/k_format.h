// The family of Q4_K and Q5_K: unsigned codes, and a 6-bit scale and min per 32 columns.
#pragma once

#include "formats/parts.h"
#include "kernels/lanes/block_kernels.h"

namespace ggml::cpu::GGML_ISA {

// The scales and mins of eight groups, as bytes. In a strip, the 12 packed bytes are three groups
// of a register each. A few operations unpack four scales or mins for all rows.
struct GroupBytes {
    explicit GroupBytes(const GroupFactors& f) {
        scales[0] = widen8(f.scales);
        mins[0] = widen8(f.mins);
    }
    explicit GroupBytes(const uint8_t* packed) {
        const i256 a = load(packed), b = load(packed + kGroup), c = load(packed + 2 * kGroup);
        const i256 six = splat8(63), top = splat8(48);
        scales[0] = a & six;
        mins[0] = b & six;
        scales[1] = low_nibbles(c) | (shift_right16(a, 2) & top);
        mins[1] = high_nibbles(c) | (shift_right16(b, 2) & top);
    }
    i256 scale(int j) const { return factor(scales[j / 4], j % 4); }
    // Scale or min j as floats.
    static f32x8 number(const i256 (&bytes)[2], int j) {
        return to_float(shift_right32(bytes[j / 4], 8 * (j % 4)) & splat32(255));
    }
    i256 scales[2], mins[2];
};

// The integer scales of the groups multiply the exact sums. d and the mins are applied once per 256
// columns.
template <typename F, typename Place = Interleaved>
struct KFormat {
    static constexpr int blocks = Place::blocks, bias = 0, halves = 1, straight = 4;
    static constexpr bool has_min = true, integers = true;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, f32x8 (&sum)[T]) {
        const GroupBytes groups = F::groups(w);
        f32x8 part[T];
        for (int t = 0; t < T; t++) part[t] = splat(0);
#pragma GCC unroll 8
        for (int j = 0; j < blocks; j++) {
            const int64_t b = first + j;
            i256 weights[8];
            all_weights<F>(w, j, weights);
            const i256 scale = groups.scale(j);
            for (int t = 0; t < T; t++) {
                const i256 product = products32<F::bits>(weights, x.values(t, b), scale);
                part[t] = add_product(part[t], x.scale(t, b), to_float(product));
            }
        }
        const f32x8 unit = Place::halves(w, offsetof(typename F::Block, d));
        const f32x8 unit_min = Place::halves(w, offsetof(typename F::Block, dmin));
        f32x8 min[blocks];
#pragma GCC unroll 8
        for (int j = 0; j < blocks; j++) {
            min[j] = mul(unit_min, GroupBytes::number(groups.mins, j));
        }
        for (int t = 0; t < T; t++) {
            sum[t] = add_product(sum[t], unit, part[t]);
#pragma GCC unroll 8
            for (int j = 0; j < blocks; j++) {
                sum[t] = sub_product(sum[t], min[j], x.scaled_sum(t, first + j));
            }
        }
    }
    static Numbers numbers(const uint8_t* w, int j, int) {
        const GroupBytes groups = F::groups(w);
        const f32x8 unit = Place::halves(w, offsetof(typename F::Block, d));
        const f32x8 unit_min = Place::halves(w, offsetof(typename F::Block, dmin));
        return {mul(unit, GroupBytes::number(groups.scales, j)),
                sub_product(splat(0), unit_min, GroupBytes::number(groups.mins, j))};
    }
};

// How strips of both formats hold groups and nibbles v of the 32 columns j.
template <typename Block>
inline GroupBytes strip_groups(const uint8_t* w) {
    return GroupBytes(w + kStrip * offsetof(Block, scales));
}
template <typename Block>
inline i256 strip_nibbles(const uint8_t* w, int j, int v) {
    return nibbles_of(load(w + kStrip * offsetof(Block, qs) + kGroup * (8 * (j / 2) + v)), j % 2);
}

// The same of a block as stored, for its eight groups. Each 32 bytes of nibbles hold two groups.
template <typename Block>
inline GroupBytes stored_groups(const uint8_t* w) {
    return GroupBytes(group_factors(w + offsetof(Block, scales)));
}
template <typename Block>
inline i256 stored_nibbles(const uint8_t* w, int v) {
    const i256 pairs = words<0, 0, 1, 1, 2, 2, 3, 3>(w + offsetof(Block, qs) + 4 * v, 32);
    return shift_right_each<0, 4, 0, 4, 0, 4, 0, 4>(pairs) & splat8(15);
}

}  // namespace ggml::cpu::GGML_ISA
