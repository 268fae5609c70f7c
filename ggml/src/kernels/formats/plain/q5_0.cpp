// Kernels of Q5_0. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/offset_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q5_0 : OffsetFormat<Q5_0> {
    using Block = BlockQ5_0;
    static constexpr int bits = 5, bias = 16, tokens = 8;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs),
                                v);
    }
    static i256 codes(const uint8_t* block) {
        return add_bit_4(load_codes(block + offsetof(Block, qs)), block + offsetof(Block, qh));
    }
    static void unscaled(const Block& block, f32x8 (&out)[4]) {
        to_floats(minus(add_bit_4(load_nibbles(block.qs), block.qh), 16), out);
    }
};

}  // namespace

FREQUENT_BLOCK_KERNELS(Q5_0, strip__q5_0_q8, dot__q5_0, add__q5_0)
PLAIN_KERNELS(Q5_0, stored_dot__q5_0, stored_add__q5_0, tiled_add__q5_0)

}  // namespace ggml::cpu::GGML_ISA
