// Products with single neuron rows and their weighted sums. A folded row is a strip of its own
// eighths, so that the kernels look like those of strips: a lane is an eighth of the row,
// activations and scales are loaded instead of broadcast, and the eight lanes are added once per
// row.
#include <cstddef>

#include "cpu/avx2/strip.h"

namespace ggml::cpu::avx2 {

namespace {

// ---- Single values ---------------------------------------------------------------------------

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

// ---- Folded blocks -----------------------------------------------------------------------------

// Scaled product of a block of the eight eighths, w_scale * x_scale * (product - offset).
inline __m256 add_block8(__m256 sum, __m256 w_scales, const float* x_scales, __m256i product) {
    const __m256 scales = _mm256_mul_ps(w_scales, _mm256_loadu_ps(x_scales));
    return _mm256_fmadd_ps(scales, _mm256_cvtepi32_ps(product), sum);
}

struct FoldQ4_0 {
    using Block = BlockQ4_0;
    // 32 columns of each eighth times the activations, less 8 times their sum.
    static __m256i product(const uint8_t* w, const int8_t* x, const int32_t* s8) {
        __m256i weights[8];
        nibbles(w + kStrip * offsetof(Block, qs), weights);
        __m256i even = _mm256_maddubs_epi16(weights[0], load(x));
        __m256i odd = _mm256_maddubs_epi16(weights[1], load(x + kGroup));
        for (int v = 2; v < 8; v += 2) {
            even = _mm256_add_epi16(even, _mm256_maddubs_epi16(weights[v], load(x + kGroup * v)));
            odd = _mm256_add_epi16(
                odd, _mm256_maddubs_epi16(weights[v + 1], load(x + kGroup * (v + 1))));
        }
        const __m256i sum = _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1));
        return _mm256_sub_epi32(sum, load(s8));
    }
    // Column 4 v + j of each eighth as numbers.
    static void values(const uint8_t* w, int v, __m256 out[4]) {
        __m256i pair = load(w + kStrip * offsetof(Block, qs) + kGroup * (v % 4));
        if (v >= 4) pair = _mm256_srli_epi32(pair, 4);
        const __m256i low = _mm256_set1_epi32(15), eight = _mm256_set1_epi32(8);
        for (int j = 0; j < 4; j++) {
            const __m256i q = _mm256_and_si256(_mm256_srli_epi32(pair, 8 * j), low);
            out[j] = _mm256_cvtepi32_ps(_mm256_sub_epi32(q, eight));
        }
    }
};

struct FoldQ8_0 {
    using Block = BlockQ8_0;
    static __m256i product(const uint8_t* w, const int8_t* x, const int32_t*) {
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i sum = _mm256_setzero_si256();
        for (int v = 0; v < 8; v++) {
            const __m256i weights = load(w + kStrip * offsetof(Block, qs) + kGroup * v);
            const __m256i values = _mm256_sign_epi8(load(x + kGroup * v), weights);
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), values);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        return sum;
    }
    static void values(const uint8_t* w, int v, __m256 out[4]) {
        const __m256i bytes = load(w + kStrip * offsetof(Block, qs) + kGroup * v);
        for (int j = 0; j < 4; j++) {
            out[j] =
                _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 24 - 8 * j), 24));
        }
    }
};

template <typename F>
void dot_folded(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const NeuronInput& in, float* y) {
    const int64_t n_blocks = cols / kQ;
    const int8_t* q = in.folded.q + in.t * cols;
    const float* d = in.folded.d + in.t * n_blocks;
    const int32_t* s8 = in.folded.s8 + in.t * n_blocks;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t* row = w + ids[i] * stride;
        __m256 sum = _mm256_setzero_ps();
        for (int64_t b = 0; b < n_blocks; b += kStrip, row += kStrip * sizeof(typename F::Block)) {
            const __m256i product = F::product(row, q + b * kQ, s8 + b);
            sum = add_block8(sum, load_scales(row), d + b, product);
        }
        y[i] = horizontal_sum(sum);
    }
}

template <typename F, int R>
void add_folded_tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t cols,
                     const float* h, float* y) {
    const uint8_t* row[R];
    for (int r = 0; r < R; r++) row[r] = w + ids[r] * stride;
    for (int64_t c = 0; c < cols; c += kStrip * kQ) {
        __m256 factor[R];
        for (int r = 0; r < R; r++)
            factor[r] = _mm256_mul_ps(_mm256_set1_ps(h[r]), load_scales(row[r]));
        for (int v = 0; v < 8; v++) {
            float* to = y + c + 32 * v;
            __m256 sum[4];
            for (int j = 0; j < 4; j++) sum[j] = _mm256_loadu_ps(to + 8 * j);
            for (int r = 0; r < R; r++) {
                __m256 values[4];
                F::values(row[r], v, values);
                for (int j = 0; j < 4; j++) sum[j] = _mm256_fmadd_ps(factor[r], values[j], sum[j]);
            }
            for (int j = 0; j < 4; j++) _mm256_storeu_ps(to + 8 * j, sum[j]);
        }
        for (int r = 0; r < R; r++) row[r] += kStrip * sizeof(typename F::Block);
    }
}

template <typename F>
void add_folded(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const float* h, float* y) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) add_folded_tile<F, 4>(w, stride, ids + i, cols, h + i, y);
    for (; i < n; i++) add_folded_tile<F, 1>(w, stride, ids + i, cols, h + i, y);
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
NEURON(q4_0, dot_folded<FoldQ4_0>, add_folded<FoldQ4_0>)
NEURON(q8_0, dot_folded<FoldQ8_0>, add_folded<FoldQ8_0>)

}  // namespace ggml::cpu::avx2
