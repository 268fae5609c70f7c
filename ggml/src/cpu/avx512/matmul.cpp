// Products of F32, F16 and BF16 rows with floats. Tiles of R rows by T tokens share loads. Every
// output has one accumulator of sixteen lanes that runs over k in ascending order, so its bits do
// not depend on the tile.
#include <immintrin.h>

#include <algorithm>

#include "cpu/avx512/values.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx512 {

namespace {

// Mask of the first n of sixteen lanes.
inline __mmask16 first(int64_t n) {
    return __mmask16((1u << n) - 1);
}

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
    const bool fetches = T == 1 && fetches_ahead;
    // Short rows: prefetch the rows of the next tile.
    const uint8_t* next = w + (row_bytes < 2048 ? R * row_bytes : 1024);
    for (; i + 16 <= k; i += 16) {
        if (fetches && i * W::size % 64 == 0) {
            for (int r = 0; r < R; r++) {
                _mm_prefetch(next + r * row_bytes + i * W::size, _MM_HINT_T0);
            }
        }
        step<W, R, T>(w, row_bytes, i, x, ldx, 0xffff, sum);
    }
    if (i < k) step<W, R, T>(w, row_bytes, i, x, ldx, first(k - i), sum);
    for (int r = 0; r < R; r++) {
        for (int t = 0; t < T; t++) y[t * ldy + r] = _mm512_reduce_add_ps(sum[r][t]);
    }
}

// Up to kRows rows by six tokens, kColumns columns at a time. The tokens' values stay in the L1
// cache while the kernel walks over the rows. Between column ranges, the sums of a tile are kept in
// memory lane by lane.
constexpr int64_t kRows = 32, kColumns = 1024;

template <typename W>
void block(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x,
           int64_t ldx, float* y, int64_t ldy) {
    __m512 sums[kRows / 4][4][6];
    for (int64_t k0 = 0; k0 < k; k0 += kColumns) {
        const int64_t end = k - k0 < kColumns ? k : k0 + kColumns;
        for (int64_t r = 0; r < n_rows; r += 4) {
            __m512 sum[4][6];
            for (int i = 0; i < 4; i++) {
                for (int t = 0; t < 6; t++) {
                    sum[i][t] = k0 ? sums[r / 4][i][t] : _mm512_setzero_ps();
                }
            }
            const uint8_t* rows = w + r * row_bytes;
            int64_t i = k0;
            for (; i + 16 <= end; i += 16) step<W, 4, 6>(rows, row_bytes, i, x, ldx, 0xffff, sum);
            if (i < end) step<W, 4, 6>(rows, row_bytes, i, x, ldx, first(end - i), sum);
            for (int j = 0; j < 4; j++) {
                for (int t = 0; t < 6; t++) sums[r / 4][j][t] = sum[j][t];
            }
        }
    }
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t t = 0; t < 6; t++) {
            y[t * ldy + r] = _mm512_reduce_add_ps(sums[r / 4][r % 4][t]);
        }
    }
}

template <typename W, int R>
void row_tile(const uint8_t* w, int64_t row_bytes, int64_t k, const float* x, int64_t ldx,
              int64_t nt, float* y, int64_t ldy) {
    int64_t t = 0;
    for (; t + 2 <= nt; t += 2) tile<W, R, 2>(w, row_bytes, k, x + t * ldx, ldx, y + t * ldy, ldy);
    for (; t < nt; t++) tile<W, R, 1>(w, row_bytes, k, x + t * ldx, ldx, y + t * ldy, ldy);
}

// Columns up to which AMD's cores read row after row, for one token: their prefetchers follow one
// sequence of addresses better than eight, as long as x stays in the L1 cache beside it (Zen 4, 2
// threads, GB/s with 8 rows and with 1: 2048 columns 30 and 33, 4096 both 31, 5504 29 and 22).
constexpr int64_t kRowByRow = 4096;

template <typename W>
void matmul(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x,
            int64_t ldx, int64_t nt, float* y, int64_t ldy) {
    int64_t r = 0;
    const int64_t in_fours = n_rows / 4 * 4;
    if (nt == 1 && !fetches_ahead && row_bytes >= 2048 && k <= kRowByRow) {
        for (; r < n_rows; r++) tile<W, 1, 1>(w + r * row_bytes, row_bytes, k, x, ldx, y + r, ldy);
        return;
    }
    for (; nt == 1 && r + 8 <= n_rows; r += 8) {
        tile<W, 8, 1>(w + r * row_bytes, row_bytes, k, x, ldx, y + r, ldy);
    }
    while (r < in_fours) {
        const int64_t n = in_fours - r < kRows ? in_fours - r : kRows;
        int64_t t = 0;
        for (; t + 6 <= nt; t += 6) {
            block<W>(w + r * row_bytes, row_bytes, n, k, x + t * ldx, ldx, y + t * ldy + r, ldy);
        }
        for (const int64_t end = r + n; r < end; r += 4) {
            row_tile<W, 4>(w + r * row_bytes, row_bytes, k, x + t * ldx, ldx, nt - t,
                           y + t * ldy + r, ldy);
        }
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
