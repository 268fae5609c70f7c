// Kernels of IQ4_NL. Its bits are described in ggml/blocks.h.
#include "cpu/formats/signed_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct IQ4_NL : SignedFormat<IQ4_NL> {
    using Block = BlockIQ4_NL;
    static constexpr int blocks = 1;
    static i256 weights(const uint8_t* w, int, int v) {
        return table16(kIQ4, nibbles(w + kStrip * offsetof(Block, qs), v));
    }
    static f32x8 scales(const uint8_t* w, int) { return load_f16(w); }
    static void values(const Block& block, f32x8 (&out)[4]) {
        scaled(table16(kIQ4, load_nibbles(block.qs)), splat(f16_value(block.d)), splat(0), out);
    }
};

}  // namespace

BLOCK_KERNELS(iq4_nl, IQ4_NL)
ACCUMULATE_KERNEL(iq4_nl, IQ4_NL)

}  // namespace ggml::cpu::GGML_ISA
