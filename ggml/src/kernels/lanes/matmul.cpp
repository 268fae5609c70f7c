// Products of rows with floats: F32, F16 and BF16 weights, and Q8_0 (used for adapters). Tiles of
// R rows by T tokens share loads. Every output has one accumulator of eight lanes that runs over k
// in ascending order, so its bits do not depend on the tile.
#include "kernels/kernels.h"
#include "kernels/lanes/values.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// Prefetch distance in bytes. Short rows: the rows of the next tile.
inline int64_t ahead(int64_t row_bytes, int rows) {
    return row_bytes < 2048 ? rows * row_bytes : 1024;
}

template <typename W, int R, int T>
void tile(const uint8_t* w, int64_t row_bytes, int64_t k, const float* x, int64_t ldx, float* y,
          int64_t ldy) {
    f32x8 sum[R][T];
    for (int r = 0; r < R; r++) {
        for (int t = 0; t < T; t++) sum[r][t] = splat(0);
    }
    const bool fetches = T == 1 && fetches_ahead;
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) {
        if (fetches && i * W::size % 64 == 0) {
            const uint8_t* next = w + i * W::size + ahead(row_bytes, R);
            for (int r = 0; r < R; r++) __builtin_prefetch(next + r * row_bytes, 0, 3);
        }
        f32x8 xs[T];
        for (int t = 0; t < T; t++) xs[t] = load_f32(x + t * ldx + i);
        for (int r = 0; r < R; r++) {
            const f32x8 ws = W::load8(w + r * row_bytes, i);
            for (int t = 0; t < T; t++) sum[r][t] = add_product(sum[r][t], ws, xs[t]);
        }
    }
    for (int r = 0; r < R; r++) {
        for (int t = 0; t < T; t++) {
            float total = horizontal_sum(sum[r][t]);
            for (int64_t j = i; j < k; j++)
                total += W::load1(w + r * row_bytes, j) * x[t * ldx + j];
            y[t * ldy + r] = total;
        }
    }
}

template <typename W, int R>
void row_tile(const uint8_t* w, int64_t row_bytes, int64_t k, const float* x, int64_t ldx,
              int64_t nt, float* y, int64_t ldy) {
    const auto tiles = [&](auto T, int64_t t) {
        tile<W, R, T>(w, row_bytes, k, x + t * ldx, ldx, y + t * ldy, ldy);
    };
    int64_t t = 0;
    for (; nt - t == 3 || nt - t > 4; t += 3) tiles(Count<3>(), t);
    for (; t + 2 <= nt; t += 2) tiles(Count<2>(), t);
    if (t < nt) tiles(Count<1>(), t);
}

template <typename W>
void matmul(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x,
            int64_t ldx, int64_t nt, float* y, int64_t ldy) {
    int64_t r = 0;
    if (nt == 1) {  // one token: eight chains of additions hide their latency
        for (; r + 8 <= n_rows; r += 8) {
            tile<W, 8, 1>(w + r * row_bytes, row_bytes, k, x, ldx, y + r, ldy);
        }
    }
    for (; r + 4 <= n_rows; r += 4) {
        row_tile<W, 4>(w + r * row_bytes, row_bytes, k, x, ldx, nt, y + r, ldy);
    }
    for (; r < n_rows; r++) row_tile<W, 1>(w + r * row_bytes, row_bytes, k, x, ldx, nt, y + r, ldy);
}

}  // namespace

const matmul_fn matmul__f32_f32 = matmul<F32>;
const matmul_fn matmul__f16_f32 = matmul<F16>;
const matmul_fn matmul__bf16_f32 = matmul<BF16>;
const matmul_fn matmul__q8_0_f32 = matmul<Q8_0>;

}  // namespace ggml::cpu::GGML_ISA
