// What kernels for AMX share. A product of two tiles has 16 tokens and 16 rows of weights: the tile
// of activations has a line of 32 columns for each token, that of weights a line for each four
// columns, with these columns of all rows side by side.
#pragma once

#include "kernels/avx512/pairs.h"

namespace ggml::cpu::amx {

constexpr int kTokens = 16;       // of a tile
constexpr int kRows = 16;         // of weights in a tile
constexpr int kLine = 4 * kRows;  // bytes of a line of weights

using Weights = int8_t[8][kLine];  // a tile of 32 columns
using Product = int32_t[kTokens][kRows];

// A template of this namespace, unlike std::min: see tests/python/test_isa.py.
template <typename T>
T lesser(T a, T b) {
    return b < a ? b : a;
}

// Group v of the 32 columns j of a pair, less the format's bias: signed.
template <typename F>
__m512i signed_weights(Pair w, int j, int v) {
    return _mm512_sub_epi8(F::weights(w, j, v), _mm512_set1_epi8(char(F::bias)));
}

// The shapes of the tiles, as LDTILECFG reads them. Tiles 0 and 1 are products, 2 and 3
// activations, 4 and 5 weights.
struct alignas(64) Shapes {
    Shapes() {
        for (int i = 0; i < 6; i++) {
            bytes[i] = i / 2 == 1 ? kQ : kLine;
            lines[i] = i / 2 == 2 ? 8 : kTokens;
        }
    }
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};  // of a line
    uint8_t lines[16] = {};
};

// Multiplies two tiles of weights with activations at q0 and q1, whose tokens are `apart` from each
// other. The intrinsics of g++ 12 do not tell that tiles are loaded from memory: what has written
// there must be followed by written().
[[gnu::always_inline]] inline void multiply(const Weights& w0, const Weights& w1, const int8_t* q0,
                                            const int8_t* q1, int64_t apart, Product& to0,
                                            Product& to1) {
    _tile_zero(0);
    _tile_loadd(2, q0, apart);
    _tile_loadd(4, w0, kLine);
    _tile_dpbssd(0, 2, 4);
    _tile_zero(1);
    _tile_loadd(3, q1, apart);
    _tile_loadd(5, w1, kLine);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(0, to0, kLine);
    _tile_stored(1, to1, kLine);
}
[[gnu::always_inline]] inline void written() {
    __asm__ volatile("" ::: "memory");
}

// to[b][t] = from[t * apart + b] for 16 tokens and n <= 16 blocks: values of a block side by side
// are read faster than from 16 lines of the cache. Squares of 4 x 4 values are turned, then the 4 x
// 4 squares.
inline void turn(const float* from, int64_t apart, int n, float (*to)[16]) {
    __m512i a[16], b[16];
    const __mmask16 some = __mmask16((1u << n) - 1);
#pragma GCC unroll 16
    for (int t = 0; t < 16; t++) a[t] = _mm512_maskz_loadu_epi32(some, from + t * apart);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        constexpr int low = 0x44, high = 0xee, even = 0x88, odd = 0xdd;
        const __m512i left = _mm512_shuffle_i32x4(a[j], a[4 + j], low),
                      right = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], low),
                      left_high = _mm512_shuffle_i32x4(a[j], a[4 + j], high),
                      right_high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], high);
        _mm512_store_si512(to[j], _mm512_shuffle_i32x4(left, right, even));
        _mm512_store_si512(to[4 + j], _mm512_shuffle_i32x4(left, right, odd));
        _mm512_store_si512(to[8 + j], _mm512_shuffle_i32x4(left_high, right_high, even));
        _mm512_store_si512(to[12 + j], _mm512_shuffle_i32x4(left_high, right_high, odd));
    }
}

}  // namespace ggml::cpu::amx
