// What the kernels for strips of eight interleaved rows share.
//
// A lane of a register belongs to one row, so the sums of eight rows end side by side. The integer
// sum of a block of 32 columns is exact, and each output adds its blocks in ascending order
// whatever the number of tokens in the tile. Groups: bytes 4 v .. 4 v + 3 of a member, of all eight
// rows.
#pragma once

#include <type_traits>

#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

constexpr int kGroup = 32;  // bytes of a group

inline __m256i load(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline __m256 load_scales(const uint8_t* halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

// sum + w_scales * x_scale * product, for the eight rows of a strip.
inline __m256 add_block(__m256 sum, __m256 w_scales, float x_scale, __m256i product) {
    const __m256 scales = _mm256_mul_ps(w_scales, _mm256_set1_ps(x_scale));
    return _mm256_fmadd_ps(scales, _mm256_cvtepi32_ps(product), sum);
}

// The eight groups of 16 bytes of nibbles: the low ones come first.
inline void nibbles(const uint8_t* qs, __m256i weights[8]) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int v = 0; v < 4; v++) {
        const __m256i pair = load(qs + kGroup * v);
        weights[v] = _mm256_and_si256(pair, low);
        weights[v + 4] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
    }
}

// The same with bit 4: bit i of a row's four bytes qh belongs to column i.
inline void nibbles_and_bits(const uint8_t* qh, const uint8_t* qs, __m256i weights[8]) {
    const __m256i bits = load(qh), sixteen = _mm256_set1_epi8(16);
    nibbles(qs, weights);
    const __m256i first = _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c,
                                           0x08080808, 0x04040404, 0);
    for (int v = 0; v < 8; v++) {
        const __m256i byte =
            _mm256_shuffle_epi8(bits, _mm256_add_epi8(first, _mm256_set1_epi8(char(v / 2))));
        const __m256i mask = _mm256_set1_epi32(v % 2 ? int(0x80402010) : 0x08040201);
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, mask), mask);
        weights[v] = _mm256_or_si256(weights[v], _mm256_and_si256(set, sixteen));
    }
}

// Product of 32 unsigned weights of each row with 32 activations. Of weights of 4 bits eight byte
// products of at most 2 * 15 * 127 add up within 16 bits, so that one widening add serves the
// block; of 5 bits four do.
template <int bits>
inline __m256i product32(const __m256i weights[8], const int8_t* x,
                         __m256i factor = _mm256_set1_epi16(1)) {
    __m256i even = _mm256_maddubs_epi16(weights[0], broadcast4(x));
    __m256i odd = _mm256_maddubs_epi16(weights[1], broadcast4(x + 4));
    for (int v = 2; v < 8; v += 2) {
        even = _mm256_add_epi16(even, _mm256_maddubs_epi16(weights[v], broadcast4(x + 4 * v)));
        odd =
            _mm256_add_epi16(odd, _mm256_maddubs_epi16(weights[v + 1], broadcast4(x + 4 * v + 4)));
    }
    if (bits == 4) return _mm256_madd_epi16(_mm256_add_epi16(even, odd), factor);
    return _mm256_add_epi32(_mm256_madd_epi16(even, factor), _mm256_madd_epi16(odd, factor));
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

}  // namespace ggml::cpu::avx2
