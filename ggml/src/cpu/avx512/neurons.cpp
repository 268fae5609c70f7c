// Folded neuron rows with VNNI: a register holds two groups of a row, so that eight lanes of it sum
// the even groups of an eighth and eight the odd ones. The same exact integers and the same float
// operations as in avx2, hence the same bits. See avx2/strip.h for the layout and the operations.
#include <immintrin.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "cpu/kernels.h"
#include "ggml/blocks.h"
#include "ggml/tensor.h"

namespace ggml::cpu::avx512 {

namespace {

constexpr int kGroup = 32;  // bytes of a group: four columns of eight lanes

inline __m256i load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline __m512i load512(const void* p) {
    return _mm512_loadu_si512(p);
}
inline __m256 load_scales(const uint8_t* halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}
inline void fetch(const uint8_t* bytes, int64_t size) {
    for (int64_t i = 0; i < size; i += 64) _mm_prefetch(bytes + i, _MM_HINT_T1);
}
inline __m512 twice(__m256 v) {
    return _mm512_broadcast_f32x8(v);
}

// What bytes stand for: scale * byte + min.
struct Numbers {
    __m256 scale, min;
};

// A format gives its unsigned weights by pairs of groups (weights), what they are too large by for
// every activation (offset, of 8 * the sum of 32), its signed bytes of one group (bytes), and what
// these stand for (numbers).
struct FormatQ4_0 {
    using Block = BlockQ4_0;
    static constexpr int blocks = 1;
    static constexpr bool has_min = false;

    static void weights(const uint8_t* w, int, __m512i out[4]) {
        const __m512i low = _mm512_set1_epi8(15);
        for (int i = 0; i < 2; i++) {
            const __m512i pairs = load512(w + kStrip * offsetof(Block, qs) + 2 * kGroup * i);
            out[i] = _mm512_and_si512(pairs, low);
            out[i + 2] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low);
        }
    }
    static __m256i offset(__m256i sum8) { return sum8; }
    static __m256i bytes(const uint8_t* w, int, int v) {
        __m256i pair = load256(w + kStrip * offsetof(Block, qs) + kGroup * (v % 4));
        if (v >= 4) pair = _mm256_srli_epi16(pair, 4);
        return _mm256_sub_epi8(_mm256_and_si256(pair, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
    }
    static Numbers numbers(const uint8_t* w, int) { return {load_scales(w), _mm256_setzero_ps()}; }
};

struct FormatQ8_0 {
    using Block = BlockQ8_0;
    static constexpr int blocks = 1;
    static constexpr bool has_min = false;

    static void weights(const uint8_t* w, int, __m512i out[4]) {
        for (int i = 0; i < 4; i++) {
            out[i] = _mm512_xor_si512(load512(w + kStrip * offsetof(Block, qs) + 2 * kGroup * i),
                                      _mm512_set1_epi8(char(0x80)));
        }
    }
    static __m256i offset(__m256i sum8) { return _mm256_slli_epi32(sum8, 4); }
    static __m256i bytes(const uint8_t* w, int, int v) {
        return load256(w + kStrip * offsetof(Block, qs) + kGroup * v);
    }
    static Numbers numbers(const uint8_t* w, int) { return {load_scales(w), _mm256_setzero_ps()}; }
};

// Scales and mins of eight groups in 6 bits, four to a lane.
struct Factors {
    explicit Factors(const uint8_t* packed) {
        const __m256i a = load256(packed), b = load256(packed + kGroup),
                      c = load256(packed + 2 * kGroup);
        const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15),
                      top = _mm256_set1_epi8(48);
        scales[0] = _mm256_and_si256(a, six);
        mins[0] = _mm256_and_si256(b, six);
        scales[1] = _mm256_or_si256(_mm256_and_si256(c, four),
                                    _mm256_and_si256(_mm256_srli_epi16(a, 2), top));
        mins[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), four),
                                  _mm256_and_si256(_mm256_srli_epi16(b, 2), top));
    }
    static __m256i one(const __m256i factors[2], int j) {
        return _mm256_and_si256(_mm256_srli_epi32(factors[j / 4], 8 * (j % 4)),
                                _mm256_set1_epi32(255));
    }
    __m256i scales[2], mins[2];
};

struct FormatQ4_K {
    using Block = BlockQ4_K;
    static constexpr int blocks = 8;
    static constexpr bool has_min = true;

    static const uint8_t* nibbles(const uint8_t* w, int j) {
        return w + kStrip * offsetof(Block, qs) + kGroup * 8 * (j / 2);
    }
    static void weights(const uint8_t* w, int j, __m512i out[4]) {
        for (int i = 0; i < 4; i++) {
            __m512i pairs = load512(nibbles(w, j) + 2 * kGroup * i);
            if (j % 2) pairs = _mm512_srli_epi16(pairs, 4);
            out[i] = _mm512_and_si512(pairs, _mm512_set1_epi8(15));
        }
    }
    static __m256i bytes(const uint8_t* w, int j, int v) {
        __m256i pair = load256(nibbles(w, j) + kGroup * v);
        if (j % 2) pair = _mm256_srli_epi16(pair, 4);
        return _mm256_and_si256(pair, _mm256_set1_epi8(15));
    }
    static Numbers numbers(const uint8_t* w, int j) {
        const Factors f(w + kStrip * offsetof(Block, scales));
        const __m256 unit = load_scales(w),
                     unit_min = load_scales(w + kStrip * offsetof(Block, dmin));
        return {_mm256_mul_ps(unit, _mm256_cvtepi32_ps(Factors::one(f.scales, j))),
                _mm256_fnmadd_ps(unit_min, _mm256_cvtepi32_ps(Factors::one(f.mins, j)),
                                 _mm256_setzero_ps())};
    }
};

// Activations of any T tokens, folded.
template <int T>
struct Eighths {
    Eighths(const Q8Rows& rows, const int32_t* tokens) : x(rows) {
        for (int t = 0; t < T; t++) first[t] = tokens[t] * (rows.cols / kQ);
    }
    int64_t at(int t, int64_t b) const { return first[t] + b * kStrip; }

    const Q8Rows x;
    int64_t first[T];
};

// Products of 32 unsigned weights of each eighth with those of a token.
inline __m256i product32(const __m512i weights[4], const int8_t* q) {
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < 4; i++) {
        sum = _mm512_dpbusd_epi32(sum, weights[i], load512(q + 2 * kGroup * i));
    }
    return _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
}

template <typename F, int T>
inline void multiply(const uint8_t* w, const Eighths<T>& in, int64_t first, __m256 (&sum)[T]) {
    const Q8Rows& x = in.x;
    __m512i weights[4];
    if constexpr (!F::has_min) {
        F::weights(w, 0, weights);
        const __m256 scales = F::numbers(w, 0).scale;
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const int64_t at = in.at(t, first);
            const __m256i product =
                _mm256_sub_epi32(product32(weights, x.q + at * kQ), F::offset(load256(x.s8 + at)));
            sum[t] = _mm256_fmadd_ps(_mm256_mul_ps(scales, _mm256_loadu_ps(x.d + at)),
                                     _mm256_cvtepi32_ps(product), sum[t]);
        }
    } else {
        const Factors factors(w + kStrip * offsetof(typename F::Block, scales));
        __m256 part[T], min[8];
        for (int t = 0; t < T; t++) part[t] = _mm256_setzero_ps();
        const __m256 unit = load_scales(w),
                     unit_min = load_scales(w + kStrip * offsetof(typename F::Block, dmin));
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            F::weights(w, j, weights);
            const __m256i scale = Factors::one(factors.scales, j);
            min[j] = _mm256_mul_ps(unit_min, _mm256_cvtepi32_ps(Factors::one(factors.mins, j)));
            for (int t = 0; t < T; t++) {
                const int64_t at = in.at(t, first + j);
                const __m256i product =
                    _mm256_mullo_epi32(product32(weights, x.q + at * kQ), scale);
                part[t] = _mm256_fmadd_ps(_mm256_loadu_ps(x.d + at), _mm256_cvtepi32_ps(product),
                                          part[t]);
            }
        }
        for (int t = 0; t < T; t++) {
            sum[t] = _mm256_fmadd_ps(unit, part[t], sum[t]);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                const __m256 ds = _mm256_loadu_ps(x.ds + in.at(t, first + j));
                sum[t] = _mm256_fnmadd_ps(min[j], ds, sum[t]);
            }
        }
    }
}

inline float horizontal_sum(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <typename F, int T>
[[gnu::noinline]] void dot_tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                                const NeuronInput& in, const int32_t* tokens, float* y,
                                int64_t ldy) {
    constexpr int64_t size = kStrip * sizeof(typename F::Block);
    const Eighths<T> x(in.folded, tokens);
    const int64_t n_blocks = in.folded.cols / kQ / kStrip;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *row = w + ids[i] * stride, *ahead = in.ahead.beside(i, row);
        __m256 sum[T];
        for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
        for (int64_t b = 0; b < n_blocks; b += F::blocks, row += size, ahead += size) {
            if (T == 1) fetch(ahead, size);
            multiply<F, T>(row, x, b, sum);
        }
        for (int t = 0; t < T; t++) y[i * ldy + t] = horizontal_sum(sum[t]);
    }
}

template <typename F>
void dot(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, const NeuronInput& x,
         const int32_t* tokens, int64_t nt, float* y) {
    int64_t t = 0;
    for (; t + 8 <= nt; t += 8) dot_tile<F, 8>(w, stride, ids, n, x, tokens + t, y + t, nt);
    for (; t + 4 <= nt; t += 4) dot_tile<F, 4>(w, stride, ids, n, x, tokens + t, y + t, nt);
    for (; t < nt; t++) dot_tile<F, 1>(w, stride, ids, n, x, tokens + t, y + t, nt);
}

// Bytes i and i + 1 of every four to the top of 32 bits, in the lower and the upper half: times
// 2^24, which kByteUnit takes back.
inline __m512i pick_bytes(int i) {
    const __m512i pick =
        _mm512_set_epi32(0x0d808080, 0x09808080, 0x05808080, 0x01808080, 0x0d808080, 0x09808080,
                         0x05808080, 0x01808080, 0x0c808080, 0x08808080, 0x04808080, 0x00808080,
                         0x0c808080, 0x08808080, 0x04808080, 0x00808080);
    return _mm512_add_epi32(pick, _mm512_set1_epi32(i << 24));
}
constexpr float kByteUnit = 1.0f / (1 << 24);

// factor(h) * value(bytes) is h times the weights, as in avx2.
template <typename F>
struct Weighed {
    static Weighed of(const uint8_t* w, int j) {
        const Numbers n = F::numbers(w, j);
        return {twice(_mm256_mul_ps(n.scale, _mm256_set1_ps(kByteUnit))), twice(n.min)};
    }
    __m512 factor(float h) const {
        return F::has_min ? _mm512_set1_ps(h) : _mm512_mul_ps(_mm512_set1_ps(h), scale);
    }
    __m512 value(__m512i bytes, __m512i pick) const {
        const __m512 v = _mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes, pick));
        return F::has_min ? _mm512_fmadd_ps(scale, v, min) : v;
    }
    __m512 scale, min;
};

// For one token: R rows at a time share the loads and stores of y.
template <typename F, int R>
void add_tile(const uint8_t* const* rows, const uint8_t* const* aheads, int64_t cols,
              const float* h, float* y) {
    constexpr int64_t size = kStrip * sizeof(typename F::Block);
    const __m512i pick[2] = {pick_bytes(0), pick_bytes(2)};
    int64_t at = 0;
    for (int64_t c = 0; c < cols; c += kStrip * kQ * F::blocks, at += size) {
        for (int r = 0; r < R; r++) fetch(aheads[r] + at, size);
#pragma GCC unroll 8
        for (int j = 0; j < F::blocks; j++) {
            Weighed<F> weighed[R];
            __m512 factor[R];
            for (int r = 0; r < R; r++) {
                weighed[r] = Weighed<F>::of(rows[r] + at, j);
                factor[r] = weighed[r].factor(h[r]);
            }
#pragma GCC unroll 8
            for (int v = 0; v < 8; v++) {
                float* to = y + c + kStrip * kQ * j + 32 * v;
                __m512 sum[2] = {_mm512_loadu_ps(to), _mm512_loadu_ps(to + 16)};
                for (int r = 0; r < R; r++) {
                    const __m512i bytes = _mm512_broadcast_i64x4(F::bytes(rows[r] + at, j, v));
                    for (int i = 0; i < 2; i++) {
                        sum[i] =
                            _mm512_fmadd_ps(factor[r], weighed[r].value(bytes, pick[i]), sum[i]);
                    }
                }
                _mm512_storeu_ps(to, sum[0]);
                _mm512_storeu_ps(to + 16, sum[1]);
            }
        }
    }
}

// For several tokens: 128 columns of many rows are unpacked once for all.
template <typename F>
void add_unpacked(const uint8_t* const* rows, int64_t n, int64_t cols, const Shares& shares,
                  int64_t nt, float* y, int64_t ldy) {
    constexpr int64_t size = kStrip * sizeof(typename F::Block);
    alignas(64) float values[kShared][128];
    Weighed<F> weighed[kShared];
    int64_t at = 0;
    for (int64_t c = 0; c < cols; c += kStrip * kQ * F::blocks, at += size) {
#pragma GCC unroll 16
        for (int k = 0; k < 2 * F::blocks; k++) {
            const int j = k / 2, v = k % 2 * 4;
            for (int64_t r = 0; r < n; r++) {
                weighed[r] = Weighed<F>::of(rows[r] + at, j);
                for (int i = 0; i < 8; i++) {
                    const __m512i bytes =
                        _mm512_broadcast_i64x4(F::bytes(rows[r] + at, j, v + i / 2));
                    _mm512_store_ps(values[r] + 16 * i,
                                    weighed[r].value(bytes, pick_bytes(i % 2 * 2)));
                }
            }
            for (int64_t t = 0; t < nt; t++) {
                const int32_t begin = shares.first[t], end = shares.first[t + 1];
                if (begin == end) continue;
                float* to = y + t * ldy + c + 128 * k;
                __m512 sum[8];
                for (int i = 0; i < 8; i++) sum[i] = _mm512_loadu_ps(to + 16 * i);
                for (int32_t e = begin; e < end; e++) {
                    const float* row = values[shares.row[e]];
                    const __m512 factor = weighed[shares.row[e]].factor(shares.h[e]);
                    for (int i = 0; i < 8; i++) {
                        sum[i] = _mm512_fmadd_ps(factor, _mm512_load_ps(row + 16 * i), sum[i]);
                    }
                }
                for (int i = 0; i < 8; i++) _mm512_storeu_ps(to + 16 * i, sum[i]);
            }
        }
    }
}

template <typename F>
void add(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
         const Shares& shares, int64_t nt, float* y, int64_t ldy) {
    const uint8_t *row[kShared], *ahead[kShared];
    if (nt > 1 && shares.first[nt] - shares.first[0] > n) {
        for (int64_t i = 0; i < n; i++) row[i] = w + ids[i] * stride;
        add_unpacked<F>(row, n, cols, shares, nt, y, ldy);
        return;
    }
    for (int64_t t = 0; t < nt; t++) {
        const int64_t first = shares.first[t], count = shares.first[t + 1] - first;
        for (int64_t k = 0; k < count; k++) {
            row[k] = w + ids[shares.row[first + k]] * stride;
            ahead[k] = shares.ahead.beside(k, row[k]);
        }
        const float* h = shares.h + first;
        int64_t k = 0;
        for (; k + 4 <= count; k += 4) add_tile<F, 4>(row + k, ahead + k, cols, h + k, y + t * ldy);
        for (; k < count; k++) add_tile<F, 1>(row + k, ahead + k, cols, h + k, y + t * ldy);
    }
}

}  // namespace

#define NEURON(suffix, Format)                                                                   \
    void dot__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t, \
                       const NeuronInput& x, const int32_t* tokens, int64_t nt, float* y) {      \
        dot<Format>(w, stride, ids, n, x, tokens, nt, y);                                        \
    }                                                                                            \
    void add__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,          \
                       int64_t cols, const Shares& shares, int64_t nt, float* y, int64_t ldy) {  \
        add<Format>(w, stride, ids, n, cols, shares, nt, y, ldy);                                \
    }
NEURON(q4_0, FormatQ4_0)
NEURON(q8_0, FormatQ8_0)
NEURON(q4_k, FormatQ4_K)

}  // namespace ggml::cpu::avx512
