// The vocabulary of cpu/simd.h for AVX2, FMA and F16C; and for vnni and avxvnni, which have the
// same products of bytes besides, in the encoding of AVX-512 and of AVX.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "ggml/blocks.h"

#if defined(__AVX512VNNI__)
#define GGML_ISA vnni
#elif defined(__AVXVNNI__)
#define GGML_ISA avxvnni
#else
#define GGML_ISA avx2
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define GGML_ADDS_BYTES
#define GGML_STRIPS_ALONE  // the other kernels are avx2's or avx512's, but for
#define GGML_FREQUENT_NEURONS
#endif

#include "kernels/avx/floats.h"

namespace ggml::cpu::GGML_ISA {

using i256 = __m256i;

constexpr int kMostTokens = 8;

inline i256 load(const void* p) {
    return _mm256_loadu_si256(static_cast<const i256*>(p));
}
inline __m128i load_half(const void* p) {  // 16 bytes
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

// ---- floats ----------------------------------------------------------------------------------
inline f32x8 load_f16(const void* p) {
    return _mm256_cvtph_ps(load_half(p));
}
inline f32x8 load_bf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16));
}
inline f32x8 load_i8(const void* p) {
    const __m128i q = _mm_loadl_epi64(static_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
}
inline f32x8 gather_f16(const uint8_t* const (&p)[8]) {
    const auto half = [&](int i) {
        uint16_t h;
        std::memcpy(&h, p[i], 2);
        return int16_t(h);
    };
    return _mm256_cvtph_ps(
        _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}
inline float f16_value(f16_t h) {
    return _cvtsh_ss(h);
}
inline f32x8 add_product(f32x8 sum, f32x8 a, f32x8 b) {
    return _mm256_fmadd_ps(a, b, sum);
}
inline float add_product(float sum, float a, float b) {
    return __builtin_fmaf(a, b, sum);
}
inline f32x8 sub_product(f32x8 sum, f32x8 a, f32x8 b) {
    return _mm256_fnmadd_ps(a, b, sum);
}
inline f32x8 as_float(i256 v) {
    return _mm256_castsi256_ps(v);
}
inline f32x8 to_float(i256 v) {
    return _mm256_cvtepi32_ps(v);
}
inline i256 to_int(f32x8 v) {
    return _mm256_cvtps_epi32(v);
}

// ---- integers --------------------------------------------------------------------------------
inline i256 splat8(int v) {
    return _mm256_set1_epi8(char(v));
}
inline i256 splat16(int v) {
    return _mm256_set1_epi16(int16_t(v));
}
inline i256 splat32(int v) {
    return _mm256_set1_epi32(v);
}
inline i256 add8(i256 a, i256 b) {
    return _mm256_add_epi8(a, b);
}
inline i256 sub8(i256 a, i256 b) {
    return _mm256_sub_epi8(a, b);
}
inline i256 add32(i256 a, i256 b) {
    return _mm256_add_epi32(a, b);
}
inline i256 sub32(i256 a, i256 b) {
    return _mm256_sub_epi32(a, b);
}
inline i256 greater8(i256 a, i256 b) {
    return _mm256_cmpgt_epi8(a, b);
}
inline i256 max32(i256 a, i256 b) {
    return _mm256_max_epi32(a, b);
}
inline i256 mul16(i256 a, i256 b) {
    return _mm256_mullo_epi16(a, b);
}
inline i256 shift_left16(i256 a, int n) {
    return _mm256_slli_epi16(a, n);
}
inline i256 shift_right16(i256 a, int n) {
    return _mm256_srli_epi16(a, n);
}
inline i256 shift_left32(i256 a, int n) {
    return _mm256_slli_epi32(a, n);
}
inline i256 shift_right32(i256 a, int n) {
    return _mm256_srli_epi32(a, n);
}
template <int... n>
inline i256 shift_right_each(i256 a) {
    return _mm256_srlv_epi32(a, _mm256_setr_epi32(n...));
}
inline i256 low_nibbles(i256 a) {
    return a & splat8(15);
}
inline i256 high_nibbles(i256 a) {
    return shift_right16(a, 4) & splat8(15);
}
inline i256 table16(const int8_t* table, i256 indices) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_half(table)), indices);
}
inline i256 word(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, 4);
    return _mm256_set1_epi32(bytes);
}
// The lanes whose index is i.
template <int... at>
constexpr int lanes_of(int i) {
    int lane = 1, mask = 0;
    ((mask |= at == i ? lane : 0, lane *= 2), ...);
    return mask;
}
template <int... at>
inline i256 words(const uint8_t* p, int64_t apart) {
    static_assert(((at < 4) && ...), "four different words");
    constexpr int second = lanes_of<at...>(1), third = lanes_of<at...>(2),
                  fourth = lanes_of<at...>(3);
    i256 v = _mm256_blend_epi32(word(p), word(p + apart), second);
    if constexpr (third) v = _mm256_blend_epi32(v, word(p + 2 * apart), third);
    if constexpr (fourth) v = _mm256_blend_epi32(v, word(p + 3 * apart), fourth);
    return v;
}
inline i256 lanes(const uint32_t (&v)[8]) {
    return _mm256_setr_epi32(int(v[0]), int(v[1]), int(v[2]), int(v[3]), int(v[4]), int(v[5]),
                             int(v[6]), int(v[7]));
}
inline void first_and_second(const uint64_t (&pairs)[8], i256& first, i256& second) {
    const auto four = [&](int i) {
        return _mm256_castsi256_ps(_mm256_setr_epi64x(int64_t(pairs[i]), int64_t(pairs[i + 1]),
                                                      int64_t(pairs[i + 4]),
                                                      int64_t(pairs[i + 5])));
    };
    const __m256 a = four(0), b = four(2);
    first = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    second = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}
inline i256 words_16_apart(const uint8_t* p) {
    return _mm256_i32gather_epi32(reinterpret_cast<const int*>(p),
                                  _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), 4);
}
inline i256 widen8(uint64_t bytes) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(bytes)));
}
inline i256 widen16(const void* p) {
    return _mm256_cvtepu16_epi32(load_half(p));
}
// The scales of a stored block of Q3_K (ggml/blocks.h): of groups 2 i and 2 i + 1 in lane i.
inline i256 q3_scales(const uint8_t* packed) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
    const __m128i low = _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4));
    const __m128i high =
        _mm_srlv_epi32(_mm256_castsi256_si128(word(packed + 8)), _mm_setr_epi32(0, 2, 4, 6));
    const __m128i scales =
        _mm_sub_epi8(_mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)),
                                  _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4)),
                     _mm_set1_epi8(32));
    return _mm256_cvtepu16_epi32(scales);
}
inline i256 has_bit(i256 a, i256 mask) {
    return _mm256_cmpeq_epi8(a & mask, mask);
}
// Shuffles within lanes: byte b of `pattern` gives the place, within its lane, of byte b of every
// lane; 0x80 gives 0.
inline i256 shuffle_lanes(i256 a, int pattern) {
    // No byte of the sum carries into the next: 0x80 + 12 < 256.
    const i256 lanes = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404,
                                         0x08080808, 0x0c0c0c0c);
    return _mm256_shuffle_epi8(a, _mm256_add_epi8(lanes, _mm256_set1_epi32(pattern)));
}

struct b32 {
    __m128i a, b;
};
inline b32 load_nibbles(const uint8_t* p) {
    const __m128i pairs = load_half(p), low = _mm_set1_epi8(15);
    return {_mm_and_si128(pairs, low), _mm_and_si128(_mm_srli_epi16(pairs, 4), low)};
}
// Bits 16 k .. 16 k + 15 of a word as bit 4 of sixteen bytes.
inline __m128i fifth_bits(const uint8_t* p, int k) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * k, 2);
    const __m128i mask = _mm_set1_epi64x(int64_t(0x8040201008040201));
    const __m128i bytes =
        _mm_shuffle_epi8(_mm_set1_epi16(int16_t(bits)), _mm_set_epi64x(0x0101010101010101, 0));
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bytes, mask), mask), _mm_set1_epi8(16));
}
inline b32 add_bit_4(b32 nibbles, const uint8_t* p) {
    return {_mm_or_si128(nibbles.a, fifth_bits(p, 0)), _mm_or_si128(nibbles.b, fifth_bits(p, 1))};
}
inline b32 minus(b32 v, int n) {
    return {_mm_sub_epi8(v.a, _mm_set1_epi8(char(n))), _mm_sub_epi8(v.b, _mm_set1_epi8(char(n)))};
}
inline b32 table16(const int8_t* table, b32 indices) {
    const __m128i entries = load_half(table);
    return {_mm_shuffle_epi8(entries, indices.a), _mm_shuffle_epi8(entries, indices.b)};
}
inline f32x8 from_i8(__m128i eight) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
}
inline void to_floats(b32 bytes, f32x8 (&out)[4]) {
    out[0] = from_i8(bytes.a);
    out[1] = from_i8(_mm_srli_si128(bytes.a, 8));
    out[2] = from_i8(bytes.b);
    out[3] = from_i8(_mm_srli_si128(bytes.b, 8));
}

// The 32 codes of a block in one register.
inline i256 load_codes(const uint8_t* p) {
    const i256 twice = _mm256_broadcastsi128_si256(load_half(p));
    return _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4)) & splat8(15);
}
inline i256 swap_middle(i256 a) {
    return _mm256_permute4x64_epi64(a, 0xd8);
}
inline i256 add_bit_4(i256 codes, const uint8_t* p) {
    const i256 byte =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const i256 mask = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    return codes | (has_bit(_mm256_shuffle_epi8(word(p), byte), mask) & splat8(16));
}

// Moves byte i of every four bytes to the top of 32 bits, which multiplies it by 2^24. This takes
// one operation; sign extension to the bottom would take two.
constexpr float kByteUnit = 1.0f / (1 << 24);
using Pick = i256;
inline Pick pick_byte(int i) {
    const i256 pick = _mm256_setr_epi32(0x00808080, 0x04808080, 0x08808080, 0x0c808080, 0x00808080,
                                        0x04808080, 0x08808080, 0x0c808080);
    return _mm256_add_epi32(pick, _mm256_set1_epi32(i << 24));
}
inline f32x8 picked(i256 bytes, Pick pick) {
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, pick));
}

inline i256 clamp32(i256 v, int limit) {
    return _mm256_max_epi32(_mm256_min_epi32(v, splat32(limit)), splat32(-limit));
}
inline i256 pack(const i256 (&q)[4]) {
    const i256 bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
inline void two_sums(i256 a, i256 b, int32_t (&sum)[2]) {
    i256 s = _mm256_hadd_epi32(a, b);
    s = _mm256_hadd_epi32(s, s);
    const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    sum[0] = _mm_cvtsi128_si32(both);
    sum[1] = _mm_extract_epi32(both, 1);
}

// A table of 16 entries gives the number of bits in a nibble.
template <int n>
inline i256 add_bit_counts(i256 sum, i256 bytes) {
    const i256 table =
        _mm256_slli_epi16(_mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1,
                                           2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4),
                          n);
    sum = add8(sum, _mm256_shuffle_epi8(table, low_nibbles(bytes)));
    return add8(sum, _mm256_shuffle_epi8(table, high_nibbles(bytes)));
}
inline i256 add_bytes(i256 sum, i256 bytes) {
    return _mm256_add_epi64(sum, _mm256_sad_epu8(bytes, _mm256_setzero_si256()));
}
inline int32_t total(i256 sum) {
    const __m128i half =
        _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return int32_t(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
}

// ---- sums of products ------------------------------------------------------------------------
inline i256 pair(i256 bytes, int i, int j) {
    return _mm256_srai_epi16(shuffle_lanes(bytes, 0x00800080 | i << 8 | j << 24), 8);
}
inline f32x8 short_to_float(i256 pairs, int half) {
    return to_float(_mm256_srai_epi32(_mm256_slli_epi32(pairs, 16 - 16 * half), 16));
}
inline i256 add_pairs(i256 a, i256 b) {
    return _mm256_madd_epi16(a, b);
}

inline i256 lane_totals(const i256 (&v)[8]) {
    const auto four = [&](int i) {
        return _mm256_hadd_epi32(_mm256_hadd_epi32(v[i], v[i + 1]),
                                 _mm256_hadd_epi32(v[i + 2], v[i + 3]));
    };
    const i256 a = four(0), b = four(4);
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}

// The same for sums of products of codes, which fit 16 bits until the last addition.
inline void code_half_totals(const i256 (&v)[8], i256& first, i256& second) {
    const i256 one = _mm256_set1_epi16(1);
    const auto add_pairs = [&](i256 a, i256 b) {
        return _mm256_madd_epi16(_mm256_packs_epi32(a, b), one);
    };
    const auto four = [&](int i) {
        return add_pairs(add_pairs(v[i], v[i + 1]), add_pairs(v[i + 2], v[i + 3]));
    };
    const i256 a = four(0), b = four(4);
    first = _mm256_permute2x128_si256(a, b, 0x20);
    second = _mm256_permute2x128_si256(a, b, 0x31);
}
inline i256 code_totals(const i256 (&v)[8]) {
    i256 first, second;
    code_half_totals(v, first, second);
    return _mm256_add_epi32(first, second);
}

#ifdef GGML_ADDS_BYTES
inline i256 add_byte_products(i256 sum, i256 bytes, i256 x) {
#ifdef __AVX512VNNI__
    return _mm256_dpbusd_epi32(sum, bytes, x);
#else
    return _mm256_dpbusd_avx_epi32(sum, bytes, x);
#endif
}
inline i256 shift_right_signed32(i256 a, int n) {
    return _mm256_srai_epi32(a, n);
}
inline i256 code_products(i256 codes, i256 x) {
    return add_byte_products(_mm256_setzero_si256(), codes, x);
}

// A factor is the 32-bit integer of its lane.
inline i256 factor(i256 bytes, int i) {
    return shuffle_lanes(bytes, int(0x80808000u) | i);
}
inline i256 signed_factor(i256 bytes, int i) {
    return _mm256_srai_epi32(_mm256_slli_epi32(bytes, 24 - 8 * i), 24);
}

// Two chains of sums hide their latency.
template <int bits, typename X>
inline i256 products32(const i256 (&w)[8], const X& x) {
    i256 even = _mm256_setzero_si256(), odd = even;
    for (int v = 0; v < 8; v += 2) {
        even = add_byte_products(even, w[v], x[v]);
        odd = add_byte_products(odd, w[v + 1], x[v + 1]);
    }
    return _mm256_add_epi32(even, odd);
}
template <int bits, typename X>
inline i256 products32(const i256 (&w)[8], const X& x, i256 factor) {
    return _mm256_mullo_epi32(products32<bits>(w, x), factor);
}
template <int sums, int v, typename X>
inline i256 products16(const i256 (&w)[8], const X& x) {
    i256 sum = _mm256_setzero_si256();
    for (int i = v; i < v + 4; i++) sum = add_byte_products(sum, w[i], x[i]);
    return sum;
}
template <int sums, int v, typename X>
inline i256 products16(const i256 (&w)[8], const X& x, i256 factor) {
    return _mm256_mullo_epi32(products16<sums, v>(w, x), factor);
}

// Multiplies w + 128, which is unsigned, and subtracts 128 times the sum of the activations.
// AVX-VNNI-INT8 (bit 4 of EDX where AVX-VNNI is bit 4 of EAX) would do without.
template <int T, typename W, typename X, typename Sum8>
inline void signed_products32(const W& weights, const X& x, const Sum8& sum8, i256 (&sum)[T]) {
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_si256();
    for (int v = 0; v < 8; v++) {
        const i256 w = weights(v) ^ splat8(-128);
        for (int t = 0; t < T; t++) sum[t] = add_byte_products(sum[t], w, x(t)[v]);
    }
    for (int t = 0; t < T; t++) sum[t] = sub32(sum[t], shift_left32(sum8(t), 4));
}
#else
inline i256 code_products(i256 codes, i256 x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), splat16(1));
}

// A factor is in both 16-bit halves of its lane, because the instruction that widens 16-bit sums
// also multiplies them.
inline i256 factor(i256 bytes, int i) {
    return shuffle_lanes(bytes, int(0x80008000u) | i << 16 | i);
}
inline i256 signed_factor(i256 bytes, int i) {
    return pair(bytes, i, i);
}

template <int sums, int v, typename X>
inline i256 products16(const i256 (&w)[8], const X& x, i256 factor = splat16(1)) {
    i256 p[4];
    for (int i = 0; i < 4; i++) p[i] = _mm256_maddubs_epi16(w[v + i], x[v + i]);
    const i256 first = _mm256_add_epi16(p[0], p[1]), second = _mm256_add_epi16(p[2], p[3]);
    if (sums == 4) return _mm256_madd_epi16(_mm256_add_epi16(first, second), factor);
    return _mm256_add_epi32(_mm256_madd_epi16(first, factor), _mm256_madd_epi16(second, factor));
}

// With 4-bit weights, eight byte products of at most 2 * 15 * 127 fit 16 bits, so the block needs
// one widening addition. With 5-bit weights four fit, so it needs two; with 6 bits, four.
template <int bits, typename X>
inline i256 products32(const i256 (&w)[8], const X& x, i256 factor = splat16(1)) {
    if constexpr (bits == 6) {
        return _mm256_add_epi32(products16<2, 0>(w, x, factor), products16<2, 4>(w, x, factor));
    }
    i256 even = _mm256_maddubs_epi16(w[0], x[0]);
    i256 odd = _mm256_maddubs_epi16(w[1], x[1]);
    for (int v = 2; v < 8; v += 2) {
        even = _mm256_add_epi16(even, _mm256_maddubs_epi16(w[v], x[v]));
        odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(w[v + 1], x[v + 1]));
    }
    if (bits == 4) return _mm256_madd_epi16(_mm256_add_epi16(even, odd), factor);
    return _mm256_add_epi32(_mm256_madd_epi16(even, factor), _mm256_madd_epi16(odd, factor));
}

// Multiplies |w| by x with the sign of w. A sum of two such products, 2 * 128 * 127, fits 16 bits,
// but adding a second one would not, so every pair is widened at once.
template <int T, typename W, typename X, typename Sum8>
inline void signed_products32(const W& weights, const X& x, const Sum8&, i256 (&sum)[T]) {
    const i256 ones = splat16(1);
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_si256();
    for (int v = 0; v < 8; v++) {
        const i256 w = weights(v), magnitude = _mm256_abs_epi8(w);
        for (int t = 0; t < T; t++) {
            const i256 values = _mm256_sign_epi8(x(t)[v], w);
            const i256 pairs = _mm256_maddubs_epi16(magnitude, values);
            sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(pairs, ones));
        }
    }
}
#endif

inline i256 signed_products(i256 w, i256 x) {
    return code_products(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}

constexpr bool kTurnsActivations = true;
inline i256 turned(i256 x, i256 sign) {
    return _mm256_sign_epi8(x, sign);
}

}  // namespace ggml::cpu::GGML_ISA
