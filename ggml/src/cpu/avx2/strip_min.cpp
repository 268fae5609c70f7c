// Formats with a scale and a min per 32 columns: Q4_1, Q5_1, Q4_K, Q5_K. Codes are unsigned. The
// min is multiplied by d * the sum of the activations, with one FMA per block.
#include "cpu/avx2/strip_kernels.h"

namespace ggml::cpu::avx2 {

namespace {

template <typename F>
struct MinFormat {
    static constexpr int blocks = 1, bias = 0, halves = 1;
    static constexpr bool has_min = true;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t b, __m256 (&sum)[T]) {
        __m256i weights[8];
        all_weights<F>(w, 0, weights);
        const Numbers n = numbers(w, 0, 0);
        for (int t = 0; t < T; t++) {
            const __m256i product = product32<F::bits>(weights, x.values(t, b));
            sum[t] = add_block(sum[t], n.scale, x.scale(t, b), product);
            sum[t] = _mm256_fmadd_ps(n.min, x.scaled_sum(t, b), sum[t]);
        }
    }
    static Numbers numbers(const uint8_t* w, int, int) {
        return {load_scales(w), load_scales(w + kStrip * offsetof(typename F::Block, m))};
    }
};

struct FormatQ4_1 : MinFormat<FormatQ4_1> {
    using Block = BlockQ4_1;
    static constexpr int bits = 4, tokens = 4;
    static __m256i weights(const uint8_t* w, int, int v) {
        return nibbles(w + kStrip * offsetof(Block, qs), v);
    }
};

struct FormatQ5_1 : MinFormat<FormatQ5_1> {
    using Block = BlockQ5_1;
    static constexpr int bits = 5, tokens = 8;
    static __m256i weights(const uint8_t* w, int, int v) {
        return nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs),
                                v);
    }
};

// The 6-bit scales and mins of eight groups. In a strip, the 12 packed bytes are three groups of a
// register each. A few operations unpack four scales or mins for all rows.
struct Factors {
    explicit Factors(const GroupFactors& f) {
        scales[0] = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(f.scales)));
        mins[0] = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(f.mins)));
    }
    explicit Factors(const uint8_t* packed) {
        const __m256i a = load(packed), b = load(packed + kGroup), c = load(packed + 2 * kGroup);
        const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15),
                      top = _mm256_set1_epi8(48);
        scales[0] = _mm256_and_si256(a, six);
        mins[0] = _mm256_and_si256(b, six);
        scales[1] = _mm256_or_si256(_mm256_and_si256(c, four),
                                    _mm256_and_si256(_mm256_srli_epi16(a, 2), top));
        mins[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), four),
                                  _mm256_and_si256(_mm256_srli_epi16(b, 2), top));
    }
    // Scale j in both 16-bit halves of each lane.
    __m256i scale(int j) const {
        const int word = int(0x80008000u) | (j % 4) << 16 | j % 4;
        const __m256i rows = _mm256_setr_epi32(0, 0x00040004, 0x00080008, 0x000c000c, 0, 0x00040004,
                                               0x00080008, 0x000c000c);
        return _mm256_shuffle_epi8(scales[j / 4], _mm256_add_epi8(_mm256_set1_epi32(word), rows));
    }
    // Factor j as floats.
    static __m256 number(const __m256i factors[2], int j) {
        return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(factors[j / 4], 8 * (j % 4)),
                                                   _mm256_set1_epi32(255)));
    }
    __m256i scales[2], mins[2];
};

// The instruction that widens the 16-bit sums also multiplies by the integer scales of the groups.
// d and the mins are applied once per 256 columns.
template <typename F, typename Place = Interleaved>
struct KFormat {
    static constexpr int blocks = Place::blocks, bias = 0, halves = 1;
    static constexpr bool has_min = true;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, __m256 (&sum)[T]) {
        const Factors factors = F::factors(w);
        __m256 part[T];
        for (int t = 0; t < T; t++) part[t] = _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int j = 0; j < blocks; j++) {
            const int64_t b = first + j;
            __m256i weights[8];
            all_weights<F>(w, j, weights);
            const __m256i scale = factors.scale(j);
            for (int t = 0; t < T; t++) {
                const __m256i product = product32<F::bits>(weights, x.values(t, b), scale);
                part[t] = _mm256_fmadd_ps(x.scale(t, b), _mm256_cvtepi32_ps(product), part[t]);
            }
        }
        const __m256 unit = Place::halves(w, offsetof(typename F::Block, d));
        const __m256 unit_min = Place::halves(w, offsetof(typename F::Block, dmin));
        __m256 min[blocks];
#pragma GCC unroll 8
        for (int j = 0; j < blocks; j++) {
            min[j] = _mm256_mul_ps(unit_min, Factors::number(factors.mins, j));
        }
        for (int t = 0; t < T; t++) {
            sum[t] = _mm256_fmadd_ps(unit, part[t], sum[t]);
#pragma GCC unroll 8
            for (int j = 0; j < blocks; j++) {
                sum[t] = _mm256_fnmadd_ps(min[j], x.scaled_sum(t, first + j), sum[t]);
            }
        }
    }
    static Numbers numbers(const uint8_t* w, int j, int) {
        const Factors factors = F::factors(w);
        const __m256 unit = Place::halves(w, offsetof(typename F::Block, d));
        const __m256 unit_min = Place::halves(w, offsetof(typename F::Block, dmin));
        return {_mm256_mul_ps(unit, Factors::number(factors.scales, j)),
                _mm256_fnmadd_ps(unit_min, Factors::number(factors.mins, j), _mm256_setzero_ps())};
    }
};

// Nibbles v of the 32 columns j of Q4_K and Q5_K.
inline __m256i nibble(const uint8_t* qs, int j, int v) {
    __m256i pair = load(qs + kGroup * (8 * (j / 2) + v));
    if (j % 2) pair = _mm256_srli_epi16(pair, 4);
    return _mm256_and_si256(pair, _mm256_set1_epi8(15));
}

struct FormatQ4_K : KFormat<FormatQ4_K> {
    using Block = BlockQ4_K;
    static constexpr int bits = 4, tokens = 6;
    static Factors factors(const uint8_t* w) {
        return Factors(w + kStrip * offsetof(Block, scales));
    }
    static __m256i weights(const uint8_t* w, int j, int v) {
        return nibble(w + kStrip * offsetof(Block, qs), j, v);
    }
};

struct FormatQ5_K : KFormat<FormatQ5_K> {
    using Block = BlockQ5_K;
    static constexpr int bits = 5, tokens = 8;
    static Factors factors(const uint8_t* w) {
        return Factors(w + kStrip * offsetof(Block, scales));
    }
    static __m256i weights(const uint8_t* w, int j, int v) {
        __m256i high = load(w + kStrip * offsetof(Block, qh) + kGroup * v);
        high = j < 4 ? _mm256_slli_epi16(high, 4 - j) : _mm256_srli_epi16(high, j - 4);
        return _mm256_or_si256(nibble(w + kStrip * offsetof(Block, qs), j, v),
                               _mm256_and_si256(high, _mm256_set1_epi8(16)));
    }
};

// Nibbles v of the eight groups of one block. Each 32 bytes hold two groups.
inline __m256i stored_nibble(const uint8_t* qs, int v) {
    const uint8_t* p = qs + 4 * v;
    const __m256i pairs = _mm256_blend_epi32(two_words(p, 64), two_words(p + 32, 64), 0b11001100);
    return _mm256_and_si256(_mm256_srlv_epi32(pairs, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4)),
                            _mm256_set1_epi8(15));
}

struct StoredQ4_K : KFormat<StoredQ4_K, Stored> {
    using Block = BlockQ4_K;
    static constexpr int bits = 4;
    static Factors factors(const uint8_t* w) {
        return Factors(group_factors(w + offsetof(Block, scales)));
    }
    static __m256i weights(const uint8_t* w, int, int v) {
        return stored_nibble(w + offsetof(Block, qs), v);
    }
};

struct StoredQ5_K : KFormat<StoredQ5_K, Stored> {
    using Block = BlockQ5_K;
    static constexpr int bits = 5;
    static Factors factors(const uint8_t* w) {
        return Factors(group_factors(w + offsetof(Block, scales)));
    }
    static __m256i weights(const uint8_t* w, int, int v) {
        const __m256i high = word(w + offsetof(Block, qh) + 4 * v);
        const __m256i bit =
            _mm256_and_si256(_mm256_srlv_epi32(high, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                             _mm256_set1_epi8(1));
        return _mm256_or_si256(stored_nibble(w + offsetof(Block, qs), v),
                               _mm256_slli_epi32(bit, 4));
    }
};

}  // namespace

BLOCK_KERNELS(q4_1, FormatQ4_1)
BLOCK_KERNELS(q5_1, FormatQ5_1)
BLOCK_KERNELS(q4_k, FormatQ4_K)
BLOCK_KERNELS(q5_k, FormatQ5_K)
STORED_KERNELS(q4_k, StoredQ4_K)
STORED_KERNELS(q5_k, StoredQ5_K)

}  // namespace ggml::cpu::avx2
