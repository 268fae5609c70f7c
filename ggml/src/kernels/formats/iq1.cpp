// Kernels of IQ1_S and IQ1_M. Their bits are described in ggml/blocks.h.
#include "kernels/formats/grid_format.h"

namespace ggml::cpu::GGML_ISA {

GRID_KERNELS(iq1_s, BlockIQ1_S)
GRID_KERNELS(iq1_m, BlockIQ1_M)

}  // namespace ggml::cpu::GGML_ISA
