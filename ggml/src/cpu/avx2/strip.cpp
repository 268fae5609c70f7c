// Products with strips of eight interleaved rows. A lane of a register belongs to one row, so the
// sums of eight rows end side by side; a block's integer sum is exact, and each output adds its
// blocks in ascending order whatever the number of tokens in the tile.
#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

namespace {

// y += scales * product, for the eight rows of a strip.
inline __m256 add_block(__m256 sum, __m256 w_scales, float x_scale, __m256i product) {
    const __m256 scales = _mm256_mul_ps(w_scales, _mm256_set1_ps(x_scale));
    return _mm256_fmadd_ps(scales, _mm256_cvtepi32_ps(product), sum);
}

inline __m256 load_scales(const f16_t* d) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(d)));
}

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// The nibbles stay unsigned, 0..15: eight byte products of at most 2 * 15 * 127 add up within 16 bits,
// so one widening add serves the whole block, and the -8 is taken off as 8 * the sum of the activations.
template <int T>
void tile(const StripQ4_0* w, int64_t n_blocks, const int8_t* q, const float* d, const int32_t* s8,
          float* y, int64_t ldy) {
    const int64_t cols = n_blocks * kQ;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256 sum[T];
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        __m256i weights[8];  // group v: columns 4 v .. 4 v + 3 of each row
        for (int v = 0; v < 4; v++) {
            const __m256i pair = load(w[b].qs + 32 * v);
            weights[v] = _mm256_and_si256(pair, low);
            weights[v + 4] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
        }
        const __m256 scales = load_scales(w[b].d);
        for (int t = 0; t < T; t++) {
            const int8_t* x = q + t * cols + b * kQ;
            __m256i even = _mm256_maddubs_epi16(weights[0], broadcast4(x));
            __m256i odd = _mm256_maddubs_epi16(weights[1], broadcast4(x + 4));
            for (int v = 2; v < 8; v += 2) {
                even = _mm256_add_epi16(even, _mm256_maddubs_epi16(weights[v], broadcast4(x + 4 * v)));
                odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(weights[v + 1], broadcast4(x + 4 * v + 4)));
            }
            const __m256i product = _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones);
            const __m256i offset = _mm256_set1_epi32(s8[t * n_blocks + b]);
            sum[t] = add_block(sum[t], scales, d[t * n_blocks + b], _mm256_sub_epi32(product, offset));
        }
    }
    for (int t = 0; t < T; t++) _mm256_storeu_ps(y + t * ldy, sum[t]);
}

// |w| times x with w's sign: 2 * 128 * 127 still fits 16 bits, but only once, so every pair is widened.
template <int T>
void tile(const StripQ8_0* w, int64_t n_blocks, const int8_t* q, const float* d, const int32_t*,
          float* y, int64_t ldy) {
    const int64_t cols = n_blocks * kQ;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sum[T];
    for (int t = 0; t < T; t++) sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        __m256i product[T];
        for (int t = 0; t < T; t++) product[t] = _mm256_setzero_si256();
        for (int v = 0; v < 8; v++) {
            const __m256i weights = load(w[b].qs + 32 * v), magnitude = _mm256_abs_epi8(weights);
            for (int t = 0; t < T; t++) {
                const __m256i x = _mm256_sign_epi8(broadcast4(q + t * cols + b * kQ + 4 * v), weights);
                const __m256i pairs = _mm256_maddubs_epi16(magnitude, x);
                product[t] = _mm256_add_epi32(product[t], _mm256_madd_epi16(pairs, ones));
            }
        }
        const __m256 scales = load_scales(w[b].d);
        for (int t = 0; t < T; t++) {
            sum[t] = add_block(sum[t], scales, d[t * n_blocks + b], product[t]);
        }
    }
    for (int t = 0; t < T; t++) _mm256_storeu_ps(y + t * ldy, sum[t]);
}

template <typename Strip>
void strip(const uint8_t* data, const Q8Rows& x, int64_t t0, int64_t nt, float* y, int64_t ldy) {
    const Strip* w = reinterpret_cast<const Strip*>(data);
    const int64_t n_blocks = x.cols / kQ;
    int64_t t = 0;
    const auto run = [&](auto kernel, int64_t n) {
        const int64_t row = t0 + t;
        kernel(w, n_blocks, x.q + row * x.cols, x.d + row * n_blocks, x.s8 + row * n_blocks, y + t * ldy, ldy);
        t += n;
    };
    while (t + 4 <= nt) run([](auto... a) { tile<4>(a...); }, 4);
    while (t < nt) run([](auto... a) { tile<1>(a...); }, 1);
}

}  // namespace

void strip__q8_0_q8(const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y, int64_t ldy) {
    strip<StripQ8_0>(w, x, t0, nt, y, ldy);
}

void strip__q4_0_q8(const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y, int64_t ldy) {
    strip<StripQ4_0>(w, x, t0, nt, y, ldy);
}

}  // namespace ggml::cpu::avx2
