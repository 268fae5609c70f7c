// Weighted sums of rows: y[t] += sum_r a[t][r] w[r]. Sums of 32 columns stay in registers while the
// kernel walks over the rows. Each column adds rows in ascending order, for any number of tokens in
// the tile.
#pragma once

#include "ggml/tensor.h"
#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace ggml::cpu::GGML_ISA {

// V::load32(row, c, out) gives the 32 values of a row from column c on.
template <typename V, int T>
void accumulate_tile(const uint8_t* w, const uint8_t* next, int64_t row_bytes, int64_t n_rows,
                     int64_t cols, int64_t c, const float* a, int64_t lda, float* y, int64_t ldy) {
    f32x8 sum[T][4];
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < 4; i++) sum[t][i] = load_f32(y + t * ldy + c + 8 * i);
    }
    next += c * row_bytes / cols;  // where these columns begin, nearly
    for (int64_t r = 0; r < n_rows; r++) {
        __builtin_prefetch(next + r * row_bytes, 0, 2);
        f32x8 values[4];
        V::load32(w + r * row_bytes, c, values);
        for (int t = 0; t < T; t++) {
            const f32x8 factor = splat(a[t * lda + r]);
            for (int i = 0; i < 4; i++) sum[t][i] = add_product(sum[t][i], factor, values[i]);
        }
    }
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < 4; i++) store(y + t * ldy + c + 8 * i, sum[t][i]);
    }
}

// Returns the first column that is left.
template <typename V>
int64_t accumulate_32(const uint8_t* w, const uint8_t* next, int64_t row_bytes, int64_t n_rows,
                      int64_t cols, const float* a, int64_t lda, int64_t nt, float* y,
                      int64_t ldy) {
    int64_t c = 0;
    for (; c + 32 <= cols; c += 32) {
        int64_t t = 0;
        for (; t + 2 <= nt; t += 2) {
            accumulate_tile<V, 2>(w, t ? w : next, row_bytes, n_rows, cols, c, a + t * lda, lda,
                                  y + t * ldy, ldy);
        }
        if (t < nt) {
            accumulate_tile<V, 1>(w, t ? w : next, row_bytes, n_rows, cols, c, a + t * lda, lda,
                                  y + t * ldy, ldy);
        }
    }
    return c;
}

}  // namespace ggml::cpu::GGML_ISA
