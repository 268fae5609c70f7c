// Kernels of Q5_0. Its bits are described in ggml/blocks.h.
#include "cpu/formats/offset_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q5_0 : OffsetFormat<Q5_0> {
    using Block = BlockQ5_0;
    static constexpr int bits = 5, bias = 16, tokens = 8;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs),
                                v);
    }
    static void values(const Block& block, f32x8 (&out)[4]) {
        const b32 q = add_bit_4(load_nibbles(block.qs), block.qh);
        scaled(minus(q, 16), splat(f16_value(block.d)), splat(0), out);
    }
};

}  // namespace

BLOCK_KERNELS(q5_0, Q5_0)
ACCUMULATE_KERNEL(q5_0, Q5_0)

}  // namespace ggml::cpu::GGML_ISA
