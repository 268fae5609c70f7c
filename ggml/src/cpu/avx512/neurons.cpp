// Neuron rows with VNNI. Many rows with several tokens are computed in pairs (pairs.h). For a
// single row, a register holds two groups of bytes: eight lanes sum the even groups, eight lanes
// the odd ones. The exact integers and the float operations are those of avx2, so the bits are the
// same. See lanes/strip.h for layout and terms.
#include "cpu/add_rows.h"
#include "cpu/avx512/pairs.h"
#include "quants/parts.h"

namespace ggml::cpu::avx512 {

namespace {

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

// Decoding of bytes: scale * byte + min.
struct Numbers {
    __m256 scale, min;
};

// A format provides: weights(), its unsigned codes as pairs of groups; offset(), the multiple of
// the activations' sum to subtract from the product (its argument is 8 * the sum of 32); bytes(),
// the signed codes of one group; numbers(), the decoding of these bytes.
struct FormatQ4_0 {
    using Block = BlockQ4_0;
    using Pairs = PairsQ4_0;
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
    using Pairs = PairsQ8_0;
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

// The same for groups of 32 that share d and dmin. Groups gives the scales and mins of each lane's
// 32 columns j; units gives d and dmin.
template <typename F>
struct KFormat {
    using Block = BlockQ4_K;
    static constexpr bool has_min = true;

    static Numbers numbers(const uint8_t* w, int j) {
        const Numbers unit = F::units(w), group = typename F::Groups(w)[j];
        return {_mm256_mul_ps(unit.scale, group.scale),
                _mm256_fnmadd_ps(unit.min, group.min, _mm256_setzero_ps())};
    }
};

// Lanes are eight interleaved blocks.
struct FormatQ4_K : KFormat<FormatQ4_K> {
    using Pairs = PairsQ4_K;
    static constexpr int blocks = 8;

    struct Groups {
        explicit Groups(const uint8_t* w) : factors(packed(w, 0), packed(w, 1), packed(w, 2)) {}
        static __m512i packed(const uint8_t* w, int i) {
            return _mm512_castsi256_si512(
                load256(w + kStrip * offsetof(Block, scales) + kGroup * i));
        }
        Numbers operator[](int j) const {
            const auto number = [&](const __m512i* of) {
                return _mm256_cvtepi32_ps(_mm512_castsi512_si256(Factors::one(of, j)));
            };
            return {number(factors.scales), number(factors.mins)};
        }
        Factors factors;
    };
    static Numbers units(const uint8_t* w) {
        return {load_scales(w), load_scales(w + kStrip * offsetof(Block, dmin))};
    }
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
};

// Lanes are the eight groups of one block as stored.
struct StoredQ4_K : KFormat<StoredQ4_K> {
    using Pairs = void;
    static constexpr int blocks = 1;

    struct Groups {
        explicit Groups(const uint8_t* w) : factors(group_factors(w + offsetof(Block, scales))) {}
        Numbers operator[](int) const { return {number(factors.scales), number(factors.mins)}; }
        static __m256 number(uint64_t bytes) {
            return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(bytes))));
        }
        GroupFactors factors;
    };
    static Numbers units(const uint8_t* w) {
        const auto half = [&](size_t member) {
            f16_t bits;
            std::memcpy(&bits, w + member, sizeof(bits));
            return _mm256_set1_ps(_cvtsh_ss(bits));
        };
        return {half(offsetof(Block, d)), half(offsetof(Block, dmin))};
    }
    // Words v and v + 1 of the groups: 32 bytes hold two groups.
    static __m512i words(const uint8_t* w, int v) {
        const __m512i first =
            _mm512_setr_epi32(0, 0, 8, 8, 16, 16, 24, 24, 1, 1, 9, 9, 17, 17, 25, 25);
        const uint8_t* qs = w + offsetof(Block, qs);
        const __m512i pairs = _mm512_permutex2var_epi32(
            load512(qs), _mm512_add_epi32(first, _mm512_set1_epi32(v)), load512(qs + 64));
        const __m512i shift = _mm512_set1_epi64(int64_t(4) << 32);
        return _mm512_and_si512(_mm512_srlv_epi32(pairs, shift), _mm512_set1_epi8(15));
    }
    static void weights(const uint8_t* w, int, __m512i out[4]) {
        for (int i = 0; i < 4; i++) out[i] = words(w, 2 * i);
    }
    static __m256i bytes(const uint8_t* w, int, int v) {
        const __m512i two = words(w, v / 2 * 2);
        return v % 2 ? _mm512_extracti64x4_epi64(two, 1) : _mm512_castsi512_si256(two);
    }
};

// Bytes of F::blocks times 32 columns of eight lanes.
template <typename F>
constexpr int64_t kUnit = kStrip * kQ * F::blocks / BlockTraits<typename F::Block>::size *
                          int64_t(sizeof(typename F::Block));

// Product of 32 unsigned weights of each lane with the activations of one token.
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
        const typename F::Groups groups(w);
        const Numbers unit = F::units(w);
        __m256 part[T], min[F::blocks];
        for (int t = 0; t < T; t++) part[t] = _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int j = 0; j < F::blocks; j++) {
            F::weights(w, j, weights);
            const Numbers group = groups[j];
            min[j] = _mm256_mul_ps(unit.min, group.min);
            for (int t = 0; t < T; t++) {
                const int64_t at = in.at(t, first + j);
                // Exact: the scale is a small integer.
                const __m256 product = _mm256_mul_ps(
                    _mm256_cvtepi32_ps(product32(weights, x.q + at * kQ)), group.scale);
                part[t] = _mm256_fmadd_ps(_mm256_loadu_ps(x.d + at), product, part[t]);
            }
        }
        for (int t = 0; t < T; t++) {
            sum[t] = _mm256_fmadd_ps(unit.scale, part[t], sum[t]);
#pragma GCC unroll 8
            for (int j = 0; j < F::blocks; j++) {
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
                                const Q8Rows& q8, const Ahead& next, const int32_t* tokens,
                                float* y, int64_t ldy) {
    constexpr int64_t size = kUnit<F>;
    const Eighths<T> x(q8, tokens);
    const int64_t n_blocks = q8.cols / kQ / kStrip;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *row = w + ids[i] * stride, *ahead = next.beside(i, row);
        __m256 sum[T];
        for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
        for (int64_t b = 0; b < n_blocks; b += F::blocks, row += size, ahead += size) {
            if (T == 1) fetch(ahead, size);
            multiply<F, T>(row, x, b, sum);
        }
        for (int t = 0; t < T; t++) y[i * ldy + t] = horizontal_sum(sum[t]);
    }
}

constexpr int kPairs = 2;

template <typename Pairs, int T>
[[gnu::noinline]] void dot_pairs(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                                 const Q8Rows& q8, const int32_t* tokens, float* y, int64_t ldy) {
    const Eighths<T> x(q8, tokens);
    for (; n > 0; n -= 2 * kPairs, ids += 2 * kPairs, y += 2 * kPairs * ldy) {
        Pair pairs[kPairs];
        for (int s = 0; s < kPairs; s++) {
            pairs[s] = {w + ids[2 * s] * stride, w + ids[2 * s + 1] * stride};
        }
        __m512 sum[kPairs][T];
        multiply<Pairs>(pairs, x, sum);
        for (int s = 0; s < kPairs; s++) {
            for (int t = 0; t < T; t++) {
                y[2 * s * ldy + t] = horizontal_sum(_mm512_castps512_ps256(sum[s][t]));
                y[(2 * s + 1) * ldy + t] = horizontal_sum(_mm512_extractf32x8_ps(sum[s][t], 1));
            }
        }
    }
}

template <typename F>
void dot(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, const Q8Rows& x,
         const Ahead& ahead, const int32_t* tokens, int64_t nt, float* y) {
    if constexpr (!std::is_void_v<typename F::Pairs>) {
        const int64_t paired = nt > kFewest ? n / (2 * kPairs) * (2 * kPairs) : 0;
        if (paired) {
            for_tiles(nt, [&](auto tile, int64_t t) {
                dot_pairs<typename F::Pairs, tile>(w, stride, ids, paired, x, tokens + t, y + t,
                                                   nt);
            });
        }
        ids += paired;
        n -= paired;
        y += paired * nt;
    }
    int64_t t = 0;
    for (; t + 8 <= nt; t += 8) dot_tile<F, 8>(w, stride, ids, n, x, ahead, tokens + t, y + t, nt);
    for (; t + 4 <= nt; t += 4) dot_tile<F, 4>(w, stride, ids, n, x, ahead, tokens + t, y + t, nt);
    for (; t < nt; t++) dot_tile<F, 1>(w, stride, ids, n, x, ahead, tokens + t, y + t, nt);
}

// Moves bytes i and i + 1 of every four to the top of 32 bits, in the lower and the upper half of
// the register. This multiplies them by 2^24; kByteUnit undoes that.
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
void add_tile(const uint8_t* const* rows, const uint8_t* const* aheads, const float* h, float* y,
              int64_t cols) {
    constexpr int64_t size = kUnit<F>;
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

// For several tokens: unpacks 128 columns of all rows once for all tokens.
template <typename F>
void add_unpacked(const uint8_t* const* rows, int64_t n, int64_t cols, const Shares& shares,
                  int64_t nt, float* y, int64_t ldy) {
    constexpr int64_t size = kUnit<F>;
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
    const auto tile = [&](auto count, auto... of) { add_tile<F, count>(of..., cols); };
    const auto unpacked = [&](const uint8_t* const* rows) {
        add_unpacked<F>(rows, n, cols, shares, nt, y, ldy);
    };
    add_blocks(w, stride, ids, n, shares, nt, y, ldy, tile, unpacked);
}

}  // namespace

#define NEURON(prefix, suffix, Format, order)                                                    \
    void prefix##dot__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,  \
                               int64_t, const NeuronInput& x, const int32_t* tokens, int64_t nt, \
                               float* y) {                                                       \
        dot<Format>(w, stride, ids, n, x.order, x.ahead, tokens, nt, y);                         \
    }                                                                                            \
    void prefix##add__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,  \
                               int64_t cols, const Shares& shares, int64_t nt, float* y,         \
                               int64_t ldy) {                                                    \
        add<Format>(w, stride, ids, n, cols, shares, nt, y, ldy);                                \
    }
NEURON(, q4_0, FormatQ4_0, folded)
NEURON(, q8_0, FormatQ8_0, folded)
NEURON(, q4_k, FormatQ4_K, folded)
NEURON(stored_, q4_k, StoredQ4_K, grouped)

}  // namespace ggml::cpu::avx512
