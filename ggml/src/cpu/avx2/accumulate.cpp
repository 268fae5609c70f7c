// Weighted sums of rows: y[t] += sum_r a[t][r] w[r]. Sums of 32 columns stay in registers while the
// kernel walks over the rows. Each column adds rows in ascending order, for any number of tokens in
// the tile.
#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

namespace {

// 32 columns from column c of a row, as four registers.
template <typename W>
struct Values {
    static void load32(const uint8_t* row, int64_t c, __m256 out[4]) {
        for (int i = 0; i < 4; i++) out[i] = W::load8(row, c + 8 * i);
    }
};

inline __m256 widen(__m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

struct Q4_0 {
    static void load32(const uint8_t* row, int64_t c, __m256 out[4]) {
        const BlockQ4_0* block = reinterpret_cast<const BlockQ4_0*>(row) + c / kQ;
        const __m256 d = _mm256_set1_ps(_cvtsh_ss(block->d));
        const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block->qs));
        const __m128i low = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
        const __m128i first = _mm_sub_epi8(_mm_and_si128(pairs, low), eight);
        const __m128i second = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(pairs, 4), low), eight);
        out[0] = _mm256_mul_ps(d, widen(first));
        out[1] = _mm256_mul_ps(d, widen(_mm_srli_si128(first, 8)));
        out[2] = _mm256_mul_ps(d, widen(second));
        out[3] = _mm256_mul_ps(d, widen(_mm_srli_si128(second, 8)));
    }
};

// w = scale * q + min for 32 columns of 4 or 5 bits. q: two registers of 16 bytes.
inline void scaled(__m256 scale, __m256 min, __m128i first, __m128i second, __m256 out[4]) {
    const __m128i q[4] = {first, _mm_srli_si128(first, 8), second, _mm_srli_si128(second, 8)};
    for (int i = 0; i < 4; i++) out[i] = _mm256_fmadd_ps(scale, widen(q[i]), min);
}

inline __m128i load16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// Bits 16 k .. 16 k + 15 of a word as bit 4 of sixteen bytes.
inline __m128i fifth_bits(const uint8_t* qh, int k) {
    uint16_t bits;
    std::memcpy(&bits, qh + 2 * k, 2);
    const __m128i mask = _mm_set1_epi64x(int64_t(0x8040201008040201));
    const __m128i bytes =
        _mm_shuffle_epi8(_mm_set1_epi16(int16_t(bits)),
                         _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bytes, mask), mask), _mm_set1_epi8(16));
}

inline __m128i low_nibbles(__m128i pairs) {
    return _mm_and_si128(pairs, _mm_set1_epi8(15));
}
inline __m128i high_nibbles(__m128i pairs) {
    return low_nibbles(_mm_srli_epi16(pairs, 4));
}

struct Q4_1 {
    static void load32(const uint8_t* row, int64_t c, __m256 out[4]) {
        const BlockQ4_1* block = reinterpret_cast<const BlockQ4_1*>(row) + c / kQ;
        const __m128i pairs = load16(block->qs);
        scaled(_mm256_set1_ps(_cvtsh_ss(block->d)), _mm256_set1_ps(_cvtsh_ss(block->m)),
               low_nibbles(pairs), high_nibbles(pairs), out);
    }
};

struct Q5_0 {
    static void load32(const uint8_t* row, int64_t c, __m256 out[4]) {
        const BlockQ5_0* block = reinterpret_cast<const BlockQ5_0*>(row) + c / kQ;
        const __m128i pairs = load16(block->qs), offset = _mm_set1_epi8(16);
        const __m128i first = _mm_or_si128(low_nibbles(pairs), fifth_bits(block->qh, 0));
        const __m128i second = _mm_or_si128(high_nibbles(pairs), fifth_bits(block->qh, 1));
        scaled(_mm256_set1_ps(_cvtsh_ss(block->d)), _mm256_setzero_ps(),
               _mm_sub_epi8(first, offset), _mm_sub_epi8(second, offset), out);
    }
};

struct Q5_1 {
    static void load32(const uint8_t* row, int64_t c, __m256 out[4]) {
        const BlockQ5_1* block = reinterpret_cast<const BlockQ5_1*>(row) + c / kQ;
        const __m128i pairs = load16(block->qs);
        scaled(_mm256_set1_ps(_cvtsh_ss(block->d)), _mm256_set1_ps(_cvtsh_ss(block->m)),
               _mm_or_si128(low_nibbles(pairs), fifth_bits(block->qh, 0)),
               _mm_or_si128(high_nibbles(pairs), fifth_bits(block->qh, 1)), out);
    }
};

inline __m128i table_values(__m128i nibbles) {
    return _mm_shuffle_epi8(load16(reinterpret_cast<const uint8_t*>(kIQ4)), nibbles);
}

struct IQ4_NL {
    static void load32(const uint8_t* row, int64_t c, __m256 out[4]) {
        const BlockIQ4_NL* block = reinterpret_cast<const BlockIQ4_NL*>(row) + c / kQ;
        const __m128i pairs = load16(block->qs);
        scaled(_mm256_set1_ps(_cvtsh_ss(block->d)), _mm256_setzero_ps(),
               table_values(low_nibbles(pairs)), table_values(high_nibbles(pairs)), out);
    }
};

template <typename V, int T>
void tile(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t c, const float* a,
          int64_t lda, float* y, int64_t ldy) {
    __m256 sum[T][4];
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < 4; i++) sum[t][i] = _mm256_loadu_ps(y + t * ldy + c + 8 * i);
    }
    for (int64_t r = 0; r < n_rows; r++) {
        __m256 values[4];
        V::load32(w + r * row_bytes, c, values);
        for (int t = 0; t < T; t++) {
            const __m256 factor = _mm256_set1_ps(a[t * lda + r]);
            for (int i = 0; i < 4; i++) sum[t][i] = _mm256_fmadd_ps(factor, values[i], sum[t][i]);
        }
    }
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < 4; i++) _mm256_storeu_ps(y + t * ldy + c + 8 * i, sum[t][i]);
    }
}

template <typename V>
int64_t blocks(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t cols, const float* a,
               int64_t lda, int64_t nt, float* y, int64_t ldy) {
    int64_t c = 0;
    for (; c + 32 <= cols; c += 32) {
        int64_t t = 0;
        for (; t + 2 <= nt; t += 2)
            tile<V, 2>(w, row_bytes, n_rows, c, a + t * lda, lda, y + t * ldy, ldy);
        if (t < nt) tile<V, 1>(w, row_bytes, n_rows, c, a + t * lda, lda, y + t * ldy, ldy);
    }
    return c;
}

template <typename W>
void accumulate(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t cols, const float* a,
                int64_t lda, int64_t nt, float* y, int64_t ldy) {
    int64_t c = blocks<Values<W>>(w, row_bytes, n_rows, cols, a, lda, nt, y, ldy);
    for (; c < cols; c++) {
        for (int64_t t = 0; t < nt; t++) {
            float sum = y[t * ldy + c];
            for (int64_t r = 0; r < n_rows; r++)
                sum += a[t * lda + r] * W::load1(w + r * row_bytes, c);
            y[t * ldy + c] = sum;
        }
    }
}

}  // namespace

#define ACCUMULATE(name, function)                                                               \
    void name(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t cols, const float* a, \
              int64_t lda, int64_t nt, float* y, int64_t ldy) {                                  \
        function(w, row_bytes, n_rows, cols, a, lda, nt, y, ldy);                                \
    }
ACCUMULATE(accumulate__f32_f32, accumulate<F32>)
ACCUMULATE(accumulate__f16_f32, accumulate<F16>)
ACCUMULATE(accumulate__bf16_f32, accumulate<BF16>)
ACCUMULATE(accumulate__q8_0_f32, blocks<Values<Q8_0>>)
ACCUMULATE(accumulate__q4_0_f32, blocks<Q4_0>)
ACCUMULATE(accumulate__q4_1_f32, blocks<Q4_1>)
ACCUMULATE(accumulate__q5_0_f32, blocks<Q5_0>)
ACCUMULATE(accumulate__q5_1_f32, blocks<Q5_1>)
ACCUMULATE(accumulate__iq4_nl_f32, blocks<IQ4_NL>)

}  // namespace ggml::cpu::avx2
