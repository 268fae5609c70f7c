// Quantises activations to 8 bits, with the same bits as generic.
#include <cmath>

#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

void quantize__f32_q8(const float* x, int64_t t0, int64_t nt, const Q8Rows& out) {
    const int64_t n_blocks = out.cols / kQ;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i limit = _mm256_set1_epi32(127), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = t0 * n_blocks; b < (t0 + nt) * n_blocks; b++) {
        __m256 v[4], largest = _mm256_setzero_ps(), unordered = _mm256_setzero_ps();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + b * kQ + 8 * i);
            unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
            // With this operand order max ignores a NaN in v, as generic does.
            largest = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), largest);
        }
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        m = _mm_max_ss(m, _mm_movehdup_ps(m));
        const float d = _mm_cvtss_f32(m) / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
        __m256i q[4];
        for (int i = 0; i < 4; i++) {
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
            q[i] = _mm256_max_epi32(_mm256_min_epi32(q[i], limit),
                                    _mm256_sub_epi32(_mm256_setzero_si256(), limit));
        }
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q + b * kQ),
                            _mm256_permutevar8x32_epi32(bytes, order));
        // Lanes 0 and 1 of each half get partial sums of columns 0..15 and 16..31.
        const __m256i first = _mm256_add_epi32(q[0], q[1]), second = _mm256_add_epi32(q[2], q[3]);
        __m256i s = _mm256_hadd_epi32(first, second);
        s = _mm256_hadd_epi32(s, s);
        const __m128i both =
            _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        const int32_t low = _mm_cvtsi128_si32(both), high = _mm_extract_epi32(both, 1);
        const float scale = _mm256_testz_ps(unordered, unordered) ? d : NAN;
        out.d[b] = scale;
        out.s8[b] = 8 * (low + high);
        out.ds[b] = scale * float(low + high);
        out.s16[2 * b] = int16_t(low);
        out.s16[2 * b + 1] = int16_t(high);
    }
}

}  // namespace ggml::cpu::avx2
