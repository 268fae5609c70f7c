// Weighted sums of F32, F16 and BF16 rows: y[t] += sum_r a[t][r] w[r]. C registers of 16
// columns for T tokens hold the sums while the kernel walks over the rows. Each column adds rows in
// ascending order, for any tile.
#include <immintrin.h>

#include "kernels/avx512/isa.h"
#include "kernels/avx512/token_tiles.h"
#include "kernels/avx512/values.h"
#include "kernels/kernels.h"

namespace ggml::cpu::avx512 {

namespace {

// The values of 16 C columns from column c on.
template <typename W, int C>
inline void load(const uint8_t* row, int64_t c, __mmask16 m, __m512 (&values)[C]) {
#pragma GCC unroll 8
    for (int i = 0; i < C; i++) values[i] = W::load(row, c + 16 * i, m);
}

template <typename W, int C, int T>
void tile(const uint8_t* w, const uint8_t* next, int64_t row_bytes, int64_t n_rows, int64_t c,
          __mmask16 m, const float* a, int64_t lda, float* y, int64_t ldy) {
    __m512 sum[T][C];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 8
        for (int i = 0; i < C; i++) sum[t][i] = _mm512_maskz_loadu_ps(m, y + t * ldy + c + 16 * i);
    }
    for (int64_t r = 0; r < n_rows; r++) {
        const uint8_t* row = w + r * row_bytes;
        for (int i = 0; i < C * 16 * W::size; i += 64) {
            _mm_prefetch(next + r * row_bytes + c * W::size + i, _MM_HINT_T1);
        }
        __m512 values[C];
        load<W, C>(row, c, m, values);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512 factor = _mm512_set1_ps(a[t * lda + r]);
#pragma GCC unroll 8
            for (int i = 0; i < C; i++) {
                sum[t][i] = _mm512_fmadd_ps(factor, values[i], sum[t][i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 8
        for (int i = 0; i < C; i++) _mm512_mask_storeu_ps(y + t * ldy + c + 16 * i, m, sum[t][i]);
    }
}

// The tokens of one range of columns.
template <typename W, int C>
void tokens(const uint8_t* w, const uint8_t* next, int64_t row_bytes, int64_t n_rows, int64_t c,
            __mmask16 m, const float* a, int64_t lda, int64_t nt, float* y, int64_t ldy) {
    const auto tiles = [&](auto T, int64_t t) {
        tile<W, C, T>(w, t ? w : next, row_bytes, n_rows, c, m, a + t * lda, lda, y + t * ldy, ldy);
    };
    if (nt >= kFewest) return for_tiles(nt, tiles);
    if (nt == 2) tiles(Count<2>(), 0);
    if (nt == 1) tiles(Count<1>(), 0);
}

template <typename W>
void accumulate(const uint8_t* w, const uint8_t* next, int64_t row_bytes, int64_t n_rows,
                int64_t cols, const float* a, int64_t lda, int64_t nt, float* y, int64_t ldy) {
    int64_t c = 0;
    for (; c + 64 <= cols; c += 64) {
        tokens<W, 4>(w, next, row_bytes, n_rows, c, 0xffff, a, lda, nt, y, ldy);
    }
    for (; c < cols; c += 16) {
        const __mmask16 m = cols - c >= 16 ? 0xffff : __mmask16((1u << (cols - c)) - 1);
        tokens<W, 1>(w, next, row_bytes, n_rows, c, m, a, lda, nt, y, ldy);
    }
}

}  // namespace

const accumulate_fn accumulate__f32_f32 = accumulate<F32>;
const accumulate_fn accumulate__f16_f32 = accumulate<F16>;
const accumulate_fn accumulate__bf16_f32 = accumulate<BF16>;

}  // namespace ggml::cpu::avx512
