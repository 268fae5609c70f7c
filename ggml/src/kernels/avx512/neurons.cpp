// Products of many neuron rows with several tokens, which are computed in pairs of rows. vnni
// computes the rest, above all a single token, where memory is the bottleneck anyway.
#include "kernels/avx512/pairs.h"

namespace ggml::cpu::avx512 {

namespace {

constexpr int kPairs = 2, kRows = 2 * kPairs;  // rows that are computed together

inline float horizontal_sum(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <typename F, int T>
[[gnu::noinline]] void tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                            const Q8Rows& q8, const int32_t* tokens, float* y, int64_t ldy) {
    const Eighths<T> x(q8, tokens);
    for (; n > 0; n -= kRows, ids += kRows, y += kRows * ldy) {
        Pair pairs[kPairs];
        for (int s = 0; s < kPairs; s++) {
            pairs[s] = {w + ids[2 * s] * stride, w + ids[2 * s + 1] * stride};
        }
        __m512 sum[kPairs][T];
        multiply<F>(pairs, x, sum);
        for (int s = 0; s < kPairs; s++) {
            for (int t = 0; t < T; t++) {
                y[2 * s * ldy + t] = horizontal_sum(_mm512_castps512_ps256(sum[s][t]));
                y[(2 * s + 1) * ldy + t] = horizontal_sum(_mm512_extractf32x8_ps(sum[s][t], 1));
            }
        }
    }
}

template <typename F, const dot_fn& narrow>
void dot(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
         const NeuronInput& x, const int32_t* tokens, int64_t nt, float* y) {
    const int64_t paired = nt > kFewest ? n / kRows * kRows : 0;
    if (paired) {
        for_tiles(nt, [&](auto count, int64_t t) {
            tile<F, count>(w, stride, ids, paired, x.folded, tokens + t, y + t, nt);
        });
    }
    if (paired < n) {
        NeuronInput rest = x;
        rest.prefetch = x.prefetch.from(paired);
        narrow(w, stride, ids + paired, n - paired, cols, rest, tokens, nt, y + paired * nt);
    }
}

}  // namespace

const dot_fn dot__q4_0 = dot<PairsQ4_0, vnni::dot__q4_0>;
const dot_fn dot__q8_0 = dot<PairsQ8_0, vnni::dot__q8_0>;
const dot_fn dot__q4_k = dot<PairsQ4_K, vnni::dot__q4_k>;

}  // namespace ggml::cpu::avx512
