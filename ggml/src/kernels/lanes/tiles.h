// Strips times tiles of tokens in a way of the instruction set's own. kHasTile<F>: is there one for
// this format? in_tiles<F>(nt): how many of nt tokens tiles() computes; strip_tile
// (block_kernels.h) computes the others.
#pragma once

#if defined(__ARM_FEATURE_DOTPROD)
#include "kernels/neon/tiles.h"
#else

#include "kernels/lanes/strip.h"

namespace ggml::cpu::GGML_ISA {

template <typename F>
constexpr bool kHasTile = false;
template <typename F>
constexpr int64_t in_tiles(int64_t) {
    return 0;
}
template <typename F>
void tiles(const uint8_t*, int64_t, int64_t, const Q8Rows&, int64_t, int64_t, float*, int64_t) {}

}  // namespace ggml::cpu::GGML_ISA

#endif
