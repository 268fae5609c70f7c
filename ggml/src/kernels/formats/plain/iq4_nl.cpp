// Kernels of IQ4_NL. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/signed_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct IQ4_NL : SignedFormat<IQ4_NL> {
    using Block = BlockIQ4_NL;
    static constexpr int blocks = 1;
    static i256 weights(const uint8_t* w, int, int v) {
        return table16(kIQ4, nibbles(w + kStrip * offsetof(Block, qs), v));
    }
    static f32x8 scales(const uint8_t* w, int) { return load_f16(w); }
    static i256 codes(const uint8_t* block) {
        return table16(kIQ4, load_codes(block + offsetof(Block, qs)));
    }
    static void unscaled(const Block& block, f32x8 (&out)[4]) {
        to_floats(table16(kIQ4, load_nibbles(block.qs)), out);
    }
};

}  // namespace

BLOCK_KERNELS(IQ4_NL, strip__iq4_nl_q8, dot__iq4_nl, add__iq4_nl)
PLAIN_KERNELS(IQ4_NL, stored_dot__iq4_nl, stored_add__iq4_nl, tiled_add__iq4_nl)

}  // namespace ggml::cpu::GGML_ISA
