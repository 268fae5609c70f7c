// Formats without mins: Q4_0 and Q5_0 (unsigned codes less an offset), and Q8_0, IQ4_NL and IQ4_XS
// (signed codes).
#include "cpu/avx2/strip_kernels.h"

namespace ggml::cpu::avx2 {

namespace {

// Multiplies with unsigned codes, then subtracts 8 or 16 * the sum of the activations.
template <typename F>
struct OffsetFormat {
    static constexpr int blocks = 1, halves = 1;
    static constexpr bool has_min = false;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t b, __m256 (&sum)[T]) {
        __m256i weights[8];
        all_weights<F>(w, 0, weights);
        const __m256 scales = load_scales(w);
        // Without the pragma GCC unrolls the six tokens of Q4_0 only in part: 10% slower.
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256i product = product32<F::bits>(weights, x.values(t, b));
            __m256i offset = x.sum8(t, b);
            if (F::bias == 16) offset = _mm256_add_epi32(offset, offset);
            sum[t] = add_block(sum[t], scales, x.scale(t, b), _mm256_sub_epi32(product, offset));
        }
    }
    static Numbers numbers(const uint8_t* w, int, int) {
        return {load_scales(w), _mm256_setzero_ps()};
    }
};

struct FormatQ4_0 : OffsetFormat<FormatQ4_0> {
    using Block = BlockQ4_0;
    static constexpr int bits = 4, bias = 8, tokens = 6;
    static __m256i weights(const uint8_t* w, int, int v) {
        return nibbles(w + kStrip * offsetof(Block, qs), v);
    }
};

struct FormatQ5_0 : OffsetFormat<FormatQ5_0> {
    using Block = BlockQ5_0;
    static constexpr int bits = 5, bias = 16, tokens = 8;
    static __m256i weights(const uint8_t* w, int, int v) {
        return nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs),
                                v);
    }
};

// Multiplies |w| by x with the sign of w. A sum of two such products, 2 * 128 * 127, fits 16 bits,
// but adding a second one would not, so every pair is widened at once.
template <typename F>
struct SignedFormat {
    static constexpr int bias = 0, halves = 1, tokens = 8;
    static constexpr bool has_min = false;

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, __m256 (&sum)[T]) {
        const __m256i ones = _mm256_set1_epi16(1);
        for (int j = 0; j < F::blocks; j++) {
            const int64_t b = first + j;
            __m256i product[T];
            for (int t = 0; t < T; t++) product[t] = _mm256_setzero_si256();
            for (int v = 0; v < 8; v++) {
                const __m256i weights = F::weights(w, j, v), magnitude = _mm256_abs_epi8(weights);
                for (int t = 0; t < T; t++) {
                    const __m256i values = _mm256_sign_epi8(x.values(t, b)[v], weights);
                    const __m256i pairs = _mm256_maddubs_epi16(magnitude, values);
                    product[t] = _mm256_add_epi32(product[t], _mm256_madd_epi16(pairs, ones));
                }
            }
            const __m256 scales = F::scales(w, j);
            for (int t = 0; t < T; t++) {
                sum[t] = add_block(sum[t], scales, x.scale(t, b), product[t]);
            }
        }
    }
    static Numbers numbers(const uint8_t* w, int j, int) {
        return {F::scales(w, j), _mm256_setzero_ps()};
    }
};

struct FormatQ8_0 : SignedFormat<FormatQ8_0> {
    using Block = BlockQ8_0;
    static constexpr int blocks = 1;
    static __m256i weights(const uint8_t* w, int, int v) {
        return load(w + kStrip * offsetof(Block, qs) + kGroup * v);
    }
    static __m256 scales(const uint8_t* w, int) { return load_scales(w); }
};

// Table values of group v of 16 bytes of nibbles.
inline __m256i table_values(const uint8_t* qs, int v) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4)));
    return _mm256_shuffle_epi8(table, nibbles(qs, v));
}

struct FormatIQ4_NL : SignedFormat<FormatIQ4_NL> {
    using Block = BlockIQ4_NL;
    static constexpr int blocks = 1;
    static __m256i weights(const uint8_t* w, int, int v) {
        return table_values(w + kStrip * offsetof(Block, qs), v);
    }
    static __m256 scales(const uint8_t* w, int) { return load_scales(w); }
};

struct FormatIQ4_XS : SignedFormat<FormatIQ4_XS> {
    using Block = BlockIQ4_XS;
    static constexpr int blocks = 8;
    static __m256i weights(const uint8_t* w, int j, int v) {
        return table_values(w + kStrip * (offsetof(Block, qs) + 16 * j), v);
    }
    static __m256 scales(const uint8_t* w, int j) {
        const __m256i low_bits = load(w + kStrip * offsetof(Block, scales_l));
        const __m256i high_bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(
            reinterpret_cast<const __m128i*>(w + kStrip * offsetof(Block, scales_h))));
        const __m256i low =
            _mm256_and_si256(_mm256_srli_epi32(low_bits, 4 * j), _mm256_set1_epi32(15));
        const __m256i high =
            _mm256_and_si256(_mm256_srli_epi32(high_bits, 2 * j), _mm256_set1_epi32(3));
        const __m256i scale = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
        return _mm256_mul_ps(load_scales(w),
                             _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32))));
    }
};

// As stored: each group has 16 bytes of nibbles.
struct StoredIQ4_XS : SignedFormat<StoredIQ4_XS> {
    using Block = BlockIQ4_XS;
    static constexpr int blocks = 1;
    static __m256i weights(const uint8_t* w, int, int v) {
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4)));
        const __m256i pairs = _mm256_i32gather_epi32(
            reinterpret_cast<const int*>(w + offsetof(Block, qs) + 4 * (v % 4)),
            _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), 4);
        return _mm256_shuffle_epi8(
            table, _mm256_and_si256(_mm256_srli_epi16(pairs, v / 4 * 4), _mm256_set1_epi8(15)));
    }
    static __m256 scales(const uint8_t* w, int) {
        uint16_t high_bits;
        std::memcpy(&high_bits, w + offsetof(Block, scales_h), sizeof(high_bits));
        const __m256i low =
            _mm256_and_si256(_mm256_srlv_epi32(word(w + offsetof(Block, scales_l)),
                                               _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                             _mm256_set1_epi32(15));
        const __m256i high =
            _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(high_bits),
                                               _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                             _mm256_set1_epi32(3));
        const __m256i scale = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
        return _mm256_mul_ps(Stored::halves(w, offsetof(Block, d)),
                             _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32))));
    }
};

}  // namespace

BLOCK_KERNELS(q4_0, FormatQ4_0)
BLOCK_KERNELS(q5_0, FormatQ5_0)
BLOCK_KERNELS(q8_0, FormatQ8_0)
BLOCK_KERNELS(iq4_nl, FormatIQ4_NL)
BLOCK_KERNELS(iq4_xs, FormatIQ4_XS)
STORED_KERNELS(iq4_xs, StoredIQ4_XS)

}  // namespace ggml::cpu::avx2
