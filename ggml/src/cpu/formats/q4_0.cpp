// Kernels of Q4_0. Its bits are described in ggml/blocks.h.
#include "cpu/formats/offset_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q4_0 : OffsetFormat<Q4_0> {
    using Block = BlockQ4_0;
    static constexpr int bits = 4, bias = 8, tokens = 6;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles(w + kStrip * offsetof(Block, qs), v);
    }
    static void values(const Block& block, f32x8 (&out)[4]) {
        to_floats(minus(load_nibbles(block.qs), 8), out);
        for (f32x8& v : out) v = mul(splat(f16_value(block.d)), v);
    }
};

}  // namespace

FREQUENT_BLOCK_KERNELS(q4_0, Q4_0)
ACCUMULATE_KERNEL(q4_0, Q4_0)

}  // namespace ggml::cpu::GGML_ISA
