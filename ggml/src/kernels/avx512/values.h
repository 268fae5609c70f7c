// Loads of F32, F16 and BF16 for the AVX-512 kernels.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ggml::cpu::avx512 {

// Sixteen values of a row from column i on; 0 where the mask is 0.
struct F32 {
    static constexpr int size = 4;  // bytes
    static __m512 load(const uint8_t* row, int64_t i, __mmask16 m) {
        return _mm512_maskz_loadu_ps(m, reinterpret_cast<const float*>(row) + i);
    }
};

struct F16 {
    static constexpr int size = 2;
    static __m512 load(const uint8_t* row, int64_t i, __mmask16 m) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, row + 2 * i));
    }
};

struct BF16 {
    static constexpr int size = 2;
    static __m512 load(const uint8_t* row, int64_t i, __mmask16 m) {
        const __m256i bits = _mm256_maskz_loadu_epi16(m, row + 2 * i);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
};

}  // namespace ggml::cpu::avx512
