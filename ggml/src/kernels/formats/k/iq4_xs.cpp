// Kernels of IQ4_XS. Its bits are described in ggml/blocks.h.
#include "kernels/formats/plain/signed_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// scale: 6 bits per lane, the low four and the upper two.
inline f32x8 scaled_unit(f32x8 unit, i256 low, i256 high) {
    const i256 scale = (low & splat32(15)) | shift_left32(high & splat32(3), 4);
    return mul(unit, to_float(sub32(scale, splat32(32))));
}

struct IQ4_XS : SignedFormat<IQ4_XS> {
    using Block = BlockIQ4_XS;
    static constexpr int blocks = 8;
    static i256 weights(const uint8_t* w, int j, int v) {
        return table16(kIQ4, nibbles(w + kStrip * (offsetof(Block, qs) + 16 * j), v));
    }
    static f32x8 scales(const uint8_t* w, int j) {
        const i256 low = load(w + kStrip * offsetof(Block, scales_l));
        const i256 high = widen16(w + kStrip * offsetof(Block, scales_h));
        return scaled_unit(load_f16(w), shift_right32(low, 4 * j), shift_right32(high, 2 * j));
    }
};

// As stored: each group has 16 bytes of nibbles.
struct StoredIQ4_XS : SignedFormat<StoredIQ4_XS> {
    using Block = BlockIQ4_XS;
    static constexpr int blocks = 1;
    static i256 weights(const uint8_t* w, int, int v) {
        const i256 pairs = words_16_apart(w + offsetof(Block, qs) + 4 * (v % 4));
        return table16(kIQ4, nibbles_of(pairs, v >= 4));
    }
    static f32x8 scales(const uint8_t* w, int) {
        uint16_t high;
        std::memcpy(&high, w + offsetof(Block, scales_h), sizeof(high));
        const i256 low = word(w + offsetof(Block, scales_l));
        return scaled_unit(Stored::halves(w, offsetof(Block, d)),
                           shift_right_each<0, 4, 8, 12, 16, 20, 24, 28>(low),
                           shift_right_each<0, 2, 4, 6, 8, 10, 12, 14>(splat32(high)));
    }
};

}  // namespace

BLOCK_KERNELS(IQ4_XS, strip__iq4_xs_q8, dot__iq4_xs, add__iq4_xs)
STORED_KERNELS(StoredIQ4_XS, stored_dot__iq4_xs, stored_add__iq4_xs)

}  // namespace ggml::cpu::GGML_ISA
