// Products with neuron rows of single values, and their weighted sums. Those of folded blocks are
// made in strip_kernels.h.
#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

namespace {

template <typename W, int R>
void dot_tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t cols, const float* x,
              float* y) {
    const uint8_t* row[R];
    __m256 sum[R];
    for (int r = 0; r < R; r++) {
        row[r] = w + ids[r] * stride;
        sum[r] = _mm256_setzero_ps();
    }
    int64_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        const __m256 xs = _mm256_loadu_ps(x + c);
        for (int r = 0; r < R; r++) sum[r] = _mm256_fmadd_ps(W::load8(row[r], c), xs, sum[r]);
    }
    for (int r = 0; r < R; r++) {
        y[r] = horizontal_sum(sum[r]);
        for (int64_t j = c; j < cols; j++) y[r] += W::load1(row[r], j) * x[j];
    }
}

template <typename W>
void dot_values(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const NeuronInput& in, float* y) {
    const float* x = in.x + in.t * cols;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) dot_tile<W, 8>(w, stride, ids + i, cols, x, y + i);
    for (; i + 2 <= n; i += 2) dot_tile<W, 2>(w, stride, ids + i, cols, x, y + i);
    for (; i < n; i++) dot_tile<W, 1>(w, stride, ids + i, cols, x, y + i);
}

// R rows at a time share the loads and stores of y; each column still adds them in ascending order.
template <typename W, int R>
void add_tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t cols, const float* h,
              float* y) {
    const uint8_t* row[R];
    __m256 factor[R];
    for (int r = 0; r < R; r++) {
        row[r] = w + ids[r] * stride;
        factor[r] = _mm256_set1_ps(h[r]);
    }
    int64_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        __m256 sum = _mm256_loadu_ps(y + c);
        for (int r = 0; r < R; r++) sum = _mm256_fmadd_ps(factor[r], W::load8(row[r], c), sum);
        _mm256_storeu_ps(y + c, sum);
    }
    for (; c < cols; c++) {
        for (int r = 0; r < R; r++) y[c] += h[r] * W::load1(row[r], c);
    }
}

template <typename W>
void add_values(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const float* h, float* y) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) add_tile<W, 4>(w, stride, ids + i, cols, h + i, y);
    for (; i < n; i++) add_tile<W, 1>(w, stride, ids + i, cols, h + i, y);
}

}  // namespace

#define NEURON(suffix, dot, add)                                                        \
    void dot__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, \
                       int64_t cols, const NeuronInput& x, float* y) {                  \
        dot(w, stride, ids, n, cols, x, y);                                             \
    }                                                                                   \
    void add__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, \
                       int64_t cols, const float* h, float* y) {                        \
        add(w, stride, ids, n, cols, h, y);                                             \
    }
NEURON(f32, dot_values<F32>, add_values<F32>)
NEURON(f16, dot_values<F16>, add_values<F16>)
NEURON(bf16, dot_values<BF16>, add_values<BF16>)

}  // namespace ggml::cpu::avx2
