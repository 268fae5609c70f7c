// Kernels of Q4_0. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/offset_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q4_0 : OffsetFormat<Q4_0> {
    using Block = BlockQ4_0;
    static constexpr int bits = 4, bias = 8, tokens = 6;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles(w + kStrip * offsetof(Block, qs), v);
    }
    static i256 codes(const uint8_t* block) { return load_codes(block + offsetof(Block, qs)); }
    static void unscaled(const Block& block, f32x8 (&out)[4]) {
        to_floats(minus(load_nibbles(block.qs), 8), out);
    }
};

}  // namespace

FREQUENT_BLOCK_KERNELS(Q4_0, strip__q4_0_q8, dot__q4_0, add__q4_0)
PLAIN_KERNELS(Q4_0, stored_dot__q4_0, stored_add__q4_0, tiled_add__q4_0)

}  // namespace ggml::cpu::GGML_ISA
