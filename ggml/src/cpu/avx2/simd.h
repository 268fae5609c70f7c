// Shared by the AVX2 kernels: loads of eight values as floats, and sums in a fixed order.
#pragma once

#include <immintrin.h>

#include "ggml/blocks.h"
#include "ggml/tensor.h"

namespace ggml::cpu::avx2 {

// Eight values of a row from column i on, or one value. For Q8_0 the eight must lie in one block.
struct F32 {
    static constexpr int size = 4;  // bytes of a value
    static __m256 load8(const uint8_t* row, int64_t i) {
        return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + i);
    }
    static float load1(const uint8_t* row, int64_t i) {
        return reinterpret_cast<const float*>(row)[i];
    }
};

struct F16 {
    static constexpr int size = 2;  // bytes of a value
    static __m256 load8(const uint8_t* row, int64_t i) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i)));
    }
    static float load1(const uint8_t* row, int64_t i) {
        return _cvtsh_ss(reinterpret_cast<const f16_t*>(row)[i]);
    }
};

struct BF16 {
    static constexpr int size = 2;  // bytes of a value
    static __m256 load8(const uint8_t* row, int64_t i) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    static float load1(const uint8_t* row, int64_t i) {
        return bf16_to_f32(reinterpret_cast<const bf16_t*>(row)[i]);
    }
};

struct Q8_0 {
    static constexpr int size = 1;  // approximately: without the scales

    static __m256 load8(const uint8_t* row, int64_t i) {
        const BlockQ8_0& block = reinterpret_cast<const BlockQ8_0*>(row)[i / kQ];
        const __m128i q = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.qs + i % kQ));
        return _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(block.d)),
                             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)));
    }
    static float load1(const uint8_t* row, int64_t i) {
        const BlockQ8_0& block = reinterpret_cast<const BlockQ8_0*>(row)[i / kQ];
        return _cvtsh_ss(block.d) * float(block.qs[i % kQ]);
    }
};

inline float horizontal_sum(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// The four bytes at p, copied to every 32-bit lane.
inline __m256i broadcast4(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return _mm256_set1_epi32(word);
}

}  // namespace ggml::cpu::avx2
