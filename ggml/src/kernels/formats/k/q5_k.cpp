// Kernels of Q5_K. Its bits are described in ggml/blocks.h.
#include "kernels/formats/k/k_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q5_K : KFormat<Q5_K> {
    using Block = BlockQ5_K;
    static constexpr int bits = 5, tokens = 8;
    static GroupBytes groups(const uint8_t* w) { return strip_groups<Block>(w); }
    static i256 weights(const uint8_t* w, int j, int v) {
        i256 high = load(w + kStrip * offsetof(Block, qh) + kGroup * v);
        high = j < 4 ? shift_left16(high, 4 - j) : shift_right16(high, j - 4);
        return strip_nibbles<Block>(w, j, v) | (high & splat8(16));
    }
};

struct StoredQ5_K : KFormat<StoredQ5_K, Stored> {
    using Block = BlockQ5_K;
    static constexpr int bits = 5;
    static GroupBytes groups(const uint8_t* w) { return stored_groups<Block>(w); }
    static i256 weights(const uint8_t* w, int, int v) {
        const i256 high = word(w + offsetof(Block, qh) + 4 * v);
        const i256 bit = shift_right_each<0, 1, 2, 3, 4, 5, 6, 7>(high) & splat8(1);
        return stored_nibbles<Block>(w, v) | shift_left32(bit, 4);
    }
};

}  // namespace

BLOCK_KERNELS(Q5_K, strip__q5_k_q8, dot__q5_k, add__q5_k)
STORED_KERNELS(StoredQ5_K, stored_dot__q5_k, stored_add__q5_k)

}  // namespace ggml::cpu::GGML_ISA
