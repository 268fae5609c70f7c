// The vocabulary of cpu/simd.h for AVX, which has registers of eight floats, but only SSSE3 and
// SSE4.1 for integers, 16 bytes at a time. Without FMA, sums of products round twice. Not all of
// these processors have F16C, so halves are converted by integers.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "ggml/blocks.h"

#define GGML_ISA avx

#include "kernels/avx/floats.h"

namespace ggml::cpu::avx {

// The lower and the upper four lanes.
struct i256 {
    __m128i a, b;
};

constexpr int kMostTokens = 8;

inline __m128i load_half(const void* p) {  // 16 bytes
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline i256 load(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return {load_half(bytes), load_half(bytes + 16)};
}

// ---- floats ----------------------------------------------------------------------------------
inline f32x8 as_float(i256 v) {
    return _mm256_castsi256_ps(_mm256_set_m128i(v.b, v.a));
}
inline f32x8 to_float(i256 v) {
    return _mm256_cvtepi32_ps(_mm256_set_m128i(v.b, v.a));
}
inline __m128i blend(__m128i a, __m128i b, __m128i of_b) {
    return _mm_blendv_epi8(a, b, of_b);
}
// The bits of four floats from those of four halves, one per 32 bits. The exponent of a normal
// number grows by 112, that of infinities and NaN by 224. A subnormal gets the exponent 113, as if
// it had a leading 1, which a float subtraction takes away.
inline __m128i widen_f16(__m128i h) {
    const __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
    const __m128i bits = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x7fff)), 13);
    const __m128i exponent = _mm_and_si128(bits, _mm_set1_epi32(31 << 23));
    const __m128i one = _mm_set1_epi32(113 << 23);
    const __m128i more = _mm_set1_epi32(112 << 23);
    const __m128i subnormal = _mm_castps_si128(
        _mm_sub_ps(_mm_castsi128_ps(_mm_add_epi32(bits, one)), _mm_castsi128_ps(one)));
    const __m128i special =
        _mm_and_si128(_mm_cmpeq_epi32(exponent, _mm_set1_epi32(31 << 23)), more);
    const __m128i normal = _mm_add_epi32(_mm_add_epi32(bits, more), special);
    const __m128i small = _mm_cmpeq_epi32(exponent, _mm_setzero_si128());
    return _mm_or_si128(sign, blend(normal, subnormal, small));
}
inline f32x8 from_f16(__m128i h) {
    return as_float(
        {widen_f16(_mm_cvtepu16_epi32(h)), widen_f16(_mm_unpackhi_epi16(h, _mm_setzero_si128()))});
}
inline f32x8 load_f16(const void* p) {
    return from_f16(load_half(p));
}
inline f32x8 gather_f16(const uint8_t* const (&p)[8]) {
    const auto half = [&](int i) {
        uint16_t h;
        std::memcpy(&h, p[i], 2);
        return int16_t(h);
    };
    return from_f16(
        _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}
inline f32x8 load_bf16(const void* p) {
    const __m128i h = load_half(p), zero = _mm_setzero_si128();
    return as_float({_mm_unpacklo_epi16(zero, h), _mm_unpackhi_epi16(zero, h)});
}
inline f32x8 from_i8(__m128i eight) {
    return to_float({_mm_cvtepi8_epi32(eight), _mm_cvtepi8_epi32(_mm_srli_si128(eight, 4))});
}
inline f32x8 load_i8(const void* p) {
    return from_i8(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
inline float f16_value(f16_t h) {
    return _mm_cvtss_f32(_mm_castsi128_ps(widen_f16(_mm_cvtsi32_si128(h))));
}
inline f32x8 add_product(f32x8 sum, f32x8 a, f32x8 b) {
    return _mm256_add_ps(sum, _mm256_mul_ps(a, b));
}
inline float add_product(float sum, float a, float b) {
    return sum + a * b;
}
inline f32x8 sub_product(f32x8 sum, f32x8 a, f32x8 b) {
    return _mm256_sub_ps(sum, _mm256_mul_ps(a, b));
}
inline i256 to_int(f32x8 v) {
    const __m256i q = _mm256_cvtps_epi32(v);
    return {_mm256_castsi256_si128(q), _mm256_extractf128_si256(q, 1)};
}

// ---- integers --------------------------------------------------------------------------------
inline i256 splat8(int v) {
    return {_mm_set1_epi8(char(v)), _mm_set1_epi8(char(v))};
}
inline i256 splat16(int v) {
    return {_mm_set1_epi16(int16_t(v)), _mm_set1_epi16(int16_t(v))};
}
inline i256 splat32(int v) {
    return {_mm_set1_epi32(v), _mm_set1_epi32(v)};
}
inline i256 operator&(i256 a, i256 b) {
    return {_mm_and_si128(a.a, b.a), _mm_and_si128(a.b, b.b)};
}
inline i256 operator|(i256 a, i256 b) {
    return {_mm_or_si128(a.a, b.a), _mm_or_si128(a.b, b.b)};
}
inline i256 operator^(i256 a, i256 b) {
    return {_mm_xor_si128(a.a, b.a), _mm_xor_si128(a.b, b.b)};
}
inline i256 add8(i256 a, i256 b) {
    return {_mm_add_epi8(a.a, b.a), _mm_add_epi8(a.b, b.b)};
}
inline i256 sub8(i256 a, i256 b) {
    return {_mm_sub_epi8(a.a, b.a), _mm_sub_epi8(a.b, b.b)};
}
inline i256 add16(i256 a, i256 b) {
    return {_mm_add_epi16(a.a, b.a), _mm_add_epi16(a.b, b.b)};
}
inline i256 add32(i256 a, i256 b) {
    return {_mm_add_epi32(a.a, b.a), _mm_add_epi32(a.b, b.b)};
}
inline i256 sub32(i256 a, i256 b) {
    return {_mm_sub_epi32(a.a, b.a), _mm_sub_epi32(a.b, b.b)};
}
inline i256 greater8(i256 a, i256 b) {
    return {_mm_cmpgt_epi8(a.a, b.a), _mm_cmpgt_epi8(a.b, b.b)};
}
inline i256 max32(i256 a, i256 b) {
    return {_mm_max_epi32(a.a, b.a), _mm_max_epi32(a.b, b.b)};
}
inline i256 mul16(i256 a, i256 b) {
    return {_mm_mullo_epi16(a.a, b.a), _mm_mullo_epi16(a.b, b.b)};
}
inline i256 shift_left16(i256 a, int n) {
    return {_mm_slli_epi16(a.a, n), _mm_slli_epi16(a.b, n)};
}
inline i256 shift_right16(i256 a, int n) {
    return {_mm_srli_epi16(a.a, n), _mm_srli_epi16(a.b, n)};
}
inline i256 shift_left32(i256 a, int n) {
    return {_mm_slli_epi32(a.a, n), _mm_slli_epi32(a.b, n)};
}
inline i256 shift_right32(i256 a, int n) {
    return {_mm_srli_epi32(a.a, n), _mm_srli_epi32(a.b, n)};
}
template <int n0, int n1, int n2, int n3>
inline __m128i shift_four(__m128i a) {
    const __m128i first = _mm_blend_epi16(_mm_srli_epi32(a, n0), _mm_srli_epi32(a, n1), 0x0c);
    const __m128i second = _mm_blend_epi16(_mm_srli_epi32(a, n2), _mm_srli_epi32(a, n3), 0xc0);
    return _mm_blend_epi16(first, second, 0xf0);
}
template <int n0, int n1, int n2, int n3, int n4, int n5, int n6, int n7>
inline i256 shift_right_each(i256 v) {
    return {shift_four<n0, n1, n2, n3>(v.a), shift_four<n4, n5, n6, n7>(v.b)};
}
inline i256 low_nibbles(i256 a) {
    return a & splat8(15);
}
inline i256 high_nibbles(i256 a) {
    return shift_right16(a, 4) & splat8(15);
}
inline i256 shuffle(i256 a, i256 places) {
    return {_mm_shuffle_epi8(a.a, places.a), _mm_shuffle_epi8(a.b, places.b)};
}
inline i256 table16(const int8_t* table, i256 indices) {
    return shuffle({load_half(table), load_half(table)}, indices);
}
inline int32_t word_at(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, 4);
    return bytes;
}
inline i256 word(const void* p) {
    return splat32(word_at(p));
}
template <int n0, int n1, int n2, int n3, int n4, int n5, int n6, int n7>
inline i256 words(const uint8_t* p, int64_t apart) {
    const auto at = [&](int i) { return word_at(p + i * apart); };
    return {_mm_setr_epi32(at(n0), at(n1), at(n2), at(n3)),
            _mm_setr_epi32(at(n4), at(n5), at(n6), at(n7))};
}
inline i256 lanes(const uint32_t (&v)[8]) {
    return {_mm_setr_epi32(int(v[0]), int(v[1]), int(v[2]), int(v[3])),
            _mm_setr_epi32(int(v[4]), int(v[5]), int(v[6]), int(v[7]))};
}
inline void first_and_second(const uint64_t (&pairs)[8], i256& first, i256& second) {
    const auto two = [&](int i) { return _mm_castsi128_ps(load_half(pairs + i)); };
    const __m128 a = two(0), b = two(2), c = two(4), d = two(6);
    first = {_mm_castps_si128(_mm_shuffle_ps(a, b, 0x88)),
             _mm_castps_si128(_mm_shuffle_ps(c, d, 0x88))};
    second = {_mm_castps_si128(_mm_shuffle_ps(a, b, 0xdd)),
              _mm_castps_si128(_mm_shuffle_ps(c, d, 0xdd))};
}
inline i256 widen8(uint64_t bytes) {
    const __m128i eight = _mm_cvtsi64_si128(int64_t(bytes));
    return {_mm_cvtepu8_epi32(eight), _mm_cvtepu8_epi32(_mm_srli_si128(eight, 4))};
}
inline i256 widen16(__m128i v) {
    return {_mm_cvtepu16_epi32(v), _mm_unpackhi_epi16(v, _mm_setzero_si128())};
}
inline i256 widen16(const void* p) {
    return widen16(load_half(p));
}
inline i256 widen16(uint64_t first, uint64_t second) {
    return widen16(_mm_set_epi64x(int64_t(second), int64_t(first)));
}

using b32 = i256;
inline b32 load_nibbles(const uint8_t* p) {
    const __m128i pairs = load_half(p);
    return i256{pairs, _mm_srli_epi16(pairs, 4)} & splat8(15);
}
inline i256 has_bit(i256 a, i256 mask) {
    const i256 bits = a & mask;
    return {_mm_cmpeq_epi8(bits.a, mask.a), _mm_cmpeq_epi8(bits.b, mask.b)};
}
inline b32 load_bits(const uint8_t* p) {
    const i256 byte = {_mm_set_epi64x(0x0101010101010101, 0),
                       _mm_set_epi64x(0x0303030303030303, 0x0202020202020202)};
    const __m128i mask = _mm_set1_epi64x(int64_t(0x8040201008040201));
    return has_bit(shuffle(word(p), byte), {mask, mask});
}
// Shuffles within lanes: byte b of `pattern` gives the place, within its lane, of byte b of every
// lane; 0x80 gives 0.
inline __m128i places(int pattern) {
    // No byte of the sum carries into the next: 0x80 + 12 < 256.
    return _mm_add_epi8(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c),
                        _mm_set1_epi32(pattern));
}
inline i256 shuffle_lanes(i256 a, int pattern) {
    return shuffle(a, {places(pattern), places(pattern)});
}
inline void to_floats(b32 bytes, f32x8 (&out)[4]) {
    out[0] = from_i8(bytes.a);
    out[1] = from_i8(_mm_srli_si128(bytes.a, 8));
    out[2] = from_i8(bytes.b);
    out[3] = from_i8(_mm_srli_si128(bytes.b, 8));
}

// Moves byte i of every four bytes to the top of 32 bits, which multiplies it by 2^24.
constexpr float kByteUnit = 1.0f / (1 << 24);
using Pick = __m128i;
inline Pick pick_byte(int i) {
    const __m128i first = _mm_setr_epi32(0x00808080, 0x04808080, 0x08808080, 0x0c808080);
    return _mm_add_epi32(first, _mm_set1_epi32(i << 24));
}
inline f32x8 picked(i256 bytes, Pick pick) {
    return to_float(shuffle(bytes, {pick, pick}));
}

inline __m128i clamp32(__m128i v, int limit) {
    return _mm_max_epi32(_mm_min_epi32(v, _mm_set1_epi32(limit)), _mm_set1_epi32(-limit));
}
inline i256 clamp32(i256 v, int limit) {
    return {clamp32(v.a, limit), clamp32(v.b, limit)};
}
inline __m128i narrow(i256 v) {
    return _mm_packs_epi32(v.a, v.b);
}
inline i256 pack(const i256 (&q)[4]) {
    return {_mm_packs_epi16(narrow(q[0]), narrow(q[1])),
            _mm_packs_epi16(narrow(q[2]), narrow(q[3]))};
}
inline void two_sums(i256 a, i256 b, int32_t (&sum)[2]) {
    __m128i s = _mm_hadd_epi32(_mm_add_epi32(a.a, a.b), _mm_add_epi32(b.a, b.b));
    s = _mm_hadd_epi32(s, s);
    sum[0] = _mm_cvtsi128_si32(s);
    sum[1] = _mm_extract_epi32(s, 1);
}

// A table of 16 entries gives the number of bits in a nibble.
template <int n>
inline i256 add_bit_counts(i256 sum, i256 bytes) {
    const __m128i table =
        _mm_slli_epi16(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4), n);
    sum = add8(sum, shuffle({table, table}, low_nibbles(bytes)));
    return add8(sum, shuffle({table, table}, high_nibbles(bytes)));
}
inline i256 add_bytes(i256 sum, i256 bytes) {
    const __m128i zero = _mm_setzero_si128();
    return {_mm_add_epi64(sum.a, _mm_sad_epu8(bytes.a, zero)),
            _mm_add_epi64(sum.b, _mm_sad_epu8(bytes.b, zero))};
}
inline int32_t total(i256 sum) {
    const __m128i half = _mm_add_epi64(sum.a, sum.b);
    return int32_t(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
}

// ---- sums of products ------------------------------------------------------------------------
// As in AVX2: a factor is in both 16-bit halves of its lane, because the instruction that widens
// 16-bit sums also multiplies them.
inline i256 factor(i256 bytes, int i) {
    return shuffle_lanes(bytes, int(0x80008000u) | i << 16 | i);
}
inline i256 pair(i256 bytes, int i, int j) {
    const i256 top = shuffle_lanes(bytes, 0x00800080 | i << 8 | j << 24);
    return {_mm_srai_epi16(top.a, 8), _mm_srai_epi16(top.b, 8)};
}
inline i256 signed_factor(i256 bytes, int i) {
    return pair(bytes, i, i);
}
inline f32x8 short_to_float(i256 pairs, int half) {
    const i256 top = shift_left32(pairs, 16 - 16 * half);
    return to_float({_mm_srai_epi32(top.a, 16), _mm_srai_epi32(top.b, 16)});
}
inline i256 add_pairs(i256 a, i256 b) {
    return {_mm_madd_epi16(a.a, b.a), _mm_madd_epi16(a.b, b.b)};
}
// Products of unsigned and signed bytes, two of them added in 16 bits.
inline i256 byte_products(i256 w, i256 x) {
    return {_mm_maddubs_epi16(w.a, x.a), _mm_maddubs_epi16(w.b, x.b)};
}

inline i256 code_products(i256 codes, i256 x) {
    return add_pairs(byte_products(codes, x), splat16(1));
}
inline i256 signed_products(i256 w, i256 x) {
    return code_products({_mm_abs_epi8(w.a), _mm_abs_epi8(w.b)},
                         {_mm_sign_epi8(x.a, w.a), _mm_sign_epi8(x.b, w.b)});
}
inline i256 lane_totals(const i256 (&v)[8]) {
    const auto half = [&](int i) { return _mm_add_epi32(v[i].a, v[i].b); };
    const auto four = [&](int i) {
        return _mm_hadd_epi32(_mm_hadd_epi32(half(i), half(i + 1)),
                              _mm_hadd_epi32(half(i + 2), half(i + 3)));
    };
    return {four(0), four(4)};
}

inline void code_half_totals(const i256 (&v)[8], i256& first, i256& second) {
    const auto four = [&](auto half, int i) {
        return _mm_hadd_epi32(_mm_hadd_epi32(v[i].*half, v[i + 1].*half),
                              _mm_hadd_epi32(v[i + 2].*half, v[i + 3].*half));
    };
    first = {four(&i256::a, 0), four(&i256::a, 4)};
    second = {four(&i256::b, 0), four(&i256::b, 4)};
}
inline i256 swap_middle(i256 v) {
    return {_mm_unpacklo_epi64(v.a, v.b), _mm_unpackhi_epi64(v.a, v.b)};
}

constexpr bool kTurnsActivations = true;
inline i256 turned(i256 x, i256 sign) {
    return {_mm_sign_epi8(x.a, sign.a), _mm_sign_epi8(x.b, sign.b)};
}

// See avx2/simd.h for what fits 16 bits.
template <int sums, int v, typename X>
inline i256 products16(const i256 (&w)[8], const X& x, i256 factor = splat16(1)) {
    const i256 first = add16(byte_products(w[v], x[v]), byte_products(w[v + 1], x[v + 1]));
    const i256 second = add16(byte_products(w[v + 2], x[v + 2]), byte_products(w[v + 3], x[v + 3]));
    if (sums == 4) return add_pairs(add16(first, second), factor);
    return add32(add_pairs(first, factor), add_pairs(second, factor));
}

template <int bits, typename X>
inline i256 products32(const i256 (&w)[8], const X& x, i256 factor = splat16(1)) {
    if constexpr (bits == 6) {
        return add32(products16<2, 0>(w, x, factor), products16<2, 4>(w, x, factor));
    }
    i256 even = byte_products(w[0], x[0]), odd = byte_products(w[1], x[1]);
    for (int v = 2; v < 8; v += 2) {
        even = add16(even, byte_products(w[v], x[v]));
        odd = add16(odd, byte_products(w[v + 1], x[v + 1]));
    }
    if (bits == 4) return add_pairs(add16(even, odd), factor);
    return add32(add_pairs(even, factor), add_pairs(odd, factor));
}

template <int T, typename W, typename X, typename Sum8>
inline void signed_products32(const W& weights, const X& x, const Sum8&, i256 (&sum)[T]) {
    const i256 ones = splat16(1);
    for (int t = 0; t < T; t++) sum[t] = splat32(0);
    for (int v = 0; v < 8; v++) {
        const i256 w = weights(v), magnitude = {_mm_abs_epi8(w.a), _mm_abs_epi8(w.b)};
        for (int t = 0; t < T; t++) {
            const i256 values = x(t)[v];
            const i256 turned = {_mm_sign_epi8(values.a, w.a), _mm_sign_epi8(values.b, w.b)};
            sum[t] = add32(sum[t], add_pairs(byte_products(magnitude, turned), ones));
        }
    }
}

}  // namespace ggml::cpu::avx
