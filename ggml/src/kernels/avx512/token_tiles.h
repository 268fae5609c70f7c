// How the tokens of a product are divided into tiles.
#pragma once

#include "kernels/avx512/isa.h"
#include "kernels/kernels.h"

namespace ggml::cpu::GGML_ISA {

// The smallest tile that keeps the multipliers busy, and the largest one for which four rows of
// floats or two pairs of strips have registers.
constexpr int kFewest = 3, kMost = 6;

// Calls kernel(Count<n>, first) if n is one of Most, Most - 1, ... Fewest.
template <int Fewest, int Most, typename Kernel>
inline void call_of(int64_t n, int64_t first, const Kernel& kernel) {
    if (n == Most) kernel(Count<Most>(), first);
    if constexpr (Most > Fewest) call_of<Fewest, Most - 1>(n, first, kernel);
}

// Calls kernel(Count<T>, first token) for tiles of roughly equal size, each of Fewest to Most
// tokens; nt >= Fewest.
template <int Fewest = kFewest, int Most = kMost, typename Kernel>
inline void for_tiles(int64_t nt, const Kernel& kernel) {
    static_assert(Fewest == 1 || Most >= 2 * Fewest - 1);
    for (int64_t t = 0, tiles = (nt + Most - 1) / Most; tiles; tiles--) {
        const int64_t n = (nt - t + tiles - 1) / tiles;
        call_of<Fewest, Most>(n, t, kernel);
        t += n;
    }
}

}  // namespace ggml::cpu::GGML_ISA
