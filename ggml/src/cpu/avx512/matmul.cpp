// Products of rows of single values with floats. Tiles of R rows by T tokens share loads; every
// output has one accumulator of sixteen lanes that walks k upwards, so that its bits do not depend
// on the tile.
#include <immintrin.h>

#include <cstring>

#include "cpu/kernels.h"
#include "ggml/tensor.h"

namespace ggml::cpu::avx512 {

namespace {

// Sixteen values from column i of a row, those of the mask.
struct F32 {
    static __m512 load(const uint8_t* row, int64_t i, __mmask16 m) {
        return _mm512_maskz_loadu_ps(m, reinterpret_cast<const float*>(row) + i);
    }
};
struct F16 {
    static __m512 load(const uint8_t* row, int64_t i, __mmask16 m) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, row + 2 * i));
    }
};
struct BF16 {
    static __m512 load(const uint8_t* row, int64_t i, __mmask16 m) {
        const __m256i bits = _mm256_maskz_loadu_epi16(m, row + 2 * i);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
};

template <typename W, int R, int T>
inline void step(const uint8_t* w, int64_t row_bytes, int64_t i, const float* x, int64_t ldx,
                 __mmask16 m, __m512 (&sum)[R][T]) {
    __m512 xs[T];
    for (int t = 0; t < T; t++) xs[t] = _mm512_maskz_loadu_ps(m, x + t * ldx + i);
    for (int r = 0; r < R; r++) {
        const __m512 ws = W::load(w + r * row_bytes, i, m);
        for (int t = 0; t < T; t++) sum[r][t] = _mm512_fmadd_ps(ws, xs[t], sum[r][t]);
    }
}

template <typename W, int R, int T>
[[gnu::noinline]] void tile(const uint8_t* w, int64_t row_bytes, int64_t k, const float* x,
                            int64_t ldx, float* y, int64_t ldy) {
    __m512 sum[R][T];
    for (int r = 0; r < R; r++) {
        for (int t = 0; t < T; t++) sum[r][t] = _mm512_setzero_ps();
    }
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) step<W, R, T>(w, row_bytes, i, x, ldx, 0xffff, sum);
    if (i < k) step<W, R, T>(w, row_bytes, i, x, ldx, __mmask16((1u << (k - i)) - 1), sum);
    for (int r = 0; r < R; r++) {
        for (int t = 0; t < T; t++) y[t * ldy + r] = _mm512_reduce_add_ps(sum[r][t]);
    }
}

template <typename W, int R>
void row_tile(const uint8_t* w, int64_t row_bytes, int64_t k, const float* x, int64_t ldx,
              int64_t nt, float* y, int64_t ldy) {
    int64_t t = 0;
    for (; t + 6 <= nt; t += 6) tile<W, R, 6>(w, row_bytes, k, x + t * ldx, ldx, y + t * ldy, ldy);
    for (; t + 2 <= nt; t += 2) tile<W, R, 2>(w, row_bytes, k, x + t * ldx, ldx, y + t * ldy, ldy);
    for (; t < nt; t++) tile<W, R, 1>(w, row_bytes, k, x + t * ldx, ldx, y + t * ldy, ldy);
}

template <typename W>
void matmul(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x,
            int64_t ldx, int64_t nt, float* y, int64_t ldy) {
    int64_t r = 0;
    for (; nt == 1 && r + 8 <= n_rows; r += 8) {
        tile<W, 8, 1>(w + r * row_bytes, row_bytes, k, x, ldx, y + r, ldy);
    }
    for (; r + 4 <= n_rows; r += 4) {
        row_tile<W, 4>(w + r * row_bytes, row_bytes, k, x, ldx, nt, y + r, ldy);
    }
    for (; r < n_rows; r++) row_tile<W, 1>(w + r * row_bytes, row_bytes, k, x, ldx, nt, y + r, ldy);
}

}  // namespace

#define MATMUL(name, type)                                                                    \
    void name(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x, \
              int64_t ldx, int64_t nt, float* y, int64_t ldy) {                               \
        matmul<type>(w, row_bytes, n_rows, k, x, ldx, nt, y, ldy);                            \
    }
MATMUL(matmul__f32_f32, F32)
MATMUL(matmul__f16_f32, F16)
MATMUL(matmul__bf16_f32, BF16)

}  // namespace ggml::cpu::avx512
