// Strips of formats without mins: Q4_0 and Q5_0, whose weights are unsigned less an offset, and
// Q8_0, IQ4_NL and IQ4_XS, whose weights have signs.
#include "cpu/avx2/strip.h"

#include <cstddef>

namespace ggml::cpu::avx2 {

namespace {

struct StripQ4_0 {
    using Block = BlockQ4_0;
    static constexpr int most = 6;
    static constexpr int bits = 4;
    static void weights(const uint8_t* w, __m256i out[8]) {
        nibbles(w + kStrip * offsetof(Block, qs), out);
    }
    static int32_t offset(int32_t s8) { return s8; }
};

struct StripQ5_0 {
    using Block = BlockQ5_0;
    static constexpr int most = 8;
    static constexpr int bits = 5;
    static void weights(const uint8_t* w, __m256i out[8]) {
        nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs), out);
    }
    static int32_t offset(int32_t s8) { return 2 * s8; }
};

// The weights stay unsigned; the offset is taken off as 8 or 16 * the sum of the activations.
template <typename F, int T>
void offset_tile(const uint8_t* w, const Q8Rows& x, int64_t row, float* y, int64_t ldy) {
    const int64_t n_blocks = x.cols / kQ;
    const int8_t* q = x.q + row * x.cols;
    const float* d = x.d + row * n_blocks;
    const int32_t* s8 = x.s8 + row * n_blocks;
    __m256 sum[T];
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, w += kStrip * sizeof(typename F::Block)) {
        __m256i weights[8];
        F::weights(w, weights);
        const __m256 scales = load_scales(w);
        for (int t = 0; t < T; t++) {
            const __m256i product = product32<F::bits>(weights, q + t * x.cols + b * kQ);
            const __m256i offset = _mm256_set1_epi32(F::offset(s8[t * n_blocks + b]));
            sum[t] =
                add_block(sum[t], scales, d[t * n_blocks + b], _mm256_sub_epi32(product, offset));
        }
    }
    for (int t = 0; t < T; t++) _mm256_storeu_ps(y + t * ldy, sum[t]);
}

struct StripQ8_0 {
    using Block = BlockQ8_0;
    static constexpr int most = 8;
    static constexpr int blocks = 1;
    static __m256i weights(const uint8_t* w, int, int v) {
        return load(w + kStrip * offsetof(Block, qs) + kGroup * v);
    }
    static __m256 scales(const uint8_t* w, int) { return load_scales(w); }
};

// Group v of the values of 16 bytes of nibbles.
inline __m256i table_values(const uint8_t* qs, int v) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4)));
    __m256i pair = load(qs + kGroup * (v % 4));
    if (v >= 4) pair = _mm256_srli_epi16(pair, 4);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(pair, _mm256_set1_epi8(15)));
}

struct StripIQ4_NL {
    using Block = BlockIQ4_NL;
    static constexpr int most = 8;
    static constexpr int blocks = 1;
    static __m256i weights(const uint8_t* w, int, int v) {
        return table_values(w + kStrip * offsetof(Block, qs), v);
    }
    static __m256 scales(const uint8_t* w, int) { return load_scales(w); }
};

struct StripIQ4_XS {
    using Block = BlockIQ4_XS;
    static constexpr int most = 8;
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

// |w| times x with w's sign: 2 * 128 * 127 still fits 16 bits, but only once, so every pair is
// widened.
template <typename F, int T>
void signed_tile(const uint8_t* w, const Q8Rows& x, int64_t row, float* y, int64_t ldy) {
    const int64_t n_blocks = x.cols / kQ;
    const int8_t* q = x.q + row * x.cols;
    const float* d = x.d + row * n_blocks;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sum[T];
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
    for (int64_t first = 0; first < n_blocks;
         first += F::blocks, w += kStrip * sizeof(typename F::Block)) {
        for (int j = 0; j < F::blocks; j++) {
            const int64_t b = first + j;
            __m256i product[T];
            for (int t = 0; t < T; t++) product[t] = _mm256_setzero_si256();
            for (int v = 0; v < 8; v++) {
                const __m256i weights = F::weights(w, j, v), magnitude = _mm256_abs_epi8(weights);
                for (int t = 0; t < T; t++) {
                    const __m256i values =
                        _mm256_sign_epi8(broadcast4(q + t * x.cols + b * kQ + 4 * v), weights);
                    const __m256i pairs = _mm256_maddubs_epi16(magnitude, values);
                    product[t] = _mm256_add_epi32(product[t], _mm256_madd_epi16(pairs, ones));
                }
            }
            const __m256 scales = F::scales(w, j);
            for (int t = 0; t < T; t++) {
                sum[t] = add_block(sum[t], scales, d[t * n_blocks + b], product[t]);
            }
        }
    }
    for (int t = 0; t < T; t++) _mm256_storeu_ps(y + t * ldy, sum[t]);
}

}  // namespace

#define STRIP(name, tile, format)                                                                 \
    void name(const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y, int64_t ldy) { \
        for_tiles<format::most>(                                                                  \
            nt, [&](auto n, int64_t t) { tile<format, n>(w, x, t0 + t, y + t * ldy, ldy); });     \
    }
STRIP(strip__q4_0_q8, offset_tile, StripQ4_0)
STRIP(strip__q5_0_q8, offset_tile, StripQ5_0)
STRIP(strip__q8_0_q8, signed_tile, StripQ8_0)
STRIP(strip__iq4_nl_q8, signed_tile, StripIQ4_NL)
STRIP(strip__iq4_xs_q8, signed_tile, StripIQ4_XS)

}  // namespace ggml::cpu::avx2
