// Formats with a scale per 16 columns: Q2_K, Q3_K, Q6_K. The instruction that widens the 16-bit
// sums also multiplies by the integer scales. Offsets and mins are multiplied by the sums of 16
// activations.
#include "cpu/avx2/strip_kernels.h"

namespace ggml::cpu::avx2 {

namespace {

// Selects two of the four signed bytes in each lane and widens them to 16 bits: the low half of the
// lane gets byte from_low, the high half byte from_high.
inline __m256i spread(__m256i bytes, int from_low, int from_high) {
    const int word = 0x00800080 | from_low << 8 | from_high << 24;
    const __m256i rows = _mm256_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00, 0, 0x04000400,
                                           0x08000800, 0x0c000c00);
    const __m256i pick = _mm256_add_epi8(_mm256_set1_epi32(word), rows);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(bytes, pick), 8);
}

struct Factors {
    __m256i first, second, offset;
};

inline Factors factors(__m256i scales, __m256i offsets, int j) {
    const int a = 2 * (j % 2), b = a + 1;
    return {spread(scales, a, a), spread(scales, b, b), spread(offsets, a, b)};
}

// Product of 16 columns of each lane, from group v on, with 16 activations and the group's factor.
template <int sums, typename X>
inline __m256i product16(const __m256i weights[8], const X& x, int v, __m256i factor) {
    __m256i p[4];
    for (int i = 0; i < 4; i++) p[i] = _mm256_maddubs_epi16(weights[v + i], x[v + i]);
    const __m256i first = _mm256_add_epi16(p[0], p[1]), second = _mm256_add_epi16(p[2], p[3]);
    if (sums == 4) return _mm256_madd_epi16(_mm256_add_epi16(first, second), factor);
    return _mm256_add_epi32(_mm256_madd_epi16(first, factor), _mm256_madd_epi16(second, factor));
}

template <typename F, bool min, typename Place = Interleaved>
struct Format16 {
    static constexpr int blocks = Place::blocks, halves = 2, tokens = 8;
    static constexpr bool has_min = min;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, __m256 (&sum)[T]) {
        __m256 part[T], part_min[T];
        for (int t = 0; t < T; t++) part[t] = part_min[t] = _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int j = 0; j < blocks; j++) {
            const int64_t b = first + j;
            const Factors f = F::factors_of(w, j);
            const __m256i offsets =
                has_min ? f.offset : _mm256_mullo_epi16(f.offset, _mm256_set1_epi16(F::bias));
            __m256i weights[8];
            all_weights<F>(w, j, weights);
            for (int t = 0; t < T; t++) {
                const auto values = x.values(t, b);
                __m256i product =
                    _mm256_add_epi32(product16<F::sums>(weights, values, 0, f.first),
                                     product16<F::sums>(weights, values, 4, f.second));
                const __m256i offset = _mm256_madd_epi16(offsets, x.sums16(t, b));
                const __m256 x_scale = x.scale(t, b);
                if (has_min) {
                    part_min[t] = _mm256_fmadd_ps(x_scale, _mm256_cvtepi32_ps(offset), part_min[t]);
                } else {
                    product = _mm256_sub_epi32(product, offset);
                }
                part[t] = _mm256_fmadd_ps(x_scale, _mm256_cvtepi32_ps(product), part[t]);
            }
        }
        const __m256 scale = Place::halves(w, offsetof(typename F::Block, d));
        for (int t = 0; t < T; t++) sum[t] = _mm256_fmadd_ps(scale, part[t], sum[t]);
        if constexpr (has_min) {
            const __m256 scale_min = Place::halves(w, offsetof(typename F::Block, dmin));
            for (int t = 0; t < T; t++) sum[t] = _mm256_fnmadd_ps(scale_min, part_min[t], sum[t]);
        }
    }
    static Numbers numbers(const uint8_t* w, int j, int half) {
        const Factors f = F::factors_of(w, j);
        const auto number = [](__m256i pairs, int place) {
            return _mm256_cvtepi32_ps(
                _mm256_srai_epi32(_mm256_slli_epi32(pairs, 16 - 16 * place), 16));
        };
        const __m256 unit = Place::halves(w, offsetof(typename F::Block, d));
        Numbers n{_mm256_mul_ps(unit, number(half ? f.second : f.first, 0)), _mm256_setzero_ps()};
        if constexpr (has_min) {
            const __m256 unit_min = Place::halves(w, offsetof(typename F::Block, dmin));
            n.min = _mm256_fnmadd_ps(unit_min, number(f.offset, half), n.min);
        }
        return n;
    }
};

// Group v of the 2-bit codes of block j.
inline __m256i two_bits(const uint8_t* qs, int j, int v) {
    const __m256i bytes = load(qs + kGroup * (8 * (j / 4) + v));
    return _mm256_and_si256(_mm256_srli_epi16(bytes, 2 * (j % 4)), _mm256_set1_epi8(3));
}

struct FormatQ2_K : Format16<FormatQ2_K, true> {
    using Block = BlockQ2_K;
    static constexpr int bias = 0;
    static constexpr int sums = 4;  // byte products that add up within 16 bits: 4 * 2 * 3 * 127
    static Factors factors_of(const uint8_t* w, int j) {
        const __m256i bytes = load(w + kStrip * offsetof(Block, scales) + kGroup * (j / 2));
        const __m256i low = _mm256_set1_epi8(15);
        return factors(_mm256_and_si256(bytes, low),
                       _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low), j);
    }
    static __m256i weights(const uint8_t* w, int j, int v) {
        return two_bits(w + kStrip * offsetof(Block, qs), j, v);
    }
};

struct FormatQ3_K : Format16<FormatQ3_K, false> {
    using Block = BlockQ3_K;
    static constexpr int bias = 4;
    static constexpr int sums = 4;  // 4 * 2 * 7 * 127
    static Factors factors_of(const uint8_t* w, int j) {
        const uint8_t* packed = w + kStrip * offsetof(Block, scales);
        const int k = j / 2;  // groups 4 k .. 4 k + 3
        const __m256i low = _mm256_and_si256(
            _mm256_srli_epi16(load(packed + kGroup * (k % 2)), k / 2 * 4), _mm256_set1_epi8(15));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(load(packed + 2 * kGroup), 2 * k),
                                              _mm256_set1_epi8(3));
        const __m256i scales =
            _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32));
        return factors(scales, scales, j);
    }
    static __m256i weights(const uint8_t* w, int j, int v) {
        const __m256i four = _mm256_set1_epi8(4);
        __m256i high = load(w + kStrip * offsetof(Block, hmask) + kGroup * v);
        high = j < 2 ? _mm256_slli_epi16(high, 2 - j) : _mm256_srli_epi16(high, j - 2);
        return _mm256_or_si256(two_bits(w + kStrip * offsetof(Block, qs), j, v),
                               _mm256_and_si256(high, four));
    }
};

struct FormatQ6_K : Format16<FormatQ6_K, false> {
    using Block = BlockQ6_K;
    static constexpr int bias = 32;
    static constexpr int sums = 2;  // 2 * 2 * 63 * 127
    static Factors factors_of(const uint8_t* w, int j) {
        const __m256i scales = load(w + kStrip * offsetof(Block, scales) + kGroup * (j / 2));
        return factors(scales, scales, j);
    }
    static __m256i weights(const uint8_t* w, int j, int v) {
        const int h = j / 4, i = j % 4;
        const __m256i pair =
            load(w + kStrip * offsetof(Block, ql) + kGroup * (16 * h + 8 * (i % 2) + v));
        const __m256i low =
            _mm256_and_si256(i < 2 ? pair : _mm256_srli_epi16(pair, 4), _mm256_set1_epi8(15));
        __m256i high = load(w + kStrip * offsetof(Block, qh) + kGroup * (8 * h + v));
        high = i < 2 ? _mm256_slli_epi16(high, 4 - 2 * i) : _mm256_srli_epi16(high, 2 * i - 4);
        return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }
};

// The same formats as stored. The two factors of a lane are adjacent.
inline __m256i scale_pairs(const uint8_t* scales) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
}

// The 2-bit codes of the eight groups of one block. Each 32 bytes hold four groups.
inline __m256i stored_two_bits(const uint8_t* qs, int v) {
    return _mm256_and_si256(
        _mm256_srlv_epi32(two_words(qs + 4 * v, 32), _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)),
        _mm256_set1_epi8(3));
}

struct StoredQ2_K : Format16<StoredQ2_K, true, Stored> {
    using Block = BlockQ2_K;
    static constexpr int bias = 0, sums = 4;
    static Factors factors_of(const uint8_t* w, int) {
        const __m256i pairs = scale_pairs(w + offsetof(Block, scales));
        const __m256i low = _mm256_set1_epi8(15);
        return factors(_mm256_and_si256(pairs, low),
                       _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low), 0);
    }
    static __m256i weights(const uint8_t* w, int, int v) {
        return stored_two_bits(w + offsetof(Block, qs), v);
    }
};

struct StoredQ3_K : Format16<StoredQ3_K, false, Stored> {
    using Block = BlockQ3_K;
    static constexpr int bias = 4, sums = 4;
    static Factors factors_of(const uint8_t* w, int) {
        const uint8_t* packed = w + offsetof(Block, scales);
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
        const __m128i low = _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4));
        const __m128i high =
            _mm_srlv_epi32(_mm256_castsi256_si128(word(packed + 8)), _mm_setr_epi32(0, 2, 4, 6));
        const __m128i scales =
            _mm_sub_epi8(_mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)),
                                      _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4)),
                         _mm_set1_epi8(32));
        const __m256i pairs = _mm256_cvtepu16_epi32(scales);
        return factors(pairs, pairs, 0);
    }
    static __m256i weights(const uint8_t* w, int, int v) {
        const __m256i bit =
            _mm256_and_si256(_mm256_srlv_epi32(word(w + offsetof(Block, hmask) + 4 * v),
                                               _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                             _mm256_set1_epi8(1));
        return _mm256_or_si256(stored_two_bits(w + offsetof(Block, qs), v),
                               _mm256_slli_epi32(bit, 2));
    }
};

struct StoredQ6_K : Format16<StoredQ6_K, false, Stored> {
    using Block = BlockQ6_K;
    static constexpr int bias = 32, sums = 2;
    static Factors factors_of(const uint8_t* w, int) {
        const __m256i pairs = scale_pairs(w + offsetof(Block, scales));
        return factors(pairs, pairs, 0);
    }
    static __m256i weights(const uint8_t* w, int, int v) {
        const uint8_t* ql = w + offsetof(Block, ql) + 4 * v;
        const __m256i pairs =
            _mm256_blend_epi32(two_words(ql, 64), two_words(ql + 32, 64), 0b10101010);
        const __m256i low =
            _mm256_and_si256(_mm256_srlv_epi32(pairs, _mm256_setr_epi32(0, 0, 4, 4, 0, 0, 4, 4)),
                             _mm256_set1_epi8(15));
        return _mm256_or_si256(low,
                               _mm256_slli_epi32(stored_two_bits(w + offsetof(Block, qh), v), 4));
    }
};

}  // namespace

BLOCK_KERNELS(q2_k, FormatQ2_K)
BLOCK_KERNELS(q3_k, FormatQ3_K)
BLOCK_KERNELS(q6_k, FormatQ6_K)
STORED_KERNELS(q2_k, StoredQ2_K)
STORED_KERNELS(q3_k, StoredQ3_K)
STORED_KERNELS(q6_k, StoredQ6_K)

}  // namespace ggml::cpu::avx2
