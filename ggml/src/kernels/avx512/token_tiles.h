// How the tokens of a product are divided into tiles.
#pragma once

#include "kernels/avx512/isa.h"
#include "kernels/kernels.h"

namespace ggml::cpu::GGML_ISA {

// The smallest tile that keeps the multipliers busy, and the largest one for which four rows of
// floats or two pairs of strips have registers.
constexpr int kFewest = 3, kMost = 6;

// Calls kernel(Count<T>, first token) for tiles of roughly equal size; nt >= kFewest.
template <typename Kernel>
inline void for_tiles(int64_t nt, const Kernel& kernel) {
    for (int64_t t = 0, tiles = (nt + kMost - 1) / kMost; tiles; tiles--) {
        const int64_t n = (nt - t + tiles - 1) / tiles;
        if (n == 6) kernel(Count<6>(), t);
        if (n == 5) kernel(Count<5>(), t);
        if (n == 4) kernel(Count<4>(), t);
        if (n == 3) kernel(Count<3>(), t);
        t += n;
    }
}

}  // namespace ggml::cpu::GGML_ISA
