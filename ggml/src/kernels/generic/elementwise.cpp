// Norms, activations and the like, without flags: the specification of the others, which are the
// same source. test_ops.cpp compares it with formulas.
#include "kernels/lanes/elementwise.h"

namespace ggml::cpu::generic {

ELEMENTWISE_KERNELS

}  // namespace ggml::cpu::generic
