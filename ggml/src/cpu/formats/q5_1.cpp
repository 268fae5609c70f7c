// Kernels of Q5_1. Its bits are described in ggml/blocks.h.
#include "cpu/formats/min_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q5_1 : MinFormat<Q5_1> {
    using Block = BlockQ5_1;
    static constexpr int bits = 5, tokens = 8;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs),
                                v);
    }
    static void values(const Block& block, f32x8 (&out)[4]) {
        const b32 q = add_bit_4(load_nibbles(block.qs), block.qh);
        scaled(q, splat(f16_value(block.d)), splat(f16_value(block.m)), out);
    }
};

}  // namespace

BLOCK_KERNELS(q5_1, Q5_1)
ACCUMULATE_KERNEL(q5_1, Q5_1)

}  // namespace ggml::cpu::GGML_ISA
