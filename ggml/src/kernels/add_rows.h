// The loops over tokens and rows that the add kernels of all instruction sets share.
#pragma once

#include "kernels/kernels.h"

namespace ggml::cpu {

// For each token, calls tile(R, rows, rows to prefetch, factors of the rows, y of the token) with R
// = `most` rows at a time, then 2 if that is less by two or more, then 1, in ascending order. R is
// a Count<R>. at(id) is the address of a row. `at` and `tile` are lambdas of one instruction set,
// so that instruction sets do not share instances of this template.
template <int most, typename At, typename Tile>
inline void add_token_by_token(const At& at, const int32_t* ids, const WeightedRows& weighted,
                               int64_t nt, float* y, int64_t ldy, const Tile& tile) {
    const uint8_t *row[kMostRows], *ahead[kMostRows];
    for (int64_t t = 0; t < nt; t++) {
        const int64_t first = weighted.first[t], n = weighted.first[t + 1] - first;
        for (int64_t k = 0; k < n; k++) {
            row[k] = at(ids[weighted.row[first + k]]);
            ahead[k] = weighted.prefetch.row(k, row[k]);
        }
        const float* h = weighted.h + first;
        int64_t k = 0;
        const auto tiles = [&](auto rows) {
            for (; k + rows <= n; k += rows) tile(rows, row + k, ahead + k, h + k, y + t * ldy);
        };
        tiles(Count<most>());
        if constexpr (most > 3) tiles(Count<2>());
        tiles(Count<1>());
    }
}

// The same, but if tokens share rows, unpacked(rows) adds all n rows for all tokens.
template <int most, typename At, typename Tile, typename Unpacked>
inline void add_blocks(const At& at, const int32_t* ids, int64_t n, const WeightedRows& weighted,
                       int64_t nt, float* y, int64_t ldy, const Tile& tile,
                       const Unpacked& unpacked) {
    if (nt == 1 || weighted.first[nt] - weighted.first[0] <= n) {
        return add_token_by_token<most>(at, ids, weighted, nt, y, ldy, tile);
    }
    const uint8_t* row[kMostRows];
    for (int64_t i = 0; i < n; i++) row[i] = at(ids[i]);
    unpacked(row);
}

}  // namespace ggml::cpu
