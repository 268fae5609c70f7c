// Kernels of Q2_K. Its bits are described in ggml/blocks.h.
#include "kernels/formats/k/format_16.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// `sums`: byte products that add up within 16 bits: 4 * 2 * 3 * 127.
struct Q2_K : Format16<Q2_K, true> {
    using Block = BlockQ2_K;
    static constexpr int bias = 0, sums = 4;
    static HalfFactors factors(const uint8_t* w, int j) {
        const i256 bytes = load(w + kStrip * offsetof(Block, scales) + kGroup * (j / 2));
        return half_factors(low_nibbles(bytes), high_nibbles(bytes), j);
    }
    static i256 weights(const uint8_t* w, int j, int v) {
        return two_bits(w + kStrip * offsetof(Block, qs), j, v);
    }
};

struct StoredQ2_K : Format16<StoredQ2_K, true, Stored> {
    using Block = BlockQ2_K;
    static constexpr int bias = 0, sums = 4;
    static HalfFactors factors(const uint8_t* w, int) {
        const i256 pairs = widen16(w + offsetof(Block, scales));
        return half_factors(low_nibbles(pairs), high_nibbles(pairs), 0);
    }
    static i256 weights(const uint8_t* w, int, int v) {
        return stored_two_bits(w + offsetof(Block, qs), v);
    }
};

}  // namespace

BLOCK_KERNELS(Q2_K, strip__q2_k_q8, dot__q2_k, add__q2_k)
STORED_KERNELS(StoredQ2_K, stored_dot__q2_k, stored_add__q2_k)

}  // namespace ggml::cpu::GGML_ISA
