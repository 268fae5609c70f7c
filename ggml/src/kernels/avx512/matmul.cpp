// Products of F32, F16 and BF16 rows with floats. Tiles of R rows by T tokens share loads. Every
// output has one accumulator of sixteen lanes that runs over k in ascending order, so its bits do
// not depend on the tile.
#include <immintrin.h>

#include "kernels/avx512/token_tiles.h"
#include "kernels/avx512/values.h"
#include "kernels/kernels.h"

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

// _mm512_reduce_add_ps of four registers, in its order.
inline __m128 reduce(__m512 a, __m512 b, __m512 c, __m512 d) {
    const auto halves = [](__m512 v) {
        const __m256 w = _mm256_add_ps(_mm512_extractf32x8_ps(v, 1), _mm512_castps512_ps256(v));
        return _mm_add_ps(_mm256_extractf128_ps(w, 1), _mm256_castps256_ps128(w));
    };
    const __m128 a4 = halves(a), b4 = halves(b), c4 = halves(c), d4 = halves(d);
    // Lanes 0 and 2, 1 and 3 of each.
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(a4, b4), _mm_movehl_ps(b4, a4));
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(c4, d4), _mm_movehl_ps(d4, c4));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
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
    for (int t = 0; t < T; t++) {
        int r = 0;
        for (; r + 4 <= R; r += 4) {
            _mm_storeu_ps(y + t * ldy + r,
                          reduce(sum[r][t], sum[r + 1][t], sum[r + 2][t], sum[r + 3][t]));
        }
        for (; r < R; r++) y[t * ldy + r] = _mm512_reduce_add_ps(sum[r][t]);
    }
}

// The most rows of a block.
constexpr int64_t kRows = 32;

// How many rows a block has, and how many columns it walks over at a time. The tokens' values stay
// in the caches next to the core while the kernel walks over the rows. Between column ranges, the
// sums of a tile are kept in memory lane by lane. Zen 4 (32 KB of L1 cache, half as many products
// per cycle), 10^9 products per second of a core, 128 tokens: 1024 columns 51 to 53, 2048 columns
// 53 to 56 (59 are possible).
// Zen 5 (48 KB) multiplies faster than its L2 cache delivers both the tokens' values and F32 rows,
// so the former have to stay in the L1 cache, and of short rows the whole block. The same unit,
// F32, 2048 and 1024 columns: rows of 1536 91 and 106, of 4864 84 and 101, of 11008 68 and 74; 32
// and 16 rows of 384 columns: 109 and 113. F16, rows of 1536 columns: 124 with 1536, 119 with 1024.
// Ranges are even, and up to 1.2 times as many columns are one range: 1040 columns of F32 reach 101
// in one range, 95 in ranges of 1024 and 16.
struct Shape {
    int64_t rows, columns;
};

template <typename W>
Shape shape_of(int64_t k) {
    if (l1_bytes < 48 << 10) return {kRows, 2048};
    constexpr int64_t columns = W::size == 4 ? 1024 : 1536;
    const int64_t ranges = k <= columns ? 1 : (k + columns * 4 / 5 - 1) / columns;
    return {k <= 384 ? kRows / 2 : kRows, (k + ranges * 16 - 1) / (ranges * 16) * 16};
}

// What a block prefetches beside every four of its rows: n rows, `step` apart, of the four at `w`.
struct Ahead {
    const uint8_t* w;
    int n, step;
};

template <typename W>
constexpr int64_t kLine = 64 / W::size;  // values of a cache line

template <typename W, int T>
[[gnu::noinline]] void block(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k,
                             int64_t columns, const float* x, int64_t ldx, float* y, int64_t ldy,
                             const Ahead& ahead) {
    __m512 sums[kRows / 4][4][T];
    const int64_t apart = ahead.step * row_bytes;
    for (int64_t k0 = 0; k0 < k; k0 += columns) {
        const int64_t end = k - k0 < columns ? k : k0 + columns;
        for (int64_t r = 0; r < n_rows; r += 4) {
            __m512 sum[4][T];
            for (int i = 0; i < 4; i++) {
                for (int t = 0; t < T; t++) {
                    sum[i][t] = k0 ? sums[r / 4][i][t] : _mm512_setzero_ps();
                }
            }
            const uint8_t* rows = w + r * row_bytes;
            const uint8_t* next = ahead.w + r * row_bytes;
            int64_t i = k0;
            if (ahead.n) {
                for (; i + kLine<W> <= end; i += kLine<W>) {
                    const uint8_t* line = next + i * W::size;
                    for (int n = 0; n < ahead.n; n++, line += apart)
                        _mm_prefetch(line, _MM_HINT_T1);
                    for (int64_t j = i; j < i + kLine<W>; j += 16) {
                        step<W, 4, T>(rows, row_bytes, j, x, ldx, 0xffff, sum);
                    }
                }
            }
            for (; i + 16 <= end; i += 16) step<W, 4, T>(rows, row_bytes, i, x, ldx, 0xffff, sum);
            if (i < end) step<W, 4, T>(rows, row_bytes, i, x, ldx, first(end - i), sum);
            if (end < k) {
                for (int j = 0; j < 4; j++) {
                    for (int t = 0; t < T; t++) sums[r / 4][j][t] = sum[j][t];
                }
                continue;
            }
            for (int t = 0; t < T; t++) {
                _mm_storeu_ps(y + t * ldy + r, reduce(sum[0][t], sum[1][t], sum[2][t], sum[3][t]));
            }
        }
    }
}

// Rows up to which there is room for the next block of them in the L2 cache.
constexpr int64_t kShort = 8192;  // bytes

// A block of rows by all tokens. The processor's own prefetchers lose their way on four rows at
// once, above all on short ones. So the tiles of tokens share the prefetching of the rows behind
// these. Nobody did so for the first rows of a call, nor for long ones: then the first tile
// prefetches four rows while it computes those before. Zen 4, 10^9 products per second of a core,
// rows of F32 from memory without and with that: 384 columns and 27 tokens 30 and 46 (52 from the
// L2 cache), 234 tokens 47 and 50; 4,864 columns and 4 tokens 11 and 17, 64 tokens 43 and 45.
template <typename W>
void blocks(const uint8_t* w, int64_t row_bytes, int64_t n_rows, bool first_rows, int64_t k,
            int64_t columns, const float* x, int64_t ldx, int64_t nt, float* y, int64_t ldy) {
    const auto tiles = int((nt + kMost - 1) / kMost);
    const bool alone = tiles == 1, shares = !alone && row_bytes <= kShort;
    const int own = alone || !shares || first_rows;  // tiles that prefetch for themselves
    const int step = tiles - own < 4 ? tiles - own : 4;
    int i = -own;
    for_tiles(nt, [&](auto tokens, int64_t t) {
        Ahead ahead{w, 0, 1};
        if (i < 0) {
            ahead = {w + 4 * row_bytes, 4, 1};
        } else if (shares && i < step) {
            ahead = {w + (n_rows + i) * row_bytes, (3 - i) / step + 1, step};
        }
        block<W, tokens>(w, row_bytes, n_rows, k, columns, x + t * ldx, ldx, y + t * ldy, ldy,
                         ahead);
        i++;
    });
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
    const Shape shape = shape_of<W>(k);
    while (nt >= kFewest && r < in_fours) {
        const int64_t n = in_fours - r < shape.rows ? in_fours - r : shape.rows;
        blocks<W>(w + r * row_bytes, row_bytes, n, r == 0, k, shape.columns, x, ldx, nt, y + r,
                  ldy);
        r += n;
    }
    for (; r < in_fours; r += 4) {
        row_tile<W, 4>(w + r * row_bytes, row_bytes, k, x, ldx, nt, y + r, ldy);
    }
    for (; r < n_rows; r++) row_tile<W, 1>(w + r * row_bytes, row_bytes, k, x, ldx, nt, y + r, ldy);
}

}  // namespace

const matmul_fn matmul__f32_f32 = matmul<F32>;
const matmul_fn matmul__f16_f32 = matmul<F16>;
const matmul_fn matmul__bf16_f32 = matmul<BF16>;

}  // namespace ggml::cpu::avx512
