// Products of neuron rows with blocks of 32 as stored with one token, of two rows in a register;
// and their weighted sums. vnni computes the rest. The bits are those of avx2.
#include <immintrin.h>

#include "formats/parts.h"
#include "kernels/avx512/pairs.h"

namespace ggml::cpu::avx512 {

namespace {

// codes(p): the unsigned codes of the blocks at p.a and p.b, in order.
struct PlainQ8_0 : PairsQ8_0 {
    static __m512i codes(Pair p) {
        return _mm512_xor_si512(load(p + offsetof(Block, qs)), _mm512_set1_epi8(char(0x80)));
    }
    static __m512 unscaled(const uint8_t* block, int half) {
        const void* const qs = block + offsetof(Block, qs) + 16 * half;
        return _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(qs))));
    }
};

inline __m512i load_nibbles(Pair p) {
    const auto twice = [](const uint8_t* q) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    };
    const __m512i pairs = _mm512_inserti64x4(_mm512_castsi256_si512(twice(p.a)), twice(p.b), 1);
    return _mm512_and_si512(_mm512_srlv_epi64(pairs, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0)),
                            _mm512_set1_epi8(15));
}

inline __m128i nibbles_of(const uint8_t* qs, int half) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(qs));
    return _mm_and_si128(half ? _mm_srli_epi16(pairs, 4) : pairs, _mm_set1_epi8(15));
}

inline __m512 less(__m128i codes, int bias) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(codes, _mm_set1_epi8(char(bias)))));
}

struct PlainQ4_0 : PairsQ4_0 {
    static __m512i codes(Pair p) { return load_nibbles(p + offsetof(Block, qs)); }
    static __m512 unscaled(const uint8_t* block, int half) {
        const void* const qs = block + offsetof(Block, qs);
        const __m512i pairs =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(qs)));
        const __m512 values =
            _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        return _mm512_permutexvar_ps(half ? _mm512_srli_epi32(pairs, 4) : pairs, values);
    }
};

struct PlainQ5_0 {
    using Block = BlockQ5_0;
    static constexpr int bias = 16;
    static __m512i offset(__m512i sum8) { return _mm512_slli_epi32(sum8, 1); }
    static uint32_t bits(const uint8_t* block) {
        uint32_t b;
        std::memcpy(&b, block + offsetof(Block, qh), 4);
        return b;
    }
    static __m512i codes(Pair p) {
        const __m512i low = load_nibbles(p + offsetof(Block, qs));
        const __mmask64 top = bits(p.a) | uint64_t(bits(p.b)) << 32;
        return _mm512_mask_add_epi8(low, top, low, _mm512_set1_epi8(16));
    }
    static __m512 unscaled(const uint8_t* block, int half) {
        const __m128i low = nibbles_of(block + offsetof(Block, qs), half);
        const __mmask16 top = __mmask16(bits(block) >> 16 * half);
        return less(_mm_mask_add_epi8(low, top, low, _mm_set1_epi8(16)), bias);
    }
};

struct PlainMXFP4 : PairsMXFP4 {
    static __m512i codes(Pair p) { return table_e2m1(load_nibbles(p + offsetof(Block, qs))); }
    static __m512 unscaled(const uint8_t* block, int half) {
        const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2M1));
        return less(_mm_shuffle_epi8(table, nibbles_of(block + offsetof(Block, qs), half)), bias);
    }
};

inline __m512i add_pairs_32(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

// The scales of the blocks `at` bytes into eight rows, and of one block.
template <typename Block>
__m256 gather_scales(const uint8_t* const (&rows)[8], int64_t at) {
    if constexpr (kHasPower<Block>) {
        uint64_t all = 0;
        for (int i = 0; i < 8; i++) all |= uint64_t(rows[i][at]) << 8 * i;
        const __m512i exponents = _mm512_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(all)));
        return _mm512_castps512_ps256(powers_of_two(exponents));
    }
    const auto half = [&](int i) {
        int16_t h;
        std::memcpy(&h, rows[i] + at, 2);
        return h;
    };
    return _mm256_cvtph_ps(
        _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}

template <typename Block>
float block_scale(const uint8_t* block) {
    if constexpr (kHasPower<Block>) return power_of_two(*block);
    f16_t half;
    std::memcpy(&half, block, sizeof(half));
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

template <typename F>
[[gnu::noinline]] void dot_eight(const uint8_t* const (&rows)[8], const uint8_t* const* ahead,
                                 const Q8Rows& x, int64_t first, float* y) {
    constexpr int64_t size = sizeof(typename F::Block);
    const int64_t n_blocks = x.cols / kQ;
    __m256 sum = _mm256_setzero_ps();
    for (int64_t b = 0, at = 0; b < n_blocks; b++, at += size) {
        if (ahead && at % 64 < size) {
            for (int i = 0; i < 8; i++) __builtin_prefetch(ahead[i] + at, 0, 2);
        }
        const __m512i values = _mm512_broadcast_i64x4(load256(x.q + (first + b) * kQ));
        __m512i sums[4];  // of rows i and i + 4
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i codes = F::codes(Pair{rows[i] + at, rows[i + 4] + at});
            sums[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, values);
        }
        const __m512i a = add_pairs_32(sums[0], sums[1]), c = add_pairs_32(sums[2], sums[3]);
        // In every 128 bits: rows 0 to 3, or 4 to 7.
        const __m512i four =
            _mm512_add_epi32(_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c));
        const __m512i turned = _mm512_shuffle_i64x2(four, four, 0xd8);  // 0, 2, 1, 3
        const __m256i total =
            _mm256_add_epi32(_mm512_castsi512_si256(turned), _mm512_extracti64x4_epi64(turned, 1));
        const __m256i offset =
            _mm512_castsi512_si256(F::offset(_mm512_set1_epi32(x.s8[first + b])));
        const __m256 scale = _mm256_mul_ps(gather_scales<typename F::Block>(rows, at),
                                           _mm256_set1_ps(x.d[first + b]));
        sum = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(_mm256_sub_epi32(total, offset)), sum);
    }
    _mm256_storeu_ps(y, sum);
}

template <typename F, const dot_fn& narrow>
void dot(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
         const NeuronInput& x, const int32_t* tokens, int64_t nt, float* y) {
    if (nt > 1) return narrow(w, stride, ids, n, cols, x, tokens, nt, y);
    for (int64_t i = 0; i < n; i += 8) {
        const uint8_t *rows[8], *ahead[8];
        for (int64_t j = 0; j < 8; j++) {  // those beyond the end repeat the last one
            const int64_t row = i + j < n ? i + j : n - 1;
            rows[j] = w + ids[row] * stride;
            ahead[j] = x.prefetch.row(row, rows[j]);
        }
        float sums[8];
        dot_eight<F>(rows, x.prefetch.n ? ahead : nullptr, x.q8, tokens[0] * (cols / kQ), sums);
        for (int64_t j = 0; j < 8 && i + j < n; j++) y[i + j] = sums[j];
    }
}

}  // namespace

using Floats = __m512;
constexpr int kWide = 16, kTogether = 8, kFewer = 4;

inline Floats load_f32(const float* p) {
    return _mm512_loadu_ps(p);
}
inline void store(float* p, Floats v) {
    _mm512_storeu_ps(p, v);
}
inline Floats splat(float v) {
    return _mm512_set1_ps(v);
}
inline Floats add_product(Floats sum, Floats a, Floats b) {
    return _mm512_fmadd_ps(a, b, sum);
}
template <typename F>
float decode_plain(const uint8_t* row, int64_t at, int, Floats (&values)[2]) {
    for (int i = 0; i < 2; i++) values[i] = F::unscaled(row + at, i);
    return block_scale<typename F::Block>(row + at);
}

}  // namespace ggml::cpu::avx512

#include "kernels/add_plain.h"

namespace ggml::cpu::avx512 {

#define PLAIN(Format, dot_name, add_name, tiled_add_name)       \
    const stored_dot_fn dot_name = dot<Format, vnni::dot_name>; \
    const stored_add_fn add_name = add_plain<Format, 1>;        \
    const tiled_add_fn tiled_add_name = add_plain<Format, kStrip>;
PLAIN(PlainQ8_0, stored_dot__q8_0, stored_add__q8_0, tiled_add__q8_0)
PLAIN(PlainQ4_0, stored_dot__q4_0, stored_add__q4_0, tiled_add__q4_0)
PLAIN(PlainQ5_0, stored_dot__q5_0, stored_add__q5_0, tiled_add__q5_0)
PLAIN(PlainMXFP4, stored_dot__mxfp4, stored_add__mxfp4, tiled_add__mxfp4)

}  // namespace ggml::cpu::avx512
