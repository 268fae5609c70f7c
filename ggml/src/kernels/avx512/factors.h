// Scales and mins of Q4_K for the AVX-512 kernels.
#pragma once

#include <immintrin.h>

#include "kernels/avx512/isa.h"

namespace ggml::cpu::GGML_ISA {

// Unpacks the 6-bit scales and mins of eight groups from three registers of packed bytes. Each
// 32-bit lane then holds four of them.
struct Factors {
    Factors(__m512i a, __m512i b, __m512i c) {
        const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15),
                      top = _mm512_set1_epi8(48);
        scales[0] = _mm512_and_si512(a, six);
        mins[0] = _mm512_and_si512(b, six);
        scales[1] = _mm512_or_si512(_mm512_and_si512(c, four),
                                    _mm512_and_si512(_mm512_srli_epi16(a, 2), top));
        mins[1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(c, 4), four),
                                  _mm512_and_si512(_mm512_srli_epi16(b, 2), top));
    }
    static __m512i one(const __m512i factors[2], int j) {
        return _mm512_and_si512(_mm512_srli_epi32(factors[j / 4], unsigned(8 * (j % 4))),
                                _mm512_set1_epi32(255));
    }
    __m512i scales[2], mins[2];
};

}  // namespace ggml::cpu::GGML_ISA
