// Scores of attention, as in lanes/attention.cpp: positions in up to four registers, by up to six
// queries.
#include "kernels/avx512/isa.h"
#include "kernels/avx512/token_tiles.h"
#include "kernels/avx512/values.h"
#include "kernels/lanes/softmax.h"

namespace ggml::cpu::avx512 {

namespace {

// Sixteen positions in each of N registers.
template <typename W, int N, int T>
void tile(const uint8_t* keys, const uint8_t* next, int64_t head_dim, const float* q, float* y,
          int64_t ldy) {
    __m512 sum[T][N];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) sum[t][i] = _mm512_setzero_ps();
    }
    constexpr int64_t column = kKvPage * W::size;
    for (int64_t c = 0; c < head_dim; c++, keys += column, next += column) {
        for (int i = 0; i < column; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
        __m512 key[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) key[i] = W::load(keys, 16 * i, 0xffff);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512 factor = _mm512_set1_ps(q[t * head_dim + c]);
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) sum[t][i] = _mm512_fmadd_ps(factor, key[i], sum[t][i]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) _mm512_storeu_ps(y + t * ldy + 16 * i, sum[t][i]);
    }
}

template <typename W, int N>
void some_scores(const uint8_t* keys, const uint8_t* next, int64_t head_dim, const float* q,
                 int64_t nt, float* y, int64_t ldy) {
    const auto tiles = [&](auto T, int64_t t) {
        tile<W, N, T>(keys, t ? keys : next, head_dim, q + t * head_dim, y + t * ldy, ldy);
    };
    if (nt >= kFewest) return for_tiles(nt, tiles);
    if (nt == 2) tiles(Count<2>(), 0);
    if (nt == 1) tiles(Count<1>(), 0);
}

template <typename W>
void scores(const uint8_t* keys, const uint8_t* next, int64_t head_dim, int64_t n, const float* q,
            int64_t nt, float* y, int64_t ldy) {
    if (n > 48) return some_scores<W, 4>(keys, next, head_dim, q, nt, y, ldy);
    if (n > 32) return some_scores<W, 3>(keys, next, head_dim, q, nt, y, ldy);
    if (n > 16) return some_scores<W, 2>(keys, next, head_dim, q, nt, y, ldy);
    some_scores<W, 1>(keys, next, head_dim, q, nt, y, ldy);
}

struct Sixteen {
    static float largest(const float* x, int64_t n) {
        __m512 most = _mm512_set1_ps(-INFINITY);
        for (int64_t i = 0; i < n; i += 16) most = _mm512_max_ps(_mm512_loadu_ps(x + i), most);
        return _mm512_reduce_max_ps(most);
    }
    static float total(const float* x, int64_t n) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < n; i += 16) sum = _mm512_add_ps(sum, _mm512_loadu_ps(x + i));
        return _mm512_reduce_add_ps(sum);
    }
    // Whole registers are stored: loads would wait for parts of them.
    static void outside(float* x, int64_t n, int64_t begin, int64_t end, float v) {
        const auto set = [&](float* at, uint32_t lanes) {
            const __m512 old = _mm512_loadu_ps(at);
            _mm512_storeu_ps(at, _mm512_mask_mov_ps(old, __mmask16(lanes), _mm512_set1_ps(v)));
        };
        if (begin > 0) set(x, (1u << begin) - 1);
        if (end < n) set(x + n - 16, ~0u << (end - n + 16));
    }
};

}  // namespace

const scores_fn scores__f32_f32 = scores<F32>;
const scores_fn scores__f16_f32 = scores<F16>;
const softmax_fn softmax__f32 = softmax<Sixteen>;

}  // namespace ggml::cpu::avx512
