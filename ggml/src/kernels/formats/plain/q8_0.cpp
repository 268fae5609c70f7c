// Kernels of Q8_0. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/signed_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q8_0 : SignedFormat<Q8_0> {
    using Block = BlockQ8_0;
    static constexpr int blocks = 1;
    static i256 weights(const uint8_t* w, int, int v) {
        return load(w + kStrip * offsetof(Block, qs) + kGroup * v);
    }
    static f32x8 scales(const uint8_t* w, int) { return load_f16(w); }
    static i256 codes(const uint8_t* block) { return load(block + offsetof(Block, qs)); }
    static void unscaled(const Block& block, f32x8 (&out)[4]) {
        for (int i = 0; i < 4; i++) out[i] = load_i8(block.qs + 8 * i);
    }
};

}  // namespace

FREQUENT_BLOCK_KERNELS(Q8_0, strip__q8_0_q8, dot__q8_0, add__q8_0)
PLAIN_KERNELS(Q8_0, stored_dot__q8_0, stored_add__q8_0, tiled_add__q8_0)

}  // namespace ggml::cpu::GGML_ISA
