// Products with VNNI of two strips or two folded rows at a time: each half of a register holds the
// same group of one of them, and one instruction adds the byte products of four columns. Several
// pairs share a load of activations; several tokens share a load of weights. The exact integers of
// a block of 32 columns and the float operations are those of avx2, so the bits are the same. See
// lanes/strip.h for the layout.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "ggml/blocks.h"
#include "ggml/tensor.h"
#include "kernels/avx512/factors.h"
#include "kernels/avx512/token_tiles.h"
#include "kernels/kernels.h"

namespace ggml::cpu::GGML_ISA {

constexpr int kGroup = 32;  // bytes of a group: four columns of eight lanes

// Addresses of a register's lower and upper half.
struct Pair {
    const uint8_t *a, *b;

    Pair operator+(int64_t bytes) const { return {a + bytes, b + bytes}; }
};

inline __m256i load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline __m512i load(Pair p) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load256(p.a)), load256(p.b), 1);
}

inline __m512 load_scales(Pair p) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.a));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.b));
    return _mm512_cvtph_ps(_mm256_set_m128i(b, a));
}

// The same for the exponents of MXFP4, see power_bits in blocks.h.
inline __m512 powers_of_two(__m512i e) {
    const __m512i one = _mm512_set1_epi32(1);
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(_mm512_sub_epi32(e, one), 23),
                                                _mm512_slli_epi32(_mm512_add_epi32(e, one), 21)));
}
inline __m512 load_powers(Pair p) {
    int64_t two[2];
    std::memcpy(two, p.a, 8);
    std::memcpy(two + 1, p.b, 8);
    return powers_of_two(_mm512_cvtepu8_epi32(_mm_set_epi64x(two[1], two[0])));
}
inline __m512i table_e2m1(__m512i indices) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2M1));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices);
}

// Activations for strips: token t0 + t, 32 columns b, the same for all rows.
struct Tokens {
    Tokens(const Q8Rows& x, int64_t t0)
        : cols(x.cols),
          n_blocks(cols / kQ),
          q(x.q + t0 * cols),
          d(x.d + t0 * n_blocks),
          ds(x.ds + t0 * n_blocks),
          s8(x.s8 + t0 * n_blocks),
          s16(x.s16 + t0 * n_blocks * 2) {}

    __m512i values(int t, int64_t b, int v) const {
        int32_t word;
        std::memcpy(&word, q + t * cols + b * kQ + 4 * v, sizeof(word));
        return _mm512_set1_epi32(word);
    }
    __m512 scale(int t, int64_t b) const { return _mm512_set1_ps(d[t * n_blocks + b]); }
    __m512 scaled_sum(int t, int64_t b) const { return _mm512_set1_ps(ds[t * n_blocks + b]); }
    __m512i sum8(int t, int64_t b) const { return _mm512_set1_epi32(s8[t * n_blocks + b]); }
    // The sums of the two groups of 16 columns, in the halves of each lane.
    __m512i sums16(int t, int64_t b) const {
        int32_t word;
        std::memcpy(&word, s16 + (t * n_blocks + b) * 2, sizeof(word));
        return _mm512_set1_epi32(word);
    }

    int64_t cols, n_blocks;
    const int8_t* q;
    const float *d, *ds;
    const int32_t* s8;
    const int16_t* s16;
};

// Activations for folded rows: of any T tokens, 32 columns b of each eighth.
template <int T>
struct Eighths {
    Eighths(const Q8Rows& rows, const int32_t* tokens)
        : x(rows), n_blocks(rows.cols / kQ / kStrip) {
        for (int t = 0; t < T; t++) first[t] = tokens[t] * (rows.cols / kQ);
    }
    int64_t at(int t, int64_t b) const { return first[t] + b * kStrip; }

    __m512i values(int t, int64_t b, int v) const {
        return _mm512_broadcast_i64x4(load256(x.q + at(t, b) * kQ + kGroup * v));
    }
    __m512 scale(int t, int64_t b) const { return twice(x.d + at(t, b)); }
    __m512 scaled_sum(int t, int64_t b) const { return twice(x.ds + at(t, b)); }
    __m512i sum8(int t, int64_t b) const {
        return _mm512_broadcast_i64x4(load256(x.s8 + at(t, b)));
    }
    static __m512 twice(const float* p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }

    const Q8Rows x;
    int64_t n_blocks, first[T];
};

// Group v of nibbles; the low nibbles come first.
inline __m512i nibbles(Pair qs, int v) {
    __m512i two = load(qs + kGroup * (v % 4));
    if (v >= 4) two = _mm512_srli_epi16(two, 4);
    return _mm512_and_si512(two, _mm512_set1_epi8(15));
}

// sum = the exact products of the unsigned weights of S pairs with the 32 columns b of T tokens.
template <typename F, int S, int T, typename X>
inline void products32(const Pair (&w)[S], int j, const X& x, int64_t b, __m512i (&sum)[S][T]) {
    for (int s = 0; s < S; s++) {
        for (int t = 0; t < T; t++) sum[s][t] = _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
        __m512i weights[S];
        for (int s = 0; s < S; s++) weights[s] = F::weights(w[s], j, v);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512i values = x.values(t, b, v);
            for (int s = 0; s < S; s++) {
                sum[s][t] = _mm512_dpbusd_epi32(sum[s][t], weights[s], values);
            }
        }
    }
}

// One scale per 32 columns. The codes are unsigned; their offset is subtracted as a multiple of the
// sum of the activations.
template <typename F>
struct OffsetPairs {
    static constexpr int blocks = 1;
    static __m512 scales(Pair w) { return load_scales(w); }

    template <int S, int T, typename X>
    static void multiply(const Pair (&w)[S], const X& x, int64_t b, __m512 (&sum)[S][T]) {
        __m512i product[S][T];
        products32<F>(w, 0, x, b, product);
        for (int s = 0; s < S; s++) {
            const __m512 scales = F::scales(w[s]);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m512i exact = _mm512_sub_epi32(product[s][t], F::offset(x.sum8(t, b)));
                sum[s][t] = _mm512_fmadd_ps(_mm512_mul_ps(scales, x.scale(t, b)),
                                            _mm512_cvtepi32_ps(exact), sum[s][t]);
            }
        }
    }
};

struct PairsQ4_0 : OffsetPairs<PairsQ4_0> {
    using Block = BlockQ4_0;
    static constexpr int bias = 8;
    static __m512i weights(Pair w, int, int v) {
        return nibbles(w + kStrip * offsetof(Block, qs), v);
    }
    static __m512i offset(__m512i sum8) { return sum8; }
};

// Adds 128 to signed codes to make them unsigned.
struct PairsQ8_0 : OffsetPairs<PairsQ8_0> {
    using Block = BlockQ8_0;
    static constexpr int bias = 128;
    static __m512i weights(Pair w, int, int v) {
        return _mm512_xor_si512(load(w + kStrip * offsetof(Block, qs) + kGroup * v),
                                _mm512_set1_epi8(char(0x80)));
    }
    static __m512i offset(__m512i sum8) { return _mm512_slli_epi32(sum8, 4); }
};

struct PairsMXFP4 : OffsetPairs<PairsMXFP4> {
    using Block = BlockMXFP4;
    static constexpr int bias = 16;
    static __m512 scales(Pair w) { return load_powers(w); }
    static __m512i weights(Pair w, int, int v) {
        return table_e2m1(nibbles(w + kStrip * offsetof(Block, qs), v));
    }
    static __m512i offset(__m512i sum8) { return _mm512_slli_epi32(sum8, 1); }
};

struct PairsQ4_K {
    using Block = BlockQ4_K;
    static constexpr int blocks = 8, bias = 0;

    static __m512i weights(Pair w, int j, int v) {
        __m512i two = load(w + kStrip * offsetof(Block, qs) + kGroup * (8 * (j / 2) + v));
        if (j % 2) two = _mm512_srli_epi16(two, 4);
        return _mm512_and_si512(two, _mm512_set1_epi8(15));
    }
    static Factors factors(Pair w) {
        const Pair packed = w + kStrip * offsetof(Block, scales);
        return {load(packed), load(packed + kGroup), load(packed + 2 * kGroup)};
    }

    template <int S, int T, typename X>
    static void multiply(const Pair (&w)[S], const X& x, int64_t first, __m512 (&sum)[S][T]) {
        __m512 part[S][T];
        for (int s = 0; s < S; s++) {
            for (int t = 0; t < T; t++) part[s][t] = _mm512_setzero_ps();
        }
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m512i product[S][T];
            products32<PairsQ4_K>(w, j, x, first + j, product);
            for (int s = 0; s < S; s++) {
                const __m512i scale = Factors::one(factors(w[s]).scales, j);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    const __m512i exact = _mm512_mullo_epi32(product[s][t], scale);
                    part[s][t] = _mm512_fmadd_ps(x.scale(t, first + j), _mm512_cvtepi32_ps(exact),
                                                 part[s][t]);
                }
            }
        }
        for (int s = 0; s < S; s++) {
            const Factors packed = factors(w[s]);
            const __m512 unit = load_scales(w[s]),
                         unit_min = load_scales(w[s] + kStrip * offsetof(Block, dmin));
            __m512 min[8];
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                min[j] = _mm512_mul_ps(unit_min, _mm512_cvtepi32_ps(Factors::one(packed.mins, j)));
            }
            for (int t = 0; t < T; t++) {
                sum[s][t] = _mm512_fmadd_ps(unit, part[s][t], sum[s][t]);
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++) {
                    sum[s][t] = _mm512_fnmadd_ps(min[j], x.scaled_sum(t, first + j), sum[s][t]);
                }
            }
        }
    }
};

// sum = the products of S pairs with the T tokens of x.
template <typename F, int S, int T, typename X>
inline void multiply(Pair (&w)[S], const X& x, __m512 (&sum)[S][T]) {
    for (int s = 0; s < S; s++) {
        for (int t = 0; t < T; t++) sum[s][t] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < x.n_blocks; b += F::blocks) {
        int64_t at = b;
        // Else GCC looks for the best way to step through hundreds of addresses, which took most of
        // the time to compile this.
        if constexpr (F::blocks > 1) __asm__("" : "+r"(at));
        F::multiply(w, x, at, sum);
        for (Pair& pair : w) pair = pair + kStrip * int64_t(sizeof(typename F::Block));
    }
}

}  // namespace ggml::cpu::GGML_ISA
