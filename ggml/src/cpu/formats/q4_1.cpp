// Kernels of Q4_1. Its bits are described in ggml/blocks.h.
#include "cpu/formats/min_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q4_1 : MinFormat<Q4_1> {
    using Block = BlockQ4_1;
    static constexpr int bits = 4, tokens = 4;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles(w + kStrip * offsetof(Block, qs), v);
    }
    static void values(const Block& block, f32x8 (&out)[4]) {
        scaled(load_nibbles(block.qs), splat(f16_value(block.d)), splat(f16_value(block.m)), out);
    }
};

}  // namespace

BLOCK_KERNELS(q4_1, Q4_1)
ACCUMULATE_KERNEL(q4_1, Q4_1)

}  // namespace ggml::cpu::GGML_ISA
