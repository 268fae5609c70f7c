// Kernels of IQ2_XXS, IQ2_XS and IQ2_S. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grids/signed_grids.h"

namespace ggml::cpu::GGML_ISA {

namespace {

template <typename P>
struct IQ2_XXS : XxsGrid<BlockIQ2_XXS, P> {
    static constexpr const uint64_t (&grid)[256] = kGrids.iq2_xxs;

    IQ2_XXS(const uint8_t* w, int j)
        : XxsGrid<BlockIQ2_XXS, P>(w, j, P::template word<2, 1>(w, offsetof(BlockIQ2_XXS, qs), j)) {
    }
};

// An index of nine bits and seven of eight signs share 16 bits.
template <typename P>
struct IQ2_XS : SignedGrid<BlockIQ2_XS, P> {
    static constexpr const uint64_t (&grid)[512] = kGrids.iq2_xs;
    static constexpr int bits = 6;
    static constexpr bool whole_bytes = false;

    IQ2_XS(const uint8_t* w, int j)
        : IQ2_XS(P::template word<2, 0>(w, offsetof(BlockIQ2_XS, qs), j),
                 P::template word<2, 1>(w, offsetof(BlockIQ2_XS, qs), j),
                 P::byte(w, offsetof(BlockIQ2_XS, scales), j)) {}
    i256 index(int l) const {
        return shift_right32(l < 2 ? first : second, 16 * (l % 2)) & splat32(511);
    }
    i256 factors() const { return two_factors(scales, 4); }

    const i256 first, second, scales;

 private:
    IQ2_XS(i256 a, i256 b, i256 factors)
        : SignedGrid<BlockIQ2_XS, P>(with_eighth_bits((shift_right32(a, 9) & splat32(0x7f)) |
                                                      (shift_right32(a, 17) & splat32(0x7f00)) |
                                                      (shift_left32(b, 7) & splat32(0x7f0000)) |
                                                      (shift_right32(b, 1) & splat32(0x7f000000)))),
          first(a),
          second(b),
          scales(factors) {}
};

template <typename P>
struct IQ2_S : SGrid<BlockIQ2_S, P, 1> {
    static constexpr const uint64_t (&grid)[1024] = kGrids.iq2_s;
    static constexpr int bits = 6;

    IQ2_S(const uint8_t* w, int j)
        : SGrid<BlockIQ2_S, P, 1>(w, j), scales(P::byte(w, offsetof(BlockIQ2_S, scales), j)) {}
    i256 factors() const { return two_factors(scales, 4); }

    const i256 scales;
};

}  // namespace

GRID_KERNELS(IQ2_XXS, strip__iq2_xxs_q8, dot__iq2_xxs, add__iq2_xxs, stored_dot__iq2_xxs,
             stored_add__iq2_xxs)
GRID_KERNELS(IQ2_XS, strip__iq2_xs_q8, dot__iq2_xs, add__iq2_xs, stored_dot__iq2_xs,
             stored_add__iq2_xs)
GRID_KERNELS(IQ2_S, strip__iq2_s_q8, dot__iq2_s, add__iq2_s, stored_dot__iq2_s, stored_add__iq2_s)

}  // namespace ggml::cpu::GGML_ISA
