// The kernels of a block format, made from its description: products of a strip with tokens, and
// products and weighted sums of folded neuron rows. See strip.h.
#pragma once

#include "cpu/avx2/strip.h"

namespace ggml::cpu::avx2 {

// Adds the products of a strip or a folded row with T tokens, block by block.
template <typename F, int T, typename X>
inline void multiply(const uint8_t* w, const X& x, __m256 (&sum)[T]) {
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < x.n_blocks; b += F::blocks) {
        F::template multiply<T>(w, x, b, sum);
        w += kStrip * sizeof(typename F::Block);
    }
}

// Calls kernel(number of tokens as a type, first token) for tiles of `most` tokens, 4, then 1.
// Larger tiles share the unpacking of weights among more tokens, until sums and pointers no longer
// fit the registers: 6 or 8 were the fastest (a Zen 4 core, G multiply-adds/s at 4 and at the tile
// chosen: Q4_0 100 and 103, Q4_K 99 and 103, Q5_K 75 and 88, Q6_K 75 and 82, Q8_0 64 and 68).
template <int most, typename Kernel>
inline void for_tiles(int64_t nt, const Kernel& kernel) {
    int64_t t = 0;
    for (; t + most <= nt; t += most) kernel(std::integral_constant<int, most>(), t);
    for (; t + 4 <= nt; t += 4) kernel(std::integral_constant<int, 4>(), t);
    for (; t < nt; t++) kernel(std::integral_constant<int, 1>(), t);
}

// Not inlined: merged with the tiles of other sizes, those of 8 tokens keep fewer values in
// registers (Q5_0 a third slower, Q8_0 a fifth).
template <typename F, int T>
[[gnu::noinline]] void strip_tile(const uint8_t* w, const Q8Rows& q8, int64_t t0, float* y,
                                  int64_t ldy) {
    const Tokens x(q8, t0);
    __m256 sum[T];
    multiply<F, T>(w, x, sum);
    for (int t = 0; t < T; t++) _mm256_storeu_ps(y + t * ldy, sum[t]);
}

template <typename F>
void strip_tokens(const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
                  int64_t ldy) {
    for_tiles<F::tokens>(
        nt, [&](auto n, int64_t t) { strip_tile<F, n>(w, x, t0 + t, y + t * ldy, ldy); });
}

template <typename F>
void dot_folded(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                const NeuronInput& in, float* y) {
    const Eighths x(in.folded, in.t);
    for (int64_t i = 0; i < n; i++) {
        __m256 sum[1];
        multiply<F, 1>(w + ids[i] * stride, x, sum);
        y[i] = horizontal_sum(sum[0]);
    }
}

// R rows at a time share the loads and stores of y; each column still adds them in ascending order.
template <typename F, int R>
void add_tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t cols, const float* h,
              float* y) {
    const uint8_t* row[R];
    for (int r = 0; r < R; r++) row[r] = w + ids[r] * stride;
    const __m256i bias = _mm256_set1_epi8(F::bias);
    // Byte i of every four to the top of 32 bits, that is times 2^24, which the scales take back:
    // one operation where moving it to the bottom with its sign takes two.
    const __m256 unit = _mm256_set1_ps(1.0f / (1 << 24));
    __m256i pick[4];
    for (int i = 0; i < 4; i++) {
        pick[i] = _mm256_setr_epi32(0x00808080, 0x04808080, 0x08808080, 0x0c808080, 0x00808080,
                                    0x04808080, 0x08808080, 0x0c808080);
        pick[i] = _mm256_add_epi32(pick[i], _mm256_set1_epi32(i << 24));
    }
    for (int64_t c = 0; c < cols; c += kStrip * kQ * F::blocks) {
        // Columns that share a scale; unrolled, as most shifts of the _K formats depend on which.
#pragma GCC unroll 16
        for (int k = 0; k < F::blocks * F::halves; k++) {
            const int j = k / F::halves, groups = 8 / F::halves, first = k % F::halves * groups;
            __m256 factor[R], scale[R], min[R];
            for (int r = 0; r < R; r++) {
                const Numbers n = F::numbers(row[r], j, k % F::halves);
                factor[r] = _mm256_set1_ps(h[r]);
                scale[r] = _mm256_mul_ps(n.scale, unit);
                min[r] = n.min;
                if (!F::has_min) factor[r] = _mm256_mul_ps(factor[r], scale[r]);
            }
            for (int v = first; v < first + groups; v++) {
                float* to = y + c + kStrip * kQ * j + 32 * v;
                __m256 sum[4];
                for (int i = 0; i < 4; i++) sum[i] = _mm256_loadu_ps(to + 8 * i);
                for (int r = 0; r < R; r++) {
                    const __m256i bytes = _mm256_sub_epi8(F::weights(row[r], j, v), bias);
                    for (int i = 0; i < 4; i++) {
                        __m256 value = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, pick[i]));
                        if (F::has_min) value = _mm256_fmadd_ps(scale[r], value, min[r]);
                        sum[i] = _mm256_fmadd_ps(factor[r], value, sum[i]);
                    }
                }
                for (int i = 0; i < 4; i++) _mm256_storeu_ps(to + 8 * i, sum[i]);
            }
        }
        for (int r = 0; r < R; r++) row[r] += kStrip * sizeof(typename F::Block);
    }
}

template <typename F>
void add_folded(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const float* h, float* y) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) add_tile<F, 4>(w, stride, ids + i, cols, h + i, y);
    for (; i < n; i++) add_tile<F, 1>(w, stride, ids + i, cols, h + i, y);
}

}  // namespace ggml::cpu::avx2

#define BLOCK_KERNELS(suffix, Format)                                                              \
    void strip__##suffix##_q8(const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y, \
                              int64_t ldy) {                                                       \
        strip_tokens<Format>(w, x, t0, nt, y, ldy);                                                \
    }                                                                                              \
    void dot__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t,   \
                       const NeuronInput& x, float* y) {                                           \
        dot_folded<Format>(w, stride, ids, n, x, y);                                               \
    }                                                                                              \
    void add__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,            \
                       int64_t cols, const float* h, float* y) {                                   \
        add_folded<Format>(w, stride, ids, n, cols, h, y);                                         \
    }
