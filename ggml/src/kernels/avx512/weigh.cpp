// Weighted sums of values in blocks, as in lanes/weigh.cpp, with 16 columns in a register.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/avx512/isa.h"
#include "kernels/avx512/token_tiles.h"
#include "kernels/kernels.h"
#include "kernels/value_blocks.h"

namespace ggml::cpu::avx512 {

namespace {

constexpr int kRegisters = int(kKvPage) / 16;

// The positions of a range.
struct Inside {
    Inside(int64_t from, int64_t to) {
        const uint64_t all = (to < 64 ? uint64_t(1) << to : 0) - (uint64_t(1) << from);
        for (int i = 0; i < kRegisters; i++) mask[i] = __mmask16(all >> 16 * i);
    }
    __mmask16 mask[kRegisters];
};

// The weights of a query as shares of the largest, and then times the scales of a block of columns
// in two bytes.
struct Weights {
    void take(const float* a, const Inside& inside) {
        __m512 v[kRegisters], top = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int i = 0; i < kRegisters; i++) {
            v[i] = _mm512_max_ps(_mm512_maskz_loadu_ps(inside.mask[i], a + 16 * i),
                                 _mm512_setzero_ps());
            top = _mm512_max_ps(v[i], top);
        }
        most = _mm512_reduce_max_ps(top);
        const __m512 inverse = _mm512_set1_ps(most > 0 ? 1 / most : 0);
#pragma GCC unroll 8
        for (int i = 0; i < kRegisters; i++) {
            _mm512_store_ps(share + 16 * i, _mm512_mul_ps(v[i], inverse));
        }
    }
    void split(const __m512 (&factors)[kRegisters]) {
#pragma GCC unroll 8
        for (int i = 0; i < kRegisters; i++) {
            const __m512i weight =
                _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(share + 16 * i), factors[i]));
            const __m512i lows = _mm512_set1_epi32((1 << kWeightBits) - 1);
            auto* const to = reinterpret_cast<__m128i*>(high + 16 * i);
            _mm_store_si128(to, _mm512_cvtepi32_epi8(_mm512_srli_epi32(weight, kWeightBits)));
            _mm_store_si128(to + kRegisters, _mm512_cvtepi32_epi8(_mm512_and_si512(weight, lows)));
        }
    }
    // Four bytes, in every lane.
    static __m512i word(const uint8_t* bytes) {
        int32_t four;
        std::memcpy(&four, bytes, sizeof(four));
        return _mm512_set1_epi32(four);
    }

    alignas(64) float share[kKvPage];
    alignas(64) uint8_t high[kKvPage], low[kKvPage];
    float most;
};

// y += unit * the products of the codes of a block of columns with the weights.
template <int T>
void add(const uint8_t* codes, const uint8_t* next, const Weights* weights, const float* unit,
         float* y, int64_t ldy) {
    __m512i high[T][2], low[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        high[t][0] = high[t][1] = low[t][0] = low[t][1] = _mm512_setzero_si512();
    }
    for (int64_t p = 0; p < kKvPage; p += 4, codes += 4 * kQ, next += 4 * kQ) {
        _mm_prefetch(next, _MM_HINT_T1);
        _mm_prefetch(next + 64, _MM_HINT_T1);
        const __m512i first = _mm512_loadu_si512(codes), second = _mm512_loadu_si512(codes + 64);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512i h = Weights::word(weights[t].high + p);
            const __m512i l = Weights::word(weights[t].low + p);
            high[t][0] = _mm512_dpbusd_epi32(high[t][0], h, first);
            high[t][1] = _mm512_dpbusd_epi32(high[t][1], h, second);
            low[t][0] = _mm512_dpbusd_epi32(low[t][0], l, first);
            low[t][1] = _mm512_dpbusd_epi32(low[t][1], l, second);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < 2; i++) {
            const __m512 sum = _mm512_cvtepi32_ps(
                _mm512_add_epi32(_mm512_slli_epi32(high[t][i], kWeightBits), low[t][i]));
            float* const to = y + t * ldy + 16 * i;
            _mm512_storeu_ps(to,
                             _mm512_fmadd_ps(_mm512_set1_ps(unit[t]), sum, _mm512_loadu_ps(to)));
        }
    }
}

template <int T>
void tile(const uint8_t* run, const uint8_t* next, int64_t head_dim, const Inside& inside,
          const float* a, int64_t lda, float* y, int64_t ldy) {
    Weights weights[T];
    for (int t = 0; t < T; t++) weights[t].take(a + t * lda, inside);
    for (int64_t b = 0; b < head_dim / kQ; b++) {
        const auto* halves = reinterpret_cast<const f16_t*>(run + scales_at(head_dim, b));
        __m512 scale[kRegisters], top = _mm512_setzero_ps();
        __mmask16 beyond = 0;
#pragma GCC unroll 8
        for (int i = 0; i < kRegisters; i++) {
            scale[i] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(inside.mask[i], halves + 16 * i));
            beyond |= _mm512_cmp_ps_mask(scale[i], _mm512_set1_ps(INFINITY), _CMP_NLT_UQ);
            top = _mm512_max_ps(scale[i], top);
        }
        const float largest = _mm512_reduce_max_ps(top);
        if (!beyond && largest == 0) continue;
        const __m512 factor = _mm512_set1_ps(beyond ? 0 : kMostWeight / largest);
#pragma GCC unroll 8
        for (int i = 0; i < kRegisters; i++) scale[i] = _mm512_mul_ps(scale[i], factor);
        float unit[T];
        for (int t = 0; t < T; t++) {
            weights[t].split(scale);
            unit[t] = beyond ? NAN : weights[t].most * largest * (1 / kMostWeight);
        }
        add<T>(run + codes_at(b), next + codes_at(b), weights, unit, y + b * kQ, ldy);
    }
}

void weigh(const uint8_t* run, const uint8_t* next, int64_t head_dim, int64_t from, int64_t to,
           const float* a, int64_t lda, int64_t nt, float* y, int64_t ldy) {
    const Inside inside(from, to);
    const auto run_tile = [&](auto T, int64_t t) {
        tile<T>(run, t ? run : next, head_dim, inside, a + t * lda, lda, y + t * ldy, ldy);
    };
    constexpr int kMostQueries = 4;  // whose sums have registers
    for_tiles<1, kMostQueries>(nt, run_tile);
}

}  // namespace

const weigh_fn weigh__q8_0 = weigh;

}  // namespace ggml::cpu::avx512
