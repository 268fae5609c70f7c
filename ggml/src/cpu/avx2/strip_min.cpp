// Strips of formats with a scale and a min for 32 columns: Q4_1, Q5_1, Q4_K, Q5_K. The weights stay
// unsigned; the min meets d * the sum of the activations, one FMA a block.
#include <cstddef>

#include "cpu/avx2/strip.h"

namespace ggml::cpu::avx2 {

namespace {

struct StripQ4_1 {
    using Block = BlockQ4_1;
    static constexpr int bits = 4, most = 4;
    static void weights(const uint8_t* w, __m256i out[8]) {
        nibbles(w + kStrip * offsetof(Block, qs), out);
    }
};

struct StripQ5_1 {
    using Block = BlockQ5_1;
    static constexpr int bits = 5, most = 8;
    static void weights(const uint8_t* w, __m256i out[8]) {
        nibbles_and_bits(w + kStrip * offsetof(Block, qh), w + kStrip * offsetof(Block, qs), out);
    }
};

// Scales and mins of eight groups in 6 bits: the 12 bytes are three groups of a strip, and
// unpacking four of either at a time takes a few operations for all rows.
struct Factors {
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
    // In both halves of a lane.
    __m256i scale(int j) const {
        const int word = int(0x80008000u) | (j % 4) << 16 | j % 4;
        const __m256i rows = _mm256_setr_epi32(0, 0x00040004, 0x00080008, 0x000c000c, 0, 0x00040004,
                                               0x00080008, 0x000c000c);
        return _mm256_shuffle_epi8(scales[j / 4], _mm256_add_epi8(_mm256_set1_epi32(word), rows));
    }
    __m256 min(int j) const {
        return _mm256_cvtepi32_ps(
            _mm256_and_si256(_mm256_srli_epi32(mins[j / 4], 8 * (j % 4)), _mm256_set1_epi32(255)));
    }
    __m256i scales[2], mins[2];
};

// Nibbles of group j of Q4_K and Q5_K.
inline __m256i nibble(const uint8_t* qs, int j, int v) {
    __m256i pair = load(qs + kGroup * (8 * (j / 2) + v));
    if (j % 2) pair = _mm256_srli_epi16(pair, 4);
    return _mm256_and_si256(pair, _mm256_set1_epi8(15));
}

struct StripQ4_K {
    using Block = BlockQ4_K;
    static constexpr int bits = 4, most = 6;
    static Factors factors(const uint8_t* w) {
        return Factors(w + kStrip * offsetof(Block, scales));
    }
    static void weights(const uint8_t* w, int j, __m256i out[8]) {
        for (int v = 0; v < 8; v++) out[v] = nibble(w + kStrip * offsetof(Block, qs), j, v);
    }
};

struct StripQ5_K {
    using Block = BlockQ5_K;
    static constexpr int bits = 5, most = 8;
    static Factors factors(const uint8_t* w) {
        return Factors(w + kStrip * offsetof(Block, scales));
    }
    static void weights(const uint8_t* w, int j, __m256i out[8]) {
        const __m256i sixteen = _mm256_set1_epi8(16);
        for (int v = 0; v < 8; v++) {
            __m256i high = load(w + kStrip * offsetof(Block, qh) + kGroup * v);
            high = j < 4 ? _mm256_slli_epi16(high, 4 - j) : _mm256_srli_epi16(high, j - 4);
            out[v] = _mm256_or_si256(nibble(w + kStrip * offsetof(Block, qs), j, v),
                                     _mm256_and_si256(high, sixteen));
        }
    }
};

template <typename F, int T>
void plain_tile(const uint8_t* w, const Q8Rows& x, int64_t row, float* y, int64_t ldy) {
    const int64_t n_blocks = x.cols / kQ;
    const int8_t* q = x.q + row * x.cols;
    const float *d = x.d + row * n_blocks, *ds = x.ds + row * n_blocks;
    __m256 sum[T];
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, w += kStrip * sizeof(typename F::Block)) {
        __m256i weights[8];
        F::weights(w, weights);
        const __m256 scale = load_scales(w);
        const __m256 min = load_scales(w + kStrip * offsetof(typename F::Block, m));
        for (int t = 0; t < T; t++) {
            const __m256i product = product32<F::bits>(weights, q + t * x.cols + b * kQ);
            sum[t] = add_block(sum[t], scale, d[t * n_blocks + b], product);
            sum[t] = _mm256_fmadd_ps(min, _mm256_set1_ps(ds[t * n_blocks + b]), sum[t]);
        }
    }
    for (int t = 0; t < T; t++) _mm256_storeu_ps(y + t * ldy, sum[t]);
}

// The groups' scales are multiplied as integers, in the instruction that widens the 16-bit sums; d
// and the mins follow once for the 256 columns.
template <typename F, int T>
void k_tile(const uint8_t* w, const Q8Rows& x, int64_t row, float* y, int64_t ldy) {
    const int64_t n_blocks = x.cols / kQ;
    const int8_t* q = x.q + row * x.cols;
    const float *d = x.d + row * n_blocks, *ds = x.ds + row * n_blocks;
    __m256 sum[T];
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
    for (int64_t first = 0; first < n_blocks; first += 8, w += kStrip * sizeof(typename F::Block)) {
        const Factors factors = F::factors(w);
        __m256 part[T];
        for (int t = 0; t < T; t++) part[t] = _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const int64_t b = first + j;
            __m256i weights[8];
            F::weights(w, j, weights);
            const __m256i scale = factors.scale(j);
            for (int t = 0; t < T; t++) {
                const __m256i product = product32<F::bits>(weights, q + t * x.cols + b * kQ, scale);
                part[t] = _mm256_fmadd_ps(_mm256_set1_ps(d[t * n_blocks + b]),
                                          _mm256_cvtepi32_ps(product), part[t]);
            }
        }
        const __m256 unit = load_scales(w);
        const __m256 unit_min = load_scales(w + kStrip * offsetof(typename F::Block, dmin));
        __m256 min[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) min[j] = _mm256_mul_ps(unit_min, factors.min(j));
        for (int t = 0; t < T; t++) {
            sum[t] = _mm256_fmadd_ps(unit, part[t], sum[t]);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                sum[t] =
                    _mm256_fnmadd_ps(min[j], _mm256_set1_ps(ds[t * n_blocks + first + j]), sum[t]);
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
STRIP(strip__q4_1_q8, plain_tile, StripQ4_1)
STRIP(strip__q5_1_q8, plain_tile, StripQ5_1)
STRIP(strip__q4_k_q8, k_tile, StripQ4_K)
STRIP(strip__q5_k_q8, k_tile, StripQ5_K)

}  // namespace ggml::cpu::avx2
