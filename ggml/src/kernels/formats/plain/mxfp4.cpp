// Kernels of MXFP4. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/offset_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct MXFP4 : OffsetFormat<MXFP4> {
    using Block = BlockMXFP4;
    static constexpr int bits = 5, bias = 16, tokens = 8;
    static i256 weights(const uint8_t* w, int, int v) {
        return table16(kE2M1, nibbles(w + kStrip * offsetof(Block, qs), v));
    }
    static i256 codes(const uint8_t* block) {
        return table16(kE2M1, load_codes(block + offsetof(Block, qs)));
    }
    static void unscaled(const Block& block, f32x8 (&out)[4]) {
        to_floats(minus(table16(kE2M1, load_nibbles(block.qs)), 16), out);
    }
};

}  // namespace

FREQUENT_BLOCK_KERNELS(MXFP4, strip__mxfp4_q8, dot__mxfp4, add__mxfp4)
PLAIN_KERNELS(MXFP4, stored_dot__mxfp4, stored_add__mxfp4, tiled_add__mxfp4)

}  // namespace ggml::cpu::GGML_ISA
