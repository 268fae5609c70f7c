// Shared by the AVX2 kernels of block formats, for strips of eight interleaved rows and for neuron
// rows.
//
// A register has eight lanes. Each lane belongs to one row of a strip, to one eighth of a folded
// row, or to one of the eight groups of 32 columns of a block of 256 as stored. So a product ends
// with eight sums side by side. The integer sum over a block of 32 columns is exact, and each
// output adds its blocks in ascending order for any number of tokens or rows in a tile. A group is
// bytes 4 v .. 4 v + 3 of a member of the block, for all eight lanes.
//
// Each format is described once by a struct that derives from its family (a template in the file of
// the format). strip_kernels.h makes its kernels from these members:
//   Block, blocks       its block, of 32 * blocks columns
//   weights(w, j, v)    group v of the 32 columns j, as bytes
//   bias                the offset to subtract from these bytes
//   halves              scales per 32 columns: 1, or 2 if each 16 columns have one
//   tokens              tokens in the largest tile; see for_tiles
// The family provides:
//   multiply<T>(w, x, b, sum)     adds to T sums the product of a block with x from block b on
//   has_min, numbers(w, j, half)  decoding of the bytes less the bias: scale * byte + min
#pragma once

#include <cstddef>
#include <type_traits>

#include "cpu/avx2/simd.h"
#include "cpu/kernels.h"

namespace ggml::cpu::avx2 {

constexpr int kGroup = 32;  // bytes of a group

inline __m256i load(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline __m256 load_scales(const uint8_t* halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

struct Numbers {
    __m256 scale, min;
};

// How a format with blocks of 256 reads its half floats for eight lanes. Interleaved: eight blocks
// are interleaved, and each lane takes 32 columns of its own block at a time. Stored: one block as
// stored, whose eight groups are the lanes.
struct Interleaved {
    static constexpr int blocks = 8;
    static __m256 halves(const uint8_t* w, size_t member) {
        return load_scales(w + kStrip * member);
    }
};
struct Stored {
    static constexpr int blocks = 1;
    static __m256 halves(const uint8_t* w, size_t member) {
        f16_t half;
        std::memcpy(&half, w + member, sizeof(half));
        return _mm256_set1_ps(_cvtsh_ss(half));
    }
};

// The four bytes at p, in every lane.
inline __m256i word(const uint8_t* p) {
    return broadcast4(reinterpret_cast<const int8_t*>(p));
}
// The four bytes at p in lanes 0..3, and those at p + apart in lanes 4..7.
inline __m256i two_words(const uint8_t* p, int64_t apart) {
    return _mm256_blend_epi32(word(p), word(p + apart), 0xf0);
}

// Activations for strips: of tokens t0 + t, the same for all eight rows.
struct Tokens {
    Tokens(const Q8Rows& x, int64_t t0)
        : cols(x.cols),
          n_blocks(cols / kQ),
          q(x.q + t0 * x.cols),
          d(x.d + t0 * n_blocks),
          ds(x.ds + t0 * n_blocks),
          s8(x.s8 + t0 * n_blocks),
          s16(x.s16 + t0 * n_blocks * 2) {}

    struct Block {
        const int8_t* q;
        __m256i operator[](int v) const { return broadcast4(q + 4 * v); }
    };
    Block values(int t, int64_t b) const { return {q + t * cols + b * kQ}; }
    __m256 scale(int t, int64_t b) const { return _mm256_set1_ps(d[t * n_blocks + b]); }
    __m256 scaled_sum(int t, int64_t b) const { return _mm256_set1_ps(ds[t * n_blocks + b]); }
    __m256i sum8(int t, int64_t b) const { return _mm256_set1_epi32(s8[t * n_blocks + b]); }
    // The sums of the two groups of 16 columns, in the halves of each lane.
    __m256i sums16(int t, int64_t b) const {
        int32_t pair;
        std::memcpy(&pair, s16 + (t * n_blocks + b) * 2, sizeof(pair));
        return _mm256_set1_epi32(pair);
    }

    int64_t cols, n_blocks;
    const int8_t* q;
    const float *d, *ds;
    const int32_t* s8;
    const int16_t* s16;
};

// Activations for neuron rows: of any T tokens; each lane has its own columns.
template <int T>
struct Eighths {
    Eighths(const Q8Rows& x, const int32_t* tokens) : x_(x), n_blocks(x.cols / kQ / kStrip) {
        for (int t = 0; t < T; t++) first_[t] = tokens[t] * (x.cols / kQ);
    }

    struct Block {
        const int8_t* q;
        __m256i operator[](int v) const { return load(q + kGroup * v); }
    };
    // Index of the first of token t's eight blocks b.
    int64_t at(int t, int64_t b) const { return first_[t] + b * kStrip; }
    Block values(int t, int64_t b) const { return {x_.q + at(t, b) * kQ}; }
    __m256 scale(int t, int64_t b) const { return _mm256_loadu_ps(x_.d + at(t, b)); }
    __m256 scaled_sum(int t, int64_t b) const { return _mm256_loadu_ps(x_.ds + at(t, b)); }
    __m256i sum8(int t, int64_t b) const { return load(x_.s8 + at(t, b)); }
    __m256i sums16(int t, int64_t b) const { return load(x_.s16 + 2 * at(t, b)); }

 private:
    const Q8Rows x_;
    int64_t first_[T];

 public:
    int64_t n_blocks;
};

// sum + w_scales * x_scales * product, lane by lane.
inline __m256 add_block(__m256 sum, __m256 w_scales, __m256 x_scales, __m256i product) {
    return _mm256_fmadd_ps(_mm256_mul_ps(w_scales, x_scales), _mm256_cvtepi32_ps(product), sum);
}

// Group v of 16 bytes of nibbles; the low nibbles come first.
inline __m256i nibbles(const uint8_t* qs, int v) {
    __m256i pair = load(qs + kGroup * (v % 4));
    if (v >= 4) pair = _mm256_srli_epi16(pair, 4);
    return _mm256_and_si256(pair, _mm256_set1_epi8(15));
}

// The same with bit 4 from qh: bit i of a lane's four bytes belongs to column i.
inline __m256i nibbles_and_bits(const uint8_t* qh, const uint8_t* qs, int v) {
    const __m256i first = _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c,
                                           0x08080808, 0x04040404, 0);
    const __m256i byte =
        _mm256_shuffle_epi8(load(qh), _mm256_add_epi8(first, _mm256_set1_epi8(char(v / 2))));
    const __m256i mask = _mm256_set1_epi32(v % 2 ? int(0x80402010) : 0x08040201);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, mask), mask);
    return _mm256_or_si256(nibbles(qs, v), _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

template <typename F>
inline void all_weights(const uint8_t* w, int j, __m256i out[8]) {
    for (int v = 0; v < 8; v++) out[v] = F::weights(w, j, v);
}

// Product of 32 unsigned weights of each lane with 32 activations. With 4-bit weights, eight byte
// products of at most 2 * 15 * 127 fit 16 bits, so the block needs one widening addition. With
// 5-bit weights four fit, so it needs two.
template <int bits, typename X>
inline __m256i product32(const __m256i weights[8], const X& x,
                         __m256i factor = _mm256_set1_epi16(1)) {
    __m256i even = _mm256_maddubs_epi16(weights[0], x[0]);
    __m256i odd = _mm256_maddubs_epi16(weights[1], x[1]);
    for (int v = 2; v < 8; v += 2) {
        even = _mm256_add_epi16(even, _mm256_maddubs_epi16(weights[v], x[v]));
        odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(weights[v + 1], x[v + 1]));
    }
    if (bits == 4) return _mm256_madd_epi16(_mm256_add_epi16(even, odd), factor);
    return _mm256_add_epi32(_mm256_madd_epi16(even, factor), _mm256_madd_epi16(odd, factor));
}

}  // namespace ggml::cpu::avx2
