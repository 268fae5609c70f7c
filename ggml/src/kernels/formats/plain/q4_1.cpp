// Kernels of Q4_1. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/min_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q4_1 : MinFormat<Q4_1> {
    using Block = BlockQ4_1;
    static constexpr int bits = 4, tokens = 4;
    static i256 weights(const uint8_t* w, int, int v) {
        return nibbles(w + kStrip * offsetof(Block, qs), v);
    }
    static i256 codes(const uint8_t* block) { return load_codes(block + offsetof(Block, qs)); }
    static void unscaled(const Block& block, f32x8 (&out)[4]) {
        to_floats(load_nibbles(block.qs), out);
    }
};

}  // namespace

BLOCK_KERNELS(Q4_1, strip__q4_1_q8, dot__q4_1, add__q4_1)
PLAIN_KERNELS(Q4_1, stored_dot__q4_1, stored_add__q4_1, tiled_add__q4_1)

}  // namespace ggml::cpu::GGML_ISA
