// Products and weighted sums of neuron rows in F32, F16 and BF16. Those of block formats are in
// formats/.
#include <algorithm>

#include "kernels/add_rows.h"
#include "kernels/lanes/values.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// Prefetches `ahead` up to where a row is being read at column c.
template <typename W, int R>
inline void fetch(const uint8_t* const* ahead, int64_t c) {
    if (c * W::size % 64) return;
    for (int r = 0; r < R; r++) __builtin_prefetch(ahead[r] + c * W::size, 0, 3);
}

template <typename W, int R, int T>
void dot_tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t i, int64_t cols,
              const NeuronInput& x, const int32_t* tokens, float* y, int64_t ldy) {
    const uint8_t *row[R], *ahead[R];
    const float* in[T];
    f32x8 sum[R][T];
    for (int r = 0; r < R; r++) {
        row[r] = w + ids[i + r] * stride;
        ahead[r] = x.prefetch.row(i + r, row[r]);
        for (int t = 0; t < T; t++) sum[r][t] = splat(0);
    }
    for (int t = 0; t < T; t++) in[t] = x.x + tokens[t] * cols;
    int64_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        if (T == 1) fetch<W, R>(ahead, c);
        f32x8 xs[T];
        for (int t = 0; t < T; t++) xs[t] = load_f32(in[t] + c);
        for (int r = 0; r < R; r++) {
            const f32x8 ws = W::load8(row[r], c);
            for (int t = 0; t < T; t++) sum[r][t] = add_product(sum[r][t], ws, xs[t]);
        }
    }
    for (int r = 0; r < R; r++) {
        for (int t = 0; t < T; t++) {
            float& out = y[r * ldy + t];
            out = horizontal_sum(sum[r][t]);
            for (int64_t j = c; j < cols; j++) out += W::load1(row[r], j) * in[t][j];
        }
    }
}

template <typename W, int R>
void dot_rows(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t i, int64_t cols,
              const NeuronInput& x, const int32_t* tokens, int64_t nt, float* y) {
    constexpr int kFew = R < 8 ? R : 1;  // 8 rows by several tokens do not fit the registers
    int64_t t = 0;
    for (; R < 8 && t + 4 <= nt; t += 4) {
        dot_tile<W, kFew, 4>(w, stride, ids, i, cols, x, tokens + t, y + i * nt + t, nt);
    }
    for (; t < nt; t++) {
        dot_tile<W, R, 1>(w, stride, ids, i, cols, x, tokens + t, y + i * nt + t, nt);
    }
}

template <typename W>
void dot_values(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const NeuronInput& x, const int32_t* tokens, int64_t nt, float* y) {
    int64_t i = 0;
    for (; nt < 4 && i + 8 <= n; i += 8) dot_rows<W, 8>(w, stride, ids, i, cols, x, tokens, nt, y);
    for (; i + 2 <= n; i += 2) dot_rows<W, 2>(w, stride, ids, i, cols, x, tokens, nt, y);
    for (; i < n; i++) dot_rows<W, 1>(w, stride, ids, i, cols, x, tokens, nt, y);
}

// R rows at a time share the loads and stores of y; each column still adds them in ascending order.
template <typename W, int R>
void add_tile(const uint8_t* const* row, const uint8_t* const* ahead, const float* h, float* y,
              int64_t cols) {
    f32x8 factor[R];
    for (int r = 0; r < R; r++) factor[r] = splat(h[r]);
    int64_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        fetch<W, R>(ahead, c);
        f32x8 sum = load_f32(y + c);
        for (int r = 0; r < R; r++) sum = add_product(sum, factor[r], W::load8(row[r], c));
        store(y + c, sum);
    }
    for (; c < cols; c++) {
        for (int r = 0; r < R; r++) y[c] += h[r] * W::load1(row[r], c);
    }
}

template <typename W>
void add_values(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t, int64_t cols,
                const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy) {
    const auto tile = [&](auto count, auto... of) { add_tile<W, count>(of..., cols); };
    const auto at = [&](int32_t id) { return w + id * stride; };
    add_token_by_token<4>(at, ids, weighted, nt, y, ldy, tile);
}

}  // namespace

const dot_fn dot__f32 = dot_values<F32>;
const add_fn add__f32 = add_values<F32>;
const dot_fn dot__f16 = dot_values<F16>;
const add_fn add__f16 = add_values<F16>;
const dot_fn dot__bf16 = dot_values<BF16>;
const add_fn add__bf16 = add_values<BF16>;

}  // namespace ggml::cpu::GGML_ISA
