// Norms, activations and the like, in registers of sixteen lanes.
#include "kernels/lanes/elementwise.h"

namespace ggml::cpu::avx512 {

ELEMENTWISE_KERNELS

}  // namespace ggml::cpu::avx512
