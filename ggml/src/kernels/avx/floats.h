// Words of cpu/simd.h for floats that AVX and AVX2 have in common.
#pragma once

#include <immintrin.h>

namespace ggml::cpu::GGML_ISA {

using f32x8 = __m256;

inline f32x8 load_f32(const void* p) {
    return _mm256_loadu_ps(static_cast<const float*>(p));
}
inline void store(float* p, f32x8 v) {
    _mm256_storeu_ps(p, v);
}
inline f32x8 splat(float v) {
    return _mm256_set1_ps(v);
}
inline f32x8 mul(f32x8 a, f32x8 b) {
    return _mm256_mul_ps(a, b);
}
inline float horizontal_sum(f32x8 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline f32x8 abs(f32x8 v) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}
inline f32x8 max(f32x8 a, f32x8 b) {
    return _mm256_max_ps(a, b);
}
inline float horizontal_max(f32x8 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline bool any_nan(const f32x8 (&v)[4]) {
    f32x8 unordered = _mm256_setzero_ps();
    for (const f32x8& a : v) {
        unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    }
    return !_mm256_testz_ps(unordered, unordered);
}

}  // namespace ggml::cpu::GGML_ISA
