// Kernels of Q3_K. Its bits are described in ggml/blocks.h.
#include "kernels/formats/k/format_16.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// `sums`: byte products that add up within 16 bits: 4 * 2 * 7 * 127.
struct Q3_K : Format16<Q3_K, false> {
    using Block = BlockQ3_K;
    static constexpr int bias = 4, sums = 4, straight = 8;
    static HalfFactors factors(const uint8_t* w, int j) {
        const uint8_t* packed = w + kStrip * offsetof(Block, scales);
        const int k = j / 2;  // groups 4 k .. 4 k + 3
        const i256 bytes = load(packed + kGroup * (k % 2));
        const i256 low = nibbles_of(bytes, k >= 2);
        const i256 high = shift_right16(load(packed + 2 * kGroup), 2 * k) & splat8(3);
        const i256 scales = sub8(low | shift_left16(high, 4), splat8(32));
        return half_factors(scales, scales, j);
    }
    static i256 weights(const uint8_t* w, int j, int v) {
        i256 high = load(w + kStrip * offsetof(Block, hmask) + kGroup * v);
        high = j < 2 ? shift_left16(high, 2 - j) : shift_right16(high, j - 2);
        return two_bits(w + kStrip * offsetof(Block, qs), j, v) | (high & splat8(4));
    }
};

struct StoredQ3_K : Format16<StoredQ3_K, false, Stored> {
    using Block = BlockQ3_K;
    static constexpr int bias = 4, sums = 4;
    static HalfFactors factors(const uint8_t* w, int) {
        const i256 pairs = q3_scales(w + offsetof(Block, scales));
        return half_factors(pairs, pairs, 0);
    }
    static i256 weights(const uint8_t* w, int, int v) {
        const i256 high = word(w + offsetof(Block, hmask) + 4 * v);
        const i256 bit = shift_right_each<0, 1, 2, 3, 4, 5, 6, 7>(high) & splat8(1);
        return stored_two_bits(w + offsetof(Block, qs), v) | shift_left32(bit, 2);
    }
};

}  // namespace

BLOCK_KERNELS(Q3_K, strip__q3_k_q8, dot__q3_k, add__q3_k)
STORED_KERNELS(StoredQ3_K, stored_dot__q3_k, stored_add__q3_k)

}  // namespace ggml::cpu::GGML_ISA
