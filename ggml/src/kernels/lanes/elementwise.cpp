// Norms, activations and the like, for instruction sets of eight lanes.
#include "kernels/lanes/elementwise.h"

#include "kernels/simd.h"

namespace ggml::cpu::GGML_ISA {

ELEMENTWISE_KERNELS

}  // namespace ggml::cpu::GGML_ISA
