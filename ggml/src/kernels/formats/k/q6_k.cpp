// Kernels of Q6_K. Its bits are described in ggml/blocks.h.
#include "kernels/formats/k/format_16.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// `sums`: byte products that add up within 16 bits: 2 * 2 * 63 * 127.
struct Q6_K : Format16<Q6_K, false> {
    using Block = BlockQ6_K;
    static constexpr int bias = 32, sums = 2;
    static HalfFactors factors(const uint8_t* w, int j) {
        const i256 scales = load(w + kStrip * offsetof(Block, scales) + kGroup * (j / 2));
        return half_factors(scales, scales, j);
    }
    static i256 weights(const uint8_t* w, int j, int v) {
        const int h = j / 4, i = j % 4;
        const i256 pair =
            load(w + kStrip * offsetof(Block, ql) + kGroup * (16 * h + 8 * (i % 2) + v));
        i256 high = load(w + kStrip * offsetof(Block, qh) + kGroup * (8 * h + v));
        high = i < 2 ? shift_left16(high, 4 - 2 * i) : shift_right16(high, 2 * i - 4);
        return nibbles_of(pair, i >= 2) | (high & splat8(48));
    }
};

struct StoredQ6_K : Format16<StoredQ6_K, false, Stored> {
    using Block = BlockQ6_K;
    static constexpr int bias = 32, sums = 2;
    static HalfFactors factors(const uint8_t* w, int) {
        const i256 pairs = widen16(w + offsetof(Block, scales));
        return half_factors(pairs, pairs, 0);
    }
    static i256 weights(const uint8_t* w, int, int v) {
        const i256 pairs = words<0, 1, 0, 1, 2, 3, 2, 3>(w + offsetof(Block, ql) + 4 * v, 32);
        const i256 low = shift_right_each<0, 0, 4, 4, 0, 0, 4, 4>(pairs) & splat8(15);
        return low | shift_left32(stored_two_bits(w + offsetof(Block, qh), v), 4);
    }
};

}  // namespace

BLOCK_KERNELS(Q6_K, strip__q6_k_q8, dot__q6_k, add__q6_k)
STORED_KERNELS(StoredQ6_K, stored_dot__q6_k, stored_add__q6_k)

}  // namespace ggml::cpu::GGML_ISA
