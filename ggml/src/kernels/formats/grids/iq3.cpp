// Kernels of IQ3_XXS and IQ3_S. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grids/grid_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

template <typename P>
struct IQ3_XXS {
    using Block = BlockIQ3_XXS;
    using Place = P;
    static constexpr const uint32_t (&grid)[256] = kGrids.iq3_xxs;
    static constexpr int bits = 6;
    static constexpr bool whole_bytes = true;
    static f32x8 d(const uint8_t* w) { return P::halves(w, offsetof(Block, d)); }

    IQ3_XXS(const uint8_t* from, int group)
        : w(from),
          j(group),
          high(P::template word<1, 0>(w, offsetof(Block, scales), j)),
          signs(with_eighth_bits(four_bytes(high))) {}
    i256 index(int v) const {
        const size_t qs = offsetof(Block, qs);
        return byte_of(v < 4 ? P::template word<2, 0>(w, qs, j) : P::template word<2, 1>(w, qs, j),
                       v % 4);
    }
    const uint8_t* lane(int r) const { return P::template lane<2>(w, offsetof(Block, qs), j, r); }
    i256 negative(int v) const { return negative_of(signs, v); }
    i256 factors() const { return odd_factor(shift_right32(high, 28), 15); }

    const uint8_t* const w;
    const int j;
    const i256 high, signs;
};

template <typename P>
struct IQ3_S {
    using Block = BlockIQ3_S;
    using Place = P;
    static constexpr const uint32_t (&grid)[512] = kGrids.iq3_s;
    static constexpr int bits = 4;
    static constexpr bool whole_bytes = false;
    static f32x8 d(const uint8_t* w) { return P::halves(w, offsetof(Block, d)); }

    IQ3_S(const uint8_t* w, int j)
        : first(P::template word<2, 0>(w, offsetof(Block, qs), j)),
          second(P::template word<2, 1>(w, offsetof(Block, qs), j)),
          qh(P::byte(w, offsetof(Block, qh), j)),
          signs(P::template word<1, 0>(w, offsetof(Block, signs), j)),
          scales(P::nibble(w, offsetof(Block, scales), j)) {}
    i256 index(int v) const {
        return byte_of(v < 4 ? first : second, v % 4) | (shift_left32(qh, 8 - v) & splat32(0x100));
    }
    i256 negative(int v) const { return negative_of(signs, v); }
    i256 factors() const { return odd_factor(scales, 15); }

    const i256 first, second, qh, signs, scales;
};

}  // namespace

GRID_KERNELS(iq3_xxs, IQ3_XXS)
GRID_KERNELS(iq3_s, IQ3_S)

}  // namespace ggml::cpu::GGML_ISA
