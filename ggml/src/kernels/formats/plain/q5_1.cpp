// Kernels of Q5_1. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/min_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q5_1 : MinFormat<Q5_1> {
    using Block = BlockQ5_1;
    static constexpr int bits = 5, tokens = 8;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs),
                                v);
    }
    static i256 codes(const uint8_t* block) {
        return add_bit_4(load_codes(block + offsetof(Block, qs)), block + offsetof(Block, qh));
    }
    static void unscaled(const Block& block, f32x8 (&out)[4]) {
        to_floats(add_bit_4(load_nibbles(block.qs), block.qh), out);
    }
};

}  // namespace

BLOCK_KERNELS(Q5_1, strip__q5_1_q8, dot__q5_1, add__q5_1)
PLAIN_KERNELS(Q5_1, stored_dot__q5_1, stored_add__q5_1, tiled_add__q5_1)

}  // namespace ggml::cpu::GGML_ISA
