// Kernels of IQ2_XXS, IQ2_XS and IQ2_S. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grids/grid_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

template <typename P>
struct IQ2_XXS {
    using Block = BlockIQ2_XXS;
    using Place = P;
    static constexpr const uint64_t (&grid)[256] = kGrids.iq2_xxs;
    static constexpr int bits = 6;
    static constexpr bool whole_bytes = true;
    static f32x8 d(const uint8_t* w) { return P::halves(w, offsetof(Block, d)); }

    IQ2_XXS(const uint8_t* from, int group)
        : w(from),
          j(group),
          high(P::template word<2, 1>(w, offsetof(Block, qs), j)),
          signs(with_eighth_bits(four_bytes(high))) {}
    i256 index(int l) const {
        return byte_of(P::template word<2, 0>(w, offsetof(Block, qs), j), l);
    }
    const uint8_t* lane(int r) const { return P::template lane<2>(w, offsetof(Block, qs), j, r); }
    i256 negative(int v) const { return negative_of(signs, v); }
    i256 factors() const { return odd_factor(shift_right32(high, 28), 15); }

    const uint8_t* const w;
    const int j;
    const i256 high, signs;
};

template <typename P>
struct IQ2_XS {
    using Block = BlockIQ2_XS;
    using Place = P;
    static constexpr const uint64_t (&grid)[512] = kGrids.iq2_xs;
    static constexpr int bits = 6;
    static constexpr bool whole_bytes = false;
    static f32x8 d(const uint8_t* w) { return P::halves(w, offsetof(Block, d)); }

    IQ2_XS(const uint8_t* w, int j)
        : first(P::template word<2, 0>(w, offsetof(Block, qs), j)),
          second(P::template word<2, 1>(w, offsetof(Block, qs), j)),
          scales(P::byte(w, offsetof(Block, scales), j)),
          signs(with_eighth_bits((shift_right32(first, 9) & splat32(0x7f)) |
                                 (shift_right32(first, 17) & splat32(0x7f00)) |
                                 (shift_left32(second, 7) & splat32(0x7f0000)) |
                                 (shift_right32(second, 1) & splat32(0x7f000000)))) {}
    i256 index(int l) const {
        return shift_right32(l < 2 ? first : second, 16 * (l % 2)) & splat32(511);
    }
    i256 negative(int v) const { return negative_of(signs, v); }
    i256 factors() const { return two_factors(scales, 4); }

    const i256 first, second, scales, signs;
};

template <typename P>
struct IQ2_S {
    using Block = BlockIQ2_S;
    using Place = P;
    static constexpr const uint64_t (&grid)[1024] = kGrids.iq2_s;
    static constexpr int bits = 6;
    static constexpr bool whole_bytes = false;
    static f32x8 d(const uint8_t* w) { return P::halves(w, offsetof(Block, d)); }

    IQ2_S(const uint8_t* w, int j)
        : qs(P::template word<1, 0>(w, offsetof(Block, qs), j)),
          signs(P::template word<1, 0>(w, offsetof(Block, signs), j)),
          qh(P::byte(w, offsetof(Block, qh), j)),
          scales(P::byte(w, offsetof(Block, scales), j)) {}
    i256 index(int l) const {
        return byte_of(qs, l) | (shift_left32(qh, 8 - 2 * l) & splat32(0x300));
    }
    i256 negative(int v) const { return negative_of(signs, v); }
    i256 factors() const { return two_factors(scales, 4); }

    const i256 qs, signs, qh, scales;
};

}  // namespace

GRID_KERNELS(iq2_xxs, IQ2_XXS)
GRID_KERNELS(iq2_xs, IQ2_XS)
GRID_KERNELS(iq2_s, IQ2_S)

}  // namespace ggml::cpu::GGML_ISA
