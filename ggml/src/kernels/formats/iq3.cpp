// Kernels of IQ3_XXS and IQ3_S. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grid_format.h"

namespace ggml::cpu::GGML_ISA {

GRID_KERNELS(iq3_xxs, BlockIQ3_XXS)
GRID_KERNELS(iq3_s, BlockIQ3_S)

}  // namespace ggml::cpu::GGML_ISA
