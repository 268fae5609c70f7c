// The grids of IQ1, IQ2 and IQ3 in registers. VBMI looks up 64 bytes at once in tables of 128, so a
// table of the codes of weights (formats/grids.inc) replaces that of the weights: an entry's two
// bytes have four codes of two bits each, or two of three.
#pragma once

#include <cstdint>

#include "kernels/avx512/families.h"

namespace ggml::cpu::GGML_ISA {

template <int n>
struct GridCodes {
    alignas(64) uint8_t low[n] = {}, high[n] = {};
};
// bits: of the codes of a byte.
template <int bits, int n>
constexpr GridCodes<n> grid_codes(const uint16_t (&rows)[n]) {
    GridCodes<n> codes;
    for (int i = 0; i < n; i++) {
        codes.low[i] = uint8_t(rows[i] & ((1 << bits) - 1));
        codes.high[i] = uint8_t(rows[i] >> bits);
    }
    return codes;
}
namespace grid_rows {
#define GRID(name, ...) constexpr uint16_t k##name[] = {__VA_ARGS__};
#include "formats/grids.inc"
#undef GRID
}  // namespace grid_rows
constexpr auto kIQ2_XXS = grid_codes<8>(grid_rows::kIQ2_XXS);
constexpr auto kIQ2_XS = grid_codes<8>(grid_rows::kIQ2_XS);
constexpr auto kIQ2_S = grid_codes<8>(grid_rows::kIQ2_S);
constexpr auto kIQ1 = grid_codes<8>(grid_rows::kIQ1_S);
constexpr auto kIQ3_XXS = grid_codes<6>(grid_rows::kIQ3_XXS);
constexpr auto kIQ3_S = grid_codes<6>(grid_rows::kIQ3_S);

inline __m512i load512(const void* p) {
    return _mm512_loadu_si512(p);
}
// 64 indices: their low eight bits, and each bit above them, from bit 7 on.
struct Index {
    template <typename... Mask>
    explicit Index(__m512i low_bits, Mask... above)
        : low(low_bits), bits{_mm512_movepi8_mask(low_bits), above...} {}
    __m512i low;
    __mmask64 bits[4];
};
// The entries of a table of n bytes by such indices.
template <int n>
inline __m512i look_up(const uint8_t* table, const Index& index) {
    if constexpr (n == 128) {
        return _mm512_permutex2var_epi8(load512(table), index.low, load512(table + 64));
    } else {
        constexpr int top = n == 256 ? 0 : n == 512 ? 1 : n == 1024 ? 2 : 3;
        return _mm512_mask_blend_epi8(index.bits[top], look_up<n / 2>(table, index),
                                      look_up<n / 2>(table + n / 2, index));
    }
}
template <int n>
inline __m512i look_up(const uint8_t (&table)[n], const Index& index) {
    return look_up<n>(static_cast<const uint8_t*>(table), index);
}

// The same four bytes in all lanes. Where they are places within a lane: each lane's own.
inline __m512i bytes4(int a, int b, int c, int d) {
    return _mm512_set1_epi32(
        int(uint32_t(a) | uint32_t(b) << 8 | uint32_t(c) << 16 | uint32_t(d) << 24));
}
inline __m512i places4(int a, int b, int c, int d) {  // for shuffles in 16 bytes
    const __m512i lanes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    return _mm512_add_epi8(lanes, bytes4(a, b, c, d));
}
// Of two registers: i is byte i of the first one's lane, 64 + i of the second one's.
inline __m512i merged(__m512i first, __m512i second, int a, int b, int c, int d) {
    alignas(64) static constexpr int32_t lanes[16] = {
        0,          0x04040404, 0x08080808, 0x0c0c0c0c, 0x10101010, 0x14141414,
        0x18181818, 0x1c1c1c1c, 0x20202020, 0x24242424, 0x28282828, 0x2c2c2c2c,
        0x30303030, 0x34343434, 0x38383838, 0x3c3c3c3c};
    const __m512i places = _mm512_add_epi8(load512(lanes), bytes4(a, b, c, d));
    return _mm512_permutex2var_epi8(first, places, second);
}
// Eight bits from each of these bits of a lane on.
inline __m512i bits_from(__m512i v, int a, int b, int c, int d) {
    const __m512i second = _mm512_set1_epi64(0x2020202000000000);
    return _mm512_multishift_epi64_epi8(_mm512_add_epi8(second, bytes4(a, b, c, d)), v);
}
inline __mmask64 has_bits(__m512i v, int a, int b, int c, int d) {
    return _mm512_test_epi8_mask(v, bytes4(a, b, c, d));
}

// Seven bits of signs from bit `at` on of each byte, with their parity as the eighth.
inline __m512i with_eighth_bits(__m512i v, int at) {
    // Bit i becomes the parity of what bits a row has; row 0 is in the upper byte.
    uint64_t rows = 0;
    for (int i = 0; i < 8; i++) rows |= uint64_t(i < 7 ? 1 << i : 127) << at << (56 - 8 * i);
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(int64_t(rows)), 0);
}

}  // namespace ggml::cpu::GGML_ISA
