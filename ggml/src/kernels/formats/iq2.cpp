// Kernels of IQ2_XXS, IQ2_XS and IQ2_S. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grid_format.h"

namespace ggml::cpu::GGML_ISA {

GRID_KERNELS(iq2_xxs, BlockIQ2_XXS)
GRID_KERNELS(iq2_xs, BlockIQ2_XS)
GRID_KERNELS(iq2_s, BlockIQ2_S)

}  // namespace ggml::cpu::GGML_ISA
