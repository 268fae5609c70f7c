// Products of strips with several tokens: two strips fill a register, and VNNI sums the byte
// products of four columns in one instruction that also broadcasts the activations. Block by block
// the same exact integers meet the same float operations as in avx2, hence the same bits; what does
// not fill a tile (one token above all, which waits for memory anyway) is left to avx2.
#include <immintrin.h>

#include <cstddef>

#include "cpu/kernels.h"
#include "ggml/blocks.h"
#include "ggml/tensor.h"

namespace ggml::cpu::avx512 {

namespace {

constexpr int kGroup = 32;  // bytes of a group: four columns of eight rows

// The same place of two strips.
struct Pair {
    const uint8_t *a, *b;

    Pair operator+(int64_t bytes) const { return {a + bytes, b + bytes}; }
};

inline __m512i join(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

inline __m256i load256(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

inline __m512i load(Pair p) {
    return join(load256(p.a), load256(p.b));
}

inline __m512 load_scales(Pair p) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.a));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.b));
    return _mm512_cvtph_ps(_mm256_set_m128i(b, a));
}

// Activations of token t0 + t, 32 columns b.
struct Tokens {
    Tokens(const Q8Rows& x, int64_t t0)
        : cols(x.cols),
          n_blocks(cols / kQ),
          q(x.q + t0 * cols),
          d(x.d + t0 * n_blocks),
          ds(x.ds + t0 * n_blocks),
          s8(x.s8 + t0 * n_blocks) {}

    __m512i four(int t, int64_t b, int v) const {
        int32_t word;
        std::memcpy(&word, q + t * cols + b * kQ + 4 * v, sizeof(word));
        return _mm512_set1_epi32(word);
    }
    __m512 scale(int t, int64_t b) const { return _mm512_set1_ps(d[t * n_blocks + b]); }
    __m512 scaled_sum(int t, int64_t b) const { return _mm512_set1_ps(ds[t * n_blocks + b]); }
    __m512i sum8(int t, int64_t b) const { return _mm512_set1_epi32(s8[t * n_blocks + b]); }

    int64_t cols, n_blocks;
    const int8_t* q;
    const float *d, *ds;
    const int32_t* s8;
};

// Products of 32 unsigned weights of each lane with 32 activations.
inline __m512i product32(const __m512i weights[8], const Tokens& x, int t, int64_t b) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) sum = _mm512_dpbusd_epi32(sum, weights[v], x.four(t, b, v));
    return sum;
}

inline __m512 add_block(__m512 sum, __m512 w_scales, __m512 x_scales, __m512i product) {
    return _mm512_fmadd_ps(_mm512_mul_ps(w_scales, x_scales), _mm512_cvtepi32_ps(product), sum);
}

struct FormatQ4_0 {
    using Block = BlockQ4_0;
    static constexpr int blocks = 1;

    template <int T>
    static void multiply(Pair w, const Tokens& x, int64_t b, __m512 (&sum)[T]) {
        const __m512i low = _mm512_set1_epi8(15);
        __m512i weights[8];
        for (int i = 0; i < 4; i++) {
            const __m512i pairs = load(w + kStrip * offsetof(Block, qs) + kGroup * i);
            weights[i] = _mm512_and_si512(pairs, low);
            weights[i + 4] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low);
        }
        const __m512 scales = load_scales(w);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512i product = product32(weights, x, t, b);
            sum[t] =
                add_block(sum[t], scales, x.scale(t, b), _mm512_sub_epi32(product, x.sum8(t, b)));
        }
    }
};

// Signed weights become unsigned by 128 more, which 16 * (8 * the sum of the activations) takes
// back.
struct FormatQ8_0 {
    using Block = BlockQ8_0;
    static constexpr int blocks = 1;

    template <int T>
    static void multiply(Pair w, const Tokens& x, int64_t b, __m512 (&sum)[T]) {
        const __m512i top = _mm512_set1_epi8(char(0x80));
        __m512i weights[8];
        for (int v = 0; v < 8; v++) {
            weights[v] = _mm512_xor_si512(load(w + kStrip * offsetof(Block, qs) + kGroup * v), top);
        }
        const __m512 scales = load_scales(w);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512i offset = _mm512_slli_epi32(x.sum8(t, b), 4);
            sum[t] = add_block(sum[t], scales, x.scale(t, b),
                               _mm512_sub_epi32(product32(weights, x, t, b), offset));
        }
    }
};

// Scales and mins of eight groups in 6 bits, four to a lane.
struct Factors {
    explicit Factors(Pair packed) {
        const __m512i a = load(packed), b = load(packed + kGroup), c = load(packed + 2 * kGroup);
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

struct FormatQ4_K {
    using Block = BlockQ4_K;
    static constexpr int blocks = 8;

    template <int T>
    static void multiply(Pair w, const Tokens& x, int64_t first, __m512 (&sum)[T]) {
        const Factors factors(w + kStrip * offsetof(Block, scales));
        const __m512i low = _mm512_set1_epi8(15);
        __m512 part[T];
        for (int t = 0; t < T; t++) part[t] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m512i weights[8];
            for (int v = 0; v < 8; v++) {
                __m512i pairs = load(w + kStrip * offsetof(Block, qs) + kGroup * (8 * (j / 2) + v));
                if (j % 2) pairs = _mm512_srli_epi16(pairs, 4);
                weights[v] = _mm512_and_si512(pairs, low);
            }
            const __m512i scale = Factors::one(factors.scales, j);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m512i product =
                    _mm512_mullo_epi32(product32(weights, x, t, first + j), scale);
                part[t] =
                    _mm512_fmadd_ps(x.scale(t, first + j), _mm512_cvtepi32_ps(product), part[t]);
            }
        }
        const __m512 unit = load_scales(w),
                     unit_min = load_scales(w + kStrip * offsetof(Block, dmin));
        __m512 min[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            min[j] = _mm512_mul_ps(unit_min, _mm512_cvtepi32_ps(Factors::one(factors.mins, j)));
        }
        for (int t = 0; t < T; t++) {
            sum[t] = _mm512_fmadd_ps(unit, part[t], sum[t]);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                sum[t] = _mm512_fnmadd_ps(min[j], x.scaled_sum(t, first + j), sum[t]);
            }
        }
    }
};

template <typename F, int T>
[[gnu::noinline]] void tile(Pair w, const Q8Rows& q8, int64_t t0, float* y, int64_t ldy) {
    const Tokens x(q8, t0);
    __m512 sum[T];
    for (int t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < x.n_blocks; b += F::blocks) {
        F::template multiply<T>(w, x, b, sum);
        w = w + kStrip * int64_t(sizeof(typename F::Block));
    }
    for (int t = 0; t < T; t++) _mm512_storeu_ps(y + t * ldy, sum[t]);
}

template <typename F>
void strips(strip_fn narrow, const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt,
            float* y, int64_t ldy) {
    const int64_t size = x.cols / (kQ * F::blocks) * kStrip * int64_t(sizeof(typename F::Block));
    int64_t i = 0;
    for (; nt >= 4 && i + 2 <= n; i += 2) {
        const Pair pair{w + i * size, w + (i + 1) * size};
        float* out = y + i * kStrip;
        int64_t t = 0;
        for (; t + 8 <= nt; t += 8) tile<F, 8>(pair, x, t0 + t, out + t * ldy, ldy);
        for (; t + 4 <= nt; t += 4) tile<F, 4>(pair, x, t0 + t, out + t * ldy, ldy);
        if (t < nt) narrow(pair.a, 2, x, t0 + t, nt - t, out + t * ldy, ldy);
    }
    if (i < n) narrow(w + i * size, n - i, x, t0, nt, y + i * kStrip, ldy);
}

}  // namespace

#define STRIP(name, Format)                                                                   \
    void name(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y, \
              int64_t ldy) {                                                                  \
        strips<Format>(avx2::name, w, n, x, t0, nt, y, ldy);                                  \
    }
STRIP(strip__q4_0_q8, FormatQ4_0)
STRIP(strip__q8_0_q8, FormatQ8_0)
STRIP(strip__q4_k_q8, FormatQ4_K)

}  // namespace ggml::cpu::avx512
