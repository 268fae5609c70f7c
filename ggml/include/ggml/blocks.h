// Blocks of the quantised formats as GGUF files store them (the layouts of ggml-common.h in
// llama.cpp), and conversions of half floats.
#pragma once

#include <cstdint>
#include <cstring>

namespace ggml {

using f16_t = uint16_t;   // IEEE binary16, as bits
using bf16_t = uint16_t;  // the upper half of a binary32, as bits

constexpr int kQ = 32;    // weights in a block of the plain formats, and in a block of activations
constexpr int kQK = 256;  // weights in a block of the _K and _XS formats

// 4 bits: w = d * (q - 8). qs[i] holds weight i in its low and weight i + 16 in its high nibble.
struct BlockQ4_0 {
    f16_t d;
    uint8_t qs[kQ / 2];
};
static_assert(sizeof(BlockQ4_0) == 18);

// 8 bits: w = d * q.
struct BlockQ8_0 {
    f16_t d;
    int8_t qs[kQ];
};
static_assert(sizeof(BlockQ8_0) == 34);

// 4 bits and an offset: w = d * q + m. Nibbles as in Q4_0.
struct BlockQ4_1 {
    f16_t d, m;
    uint8_t qs[kQ / 2];
};
static_assert(sizeof(BlockQ4_1) == 20);

// 5 bits: w = d * (q - 16). Nibbles as in Q4_0; bit i of qh, little endian, is bit 4 of weight i.
struct BlockQ5_0 {
    f16_t d;
    uint8_t qh[kQ / 8];
    uint8_t qs[kQ / 2];
};
static_assert(sizeof(BlockQ5_0) == 22);

// 5 bits and an offset: w = d * q + m. Bits as in Q5_0.
struct BlockQ5_1 {
    f16_t d, m;
    uint8_t qh[kQ / 8];
    uint8_t qs[kQ / 2];
};
static_assert(sizeof(BlockQ5_1) == 24);

// 2 bits, 16 groups of 16: w = d * (scale & 15) * q - dmin * (scale >> 4), one scale byte per
// group. Weight 128 h + 32 j + l is in bits 2 j and 2 j + 1 of qs[32 h + l].
struct BlockQ2_K {
    uint8_t scales[kQK / 16];
    uint8_t qs[kQK / 4];
    f16_t d, dmin;
};
static_assert(sizeof(BlockQ2_K) == 84);

// 3 bits, 16 groups of 16: w = d * (scale - 32) * (q - 4). The lower two bits of q are in qs as in
// Q2_K. The upper bit of weight 128 h + 32 j + l is bit 4 h + j of hmask[l]. Scales have 6 bits:
// the low four are the nibbles of bytes 0..7 (low nibbles: groups 0..7, high nibbles: groups
// 8..15); the upper two of group g start at bit 2 (g / 4) of byte 8 + g % 4.
struct BlockQ3_K {
    uint8_t hmask[kQK / 8];
    uint8_t qs[kQK / 4];
    uint8_t scales[12];
    f16_t d;
};
static_assert(sizeof(BlockQ3_K) == 110);

// 4 bits, 8 groups of 32: w = d * scale * q - dmin * min. Weight 64 c + l is the low nibble of
// qs[32 c + l], weight 64 c + 32 + l the high one. For groups g = 0..3, scale and min are the low
// six bits of bytes g and 4 + g. For groups 4..7, the low four bits are in byte 4 + g (scale in the
// low nibble, min in the high one), and the upper two are the upper two bits of bytes g - 4 (scale)
// and g (min).
struct BlockQ4_K {
    f16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[kQK / 2];
};
static_assert(sizeof(BlockQ4_K) == 144);

// 5 bits, otherwise as Q4_K: bit g of qh[l] is bit 4 of weight l of group g.
struct BlockQ5_K {
    f16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[kQK / 8];
    uint8_t qs[kQK / 2];
};
static_assert(sizeof(BlockQ5_K) == 176);

// 6 bits, 16 groups of 16: w = d * scale * (q - 32). The low four bits of weight 128 h + 32 j + l
// are in ql[64 h + 32 (j % 2) + l], in the low nibble for j < 2, else in the high one. Its upper
// two start at bit 2 j of qh[32 h + l].
struct BlockQ6_K {
    uint8_t ql[kQK / 2];
    uint8_t qh[kQK / 4];
    int8_t scales[kQK / 16];
    f16_t d;
};
static_assert(sizeof(BlockQ6_K) == 210);

// 4 bits that index a table of unevenly spaced values: w = d * kIQ4[q]. Nibbles as in Q4_0.
constexpr int8_t kIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};
struct BlockIQ4_NL {
    f16_t d;
    uint8_t qs[kQ / 2];
};
static_assert(sizeof(BlockIQ4_NL) == 18);

// The same table, 8 groups of 32: w = d * (scale - 32) * kIQ4[q]. The nibbles of group g start at
// qs[16 g] and are ordered as in Q4_0. Scales have 6 bits: the low four are nibble g of scales_l,
// the upper two start at bit 2 g of scales_h.
struct BlockIQ4_XS {
    f16_t d;
    uint16_t scales_h;
    uint8_t scales_l[kQK / 64];
    uint8_t qs[kQK / 2];
};
static_assert(sizeof(BlockIQ4_XS) == 136);

// 4-bit floats with a power of two (MXFP4 of the OCP's Microscaling Formats 1.0): w = (kE2M1[q] -
// 16) * 2^(e - 128). Nibbles as in Q4_0. The table has twice the values of E2M1, plus 16.
constexpr int8_t kE2M1[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
struct BlockMXFP4 {
    uint8_t e;
    uint8_t qs[kQ / 2];
};
static_assert(sizeof(BlockMXFP4) == 17);

// The same table, 4 groups of 16 (NVFP4): w = (kE2M1[q] - 16) * half_e4m3(d[g]). Bytes 8 g .. 8 g +
// 7 of qs belong to group g: byte i of these holds weight i in its low and weight i + 8 in its high
// nibble.
struct BlockNVFP4 {
    uint8_t d[4];
    uint8_t qs[kQ];
};
static_assert(sizeof(BlockNVFP4) == 36);

// IQ1, IQ2 and IQ3, 8 groups of 32. A group's indices choose entries of a table (a grid, see
// grids.h), each of which gives eight weights, or four in IQ3. Their magnitudes are multiplied by
// signs: bit i of a byte of signs belongs to weight i of eight. Where eight weights have only seven
// bits, the eighth makes the number of negative ones even. In IQ1 the sign is that of a shift by
// 1/8. All members are bytes, so a block may begin at any address; words are little endian.
//
// w = d * (scale + 1/2) / 4 * q. Group g has eight bytes from qs[8 g] on: four indices, then a word
// with four times seven bits of signs and the scale in its upper four bits.
struct BlockIQ2_XXS {
    uint8_t d[2];
    uint8_t qs[kQK / 4];
};
static_assert(sizeof(BlockIQ2_XXS) == 66);

// w = d * (scale + 1/2) / 4 * q, a scale per 16. Word i of qs, of 16 bits, belongs to weights 8 i
// .. 8 i + 7: an index of nine bits, and seven bits of signs. Nibbles of scales: those of group g
// are in byte g.
struct BlockIQ2_XS {
    uint8_t d[2];
    uint8_t qs[kQK / 4];
    uint8_t scales[kQK / 32];
};
static_assert(sizeof(BlockIQ2_XS) == 74);

// The same with an index of ten bits: eight in qs[i], bits 8 and 9 from bit 2 (i % 4) of qh[i / 4]
// on. Eight bits of signs.
struct BlockIQ2_S {
    uint8_t d[2];
    uint8_t qs[kQK / 8];
    uint8_t signs[kQK / 8];
    uint8_t qh[kQK / 32];
    uint8_t scales[kQK / 32];
};
static_assert(sizeof(BlockIQ2_S) == 82);

// w = d * (scale + 1/2) / 2 * q. qs[i] is the index of weights 4 i .. 4 i + 3. Word g of scales, of
// 32 bits, has the signs and the scale of group g as in IQ2_XXS.
struct BlockIQ3_XXS {
    uint8_t d[2];
    uint8_t qs[kQK / 4];
    uint8_t scales[kQK / 8];
};
static_assert(sizeof(BlockIQ3_XXS) == 98);

// w = d * (2 * scale + 1) * q. Bit 8 of index i is bit i % 8 of qh[i / 8]. Eight bits of signs. The
// scale of group g is nibble g of scales.
struct BlockIQ3_S {
    uint8_t d[2];
    uint8_t qs[kQK / 4];
    uint8_t qh[kQK / 32];
    uint8_t signs[kQK / 8];
    uint8_t scales[kQK / 64];
};
static_assert(sizeof(BlockIQ3_S) == 110);

// w = d * (2 * scale + 1) * (q + shift). Word g of qh, of 16 bits, has bits 8 to 10 of the indices
// qs[4 g] .. qs[4 g + 3], the scale from bit 12 on, and in bit 15 the sign of the shift.
struct BlockIQ1_S {
    uint8_t d[2];
    uint8_t qs[kQK / 8];
    uint8_t qh[kQK / 16];
};
static_assert(sizeof(BlockIQ1_S) == 50);

// The same with a scale per 16 and a shift per 8. Nibble i of qh has bits 8 to 10 of the index
// qs[i] and the sign of its shift. Word i of scales, of 16 bits, has four scales of three bits; its
// upper four bits are nibble i of d.
struct BlockIQ1_M {
    uint8_t qs[kQK / 8];
    uint8_t qh[kQK / 16];
    uint8_t scales[kQK / 32];
};
static_assert(sizeof(BlockIQ1_M) == 56);

// Three values, two bits each: w = d * (q - 1). Bits as in Q2_K.
struct BlockTQ2_0 {
    uint8_t qs[kQK / 4];
    f16_t d;
};
static_assert(sizeof(BlockTQ2_0) == 66);

// Three values, five to a byte: w = d * (q - 1). A byte b is a fraction b / 256, whose digits of
// base 3 are the codes: digit n is (b * 3^n % 256) * 3 / 256, rounded down. Weight 32 n + l is
// digit n of qs[l], weight 160 + 16 n + l that of qs[32 + l], weight 240 + 4 n + l that of qh[l],
// which has four.
struct BlockTQ1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    f16_t d;
};
static_assert(sizeof(BlockTQ1_0) == 54);

// The formats of blocks: FORMAT(name, its suffix in names of kernels, weights of a block, has it
// mins?, the bias of its codes).
#define GGML_PLAIN_FORMATS(FORMAT)       \
    FORMAT(Q4_0, q4_0, kQ, false, 8)     \
    FORMAT(Q4_1, q4_1, kQ, true, 0)      \
    FORMAT(Q5_0, q5_0, kQ, false, 16)    \
    FORMAT(Q5_1, q5_1, kQ, true, 0)      \
    FORMAT(Q8_0, q8_0, kQ, false, 0)     \
    FORMAT(IQ4_NL, iq4_nl, kQ, false, 0) \
    FORMAT(MXFP4, mxfp4, kQ, false, 16)  \
    FORMAT(NVFP4, nvfp4, 2 * kQ, false, 16)
#define GGML_K_FORMATS(FORMAT)         \
    FORMAT(Q2_K, q2_k, kQK, true, 0)   \
    FORMAT(Q3_K, q3_k, kQK, false, 4)  \
    FORMAT(Q4_K, q4_k, kQK, true, 0)   \
    FORMAT(Q5_K, q5_k, kQK, true, 0)   \
    FORMAT(Q6_K, q6_k, kQK, false, 32) \
    FORMAT(IQ4_XS, iq4_xs, kQK, false, 0)
#define GGML_GRID_FORMATS(FORMAT)           \
    FORMAT(IQ2_XXS, iq2_xxs, kQK, false, 0) \
    FORMAT(IQ2_XS, iq2_xs, kQK, false, 0)   \
    FORMAT(IQ3_XXS, iq3_xxs, kQK, false, 0) \
    FORMAT(IQ1_S, iq1_s, kQK, false, 0)     \
    FORMAT(IQ3_S, iq3_s, kQK, false, 0)     \
    FORMAT(IQ2_S, iq2_s, kQK, false, 0)     \
    FORMAT(IQ1_M, iq1_m, kQK, false, 0)
#define GGML_TERNARY_FORMATS(FORMAT)    \
    FORMAT(TQ1_0, tq1_0, kQK, false, 1) \
    FORMAT(TQ2_0, tq2_0, kQK, false, 1)
#define GGML_BLOCK_FORMATS(FORMAT) \
    GGML_PLAIN_FORMATS(FORMAT)     \
    GGML_K_FORMATS(FORMAT) GGML_GRID_FORMATS(FORMAT) GGML_TERNARY_FORMATS(FORMAT)

// Functions that kernels call are always inlined (here, in kernels.h and in parts.h). The files of
// an instruction set are compiled with its flags. The linker keeps only one out-of-line copy of a
// function, and that copy might need an instruction that the processor does not have.
[[gnu::always_inline]] inline float bits_to_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

inline uint32_t float_to_bits(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}

[[gnu::always_inline]] inline float bf16_to_f32(bf16_t h) {
    return bits_to_float(uint32_t(h) << 16);
}

// The bits of 2^(e - 128), the scale of a block of MXFP4. It is subnormal for e = 0 and 1, and 255
// stands for no NaN. The larger one of two terms.
[[gnu::always_inline]] constexpr uint32_t power_bits(uint8_t e) {
    const int32_t normal = (e - 1) * 0x800000, subnormal = (e + 1) * 0x200000;
    return uint32_t(normal > subnormal ? normal : subnormal);
}
[[gnu::always_inline]] inline float power_of_two(uint8_t e) {
    return bits_to_float(power_bits(e));
}

// Half of an E4M3 without a sign, the scale of 16 weights of NVFP4: bit 7 counts for nothing, and
// 127, a NaN, is 0. e4m3_bits(e) * kHalfE4M3, where the bits of E4M3 begin a float whose exponent
// is too small; a subnormal is one, too.
[[gnu::always_inline]] constexpr uint32_t e4m3_bits(uint8_t e) {
    return e == 127 ? 0 : uint32_t(e & 127) << 20;
}
constexpr float kHalfE4M3 = 0x1p119f;
[[gnu::always_inline]] inline float half_e4m3(uint8_t e) {
    return bits_to_float(e4m3_bits(e)) * kHalfE4M3;
}

// Rounds to nearest even; NaN stays NaN.
inline bf16_t f32_to_bf16(float f) {
    uint32_t x = float_to_bits(f);
    if ((x & 0x7fffffff) > 0x7f800000) return bf16_t((x >> 16) | 64);
    return bf16_t((x + (0x7fff + ((x >> 16) & 1))) >> 16);
}

// Exact for every half, including subnormals, infinities and NaN.
inline float f16_to_f32(f16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    if (exp == 31) return bits_to_float(sign | 0x7f800000 | man << 13);
    if (exp == 0) {  // subnormal: man * 2^-24
        const float f = float(man) * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    return bits_to_float(sign | (exp + 112) << 23 | man << 13);
}

// Rounds to nearest even, overflows to infinity, as F16C does.
inline f16_t f32_to_f16(float f) {
    const uint32_t x = float_to_bits(f), sign = (x >> 16) & 0x8000, a = x & 0x7fffffff;
    if (a > 0x7f800000) return f16_t(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000) return f16_t(sign | 0x7c00);
    if (a < 0x38800000) {  // subnormal half: let the float adder round at the right bit
        const float r = bits_to_float(a) + 0.5f;
        return f16_t(sign | (float_to_bits(r) - 0x3f000000));
    }
    return f16_t(sign | ((a + 0xfff + ((a >> 13) & 1) - 0x38000000) >> 13));
}

}  // namespace ggml
