// Counts the bits where signs differ, weighted by levels. A table of 16 entries gives the number of
// bits in a nibble. Doubling the table for each plane lets the counts of all three planes add up in
// the same bytes.
#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

namespace {

inline __m256i load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// The weighted count over 32 bytes: four partial sums, each of 8 bytes of at most 56.
inline __m256i count(__m256i differ, const uint8_t* levels, int64_t plane) {
    const __m256i bits = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1,
                                          2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    __m256i table = bits, sum = _mm256_setzero_si256();
    for (int p = 0; p < 3; p++) {
        const __m256i v = _mm256_and_si256(differ, load(levels + p * plane));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        sum = _mm256_add_epi8(sum, _mm256_shuffle_epi8(table, _mm256_and_si256(v, low)));
        sum = _mm256_add_epi8(sum, _mm256_shuffle_epi8(table, high));
        table = _mm256_add_epi8(table, table);
    }
    return _mm256_sad_epu8(sum, _mm256_setzero_si256());
}

}  // namespace

void sketch__i1_i4(const uint8_t* signs, int64_t n_rows, int64_t bytes, const uint8_t* planes,
                   int32_t* out) {
    const int64_t plane = plane_bytes(bytes), whole = bytes / 32 * 32;
    const uint8_t* levels = planes + plane;
    for (int64_t r = 0; r < n_rows; r++, signs += bytes) {
        __m256i sum = _mm256_setzero_si256();
        for (int64_t i = 0; i < whole; i += 32) {
            const __m256i differ = _mm256_xor_si256(load(signs + i), load(planes + i));
            sum = _mm256_add_epi64(sum, count(differ, levels + i, plane));
        }
        if (whole < bytes) {  // levels beyond the end are 0
            uint8_t rest[32] = {};
            std::memcpy(rest, signs + whole, size_t(bytes - whole));
            const __m256i differ = _mm256_xor_si256(load(rest), load(planes + whole));
            sum = _mm256_add_epi64(sum, count(differ, levels + whole, plane));
        }
        const __m128i half =
            _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        out[r] = int32_t(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
    }
}

}  // namespace ggml::cpu::avx2
