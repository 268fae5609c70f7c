// Kernels of IQ3_XXS and IQ3_S. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grids/signed_grids.h"

namespace ggml::cpu::GGML_ISA {

namespace {

template <typename P>
struct IQ3_XXS : XxsGrid<BlockIQ3_XXS, P> {
    static constexpr const uint32_t (&grid)[256] = kGrids.iq3_xxs;

    IQ3_XXS(const uint8_t* w, int j)
        : XxsGrid<BlockIQ3_XXS, P>(w, j,
                                   P::template word<1, 0>(w, offsetof(BlockIQ3_XXS, scales), j)) {}
};

template <typename P>
struct IQ3_S : SGrid<BlockIQ3_S, P, 2> {
    static constexpr const uint32_t (&grid)[512] = kGrids.iq3_s;
    static constexpr int bits = 4;

    IQ3_S(const uint8_t* w, int j)
        : SGrid<BlockIQ3_S, P, 2>(w, j), scales(P::nibble(w, offsetof(BlockIQ3_S, scales), j)) {}
    i256 factors() const { return odd_factor(scales, 15); }

    const i256 scales;
};

}  // namespace

GRID_KERNELS(IQ3_XXS, strip__iq3_xxs_q8, dot__iq3_xxs, add__iq3_xxs, stored_dot__iq3_xxs,
             stored_add__iq3_xxs)
GRID_KERNELS(IQ3_S, strip__iq3_s_q8, dot__iq3_s, add__iq3_s, stored_dot__iq3_s, stored_add__iq3_s)

}  // namespace ggml::cpu::GGML_ISA
