// Kernels of IQ1_S and IQ1_M. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grids/grid_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// Three bits above an index of eight.
inline i256 eleven_bits(i256 low, i256 high) {
    return low | shift_left32(high & splat32(7), 8);
}

template <typename P>
struct IQ1_S {
    using Block = BlockIQ1_S;
    using Place = P;
    static constexpr const uint64_t (&grid)[2048] = kGrids.iq1;
    static constexpr int bits = 5;
    static constexpr bool whole_bytes = false;
    static f32x8 d(const uint8_t* w) { return P::halves(w, offsetof(Block, d)); }

    IQ1_S(const uint8_t* w, int j)
        : qs(P::template word<1, 0>(w, offsetof(Block, qs), j)),
          qh(P::half(w, offsetof(Block, qh), j)) {}
    i256 index(int l) const { return eleven_bits(byte_of(qs, l), shift_right32(qh, 3 * l)); }
    i256 negative(int) const { return has_bit(lane_bytes(qh, 1), splat8(0x80)); }
    i256 factors() const { return odd_factor(shift_right32(qh, 12), 7); }

    const i256 qs, qh;
};

template <typename P>
struct IQ1_M {
    using Block = BlockIQ1_M;
    using Place = P;
    static constexpr const uint64_t (&grid)[2048] = kGrids.iq1;
    static constexpr int bits = 5;
    static constexpr bool whole_bytes = false;
    static f32x8 d(const uint8_t* w) {
        if constexpr (P::blocks == 1) {
            return splat(f16_value(GridBlock<Block>::d(*reinterpret_cast<const Block*>(w))));
        } else {
            const uint8_t* const scales = w + kStrip * offsetof(Block, scales);
            const i256 a = load(scales), b = load(scales + kGroup);
            const InLanes bits(
                (shift_right32(a, 12) & splat32(15)) | (shift_right32(a, 24) & splat32(0xf0)) |
                (shift_right32(b, 4) & splat32(0xf00)) | (shift_right32(b, 16) & splat32(0xf000)));
            f16_t halves[kStrip];
            for (int r = 0; r < kStrip; r++) halves[r] = f16_t(bits(0, r));
            return load_f16(halves);
        }
    }

    IQ1_M(const uint8_t* w, int j)
        : qs(P::template word<1, 0>(w, offsetof(Block, qs), j)),
          qh(P::half(w, offsetof(Block, qh), j)),
          scales(P::six_bits(w, offsetof(Block, scales), j)) {}
    i256 index(int l) const { return eleven_bits(byte_of(qs, l), shift_right32(qh, 4 * l)); }
    i256 negative(int v) const {
        return has_bit(lane_bytes(qh, v / 4), splat8(v / 2 % 2 ? 0x80 : 0x08));
    }
    i256 factors() const { return two_factors(scales, 3); }

    const i256 qs, qh, scales;
};

}  // namespace

GRID_KERNELS(IQ1_S, strip__iq1_s_q8, dot__iq1_s, add__iq1_s, stored_dot__iq1_s, stored_add__iq1_s)
GRID_KERNELS(IQ1_M, strip__iq1_m_q8, dot__iq1_m, add__iq1_m, stored_dot__iq1_m, stored_add__iq1_m)

}  // namespace ggml::cpu::GGML_ISA
