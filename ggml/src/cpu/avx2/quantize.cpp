// Activations to 8 bits; the same bits as generic.
#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

void quantize__f32_q8(const float* x, int64_t t0, int64_t nt, const Q8Rows& out) {
    const int64_t n_blocks = out.cols / kQ;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i limit = _mm256_set1_epi32(127), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = t0 * n_blocks; b < (t0 + nt) * n_blocks; b++) {
        __m256 v[4], largest = _mm256_setzero_ps();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + b * kQ + 8 * i);
            // The operand order makes a NaN in v lose against what was there, as in generic.
            largest = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), largest);
        }
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        m = _mm_max_ss(m, _mm_movehdup_ps(m));
        const float d = _mm_cvtss_f32(m) / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
        __m256i q[4], sums = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
            q[i] = _mm256_max_epi32(_mm256_min_epi32(q[i], limit), _mm256_sub_epi32(_mm256_setzero_si256(), limit));
            sums = _mm256_add_epi32(sums, q[i]);
        }
        const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q + b * kQ), _mm256_permutevar8x32_epi32(bytes, order));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 1));
        out.d[b] = d;
        out.s8[b] = 8 * _mm_cvtsi128_si32(s);
    }
}

}  // namespace ggml::cpu::avx2
