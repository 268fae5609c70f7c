// A block of any format unpacked into integers, for decoders, the generic kernels and devices.
// blocks.h describes the bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "formats/grids.h"
#include "ggml/blocks.h"

namespace ggml {

// w[i] = d * scale[i / 16] * q[i] + m * min[i / 16]; the second term only if has_min.
struct Parts {
    float d = 0, m = 0;
    float scale[kQK / 16];  // integers, but of NVFP4
    int16_t min[kQK / 16];
    int8_t q[kQK];
};

// w[i] = d * scale[i / 16] * (code[i] - bias); of IQ4, MXFP4 and NVFP4 the code is a table's entry.
template <typename Block>
struct BlockTraits;
#define TRAITS(name, suffix, n, min, offset)          \
    template <>                                       \
    struct BlockTraits<Block##name> {                 \
        static constexpr int size = n, bias = offset; \
        static constexpr bool has_min = min;          \
    };
GGML_BLOCK_FORMATS(TRAITS)
#undef TRAITS

// Do blocks begin with an exponent (power_bits in blocks.h) instead of a half?
template <typename Block>
constexpr bool kHasPower = std::is_same_v<Block, BlockMXFP4>;

// Scales and mins of the eight groups of Q4_K and Q5_K, one byte each, group 0 in the lowest byte.
struct GroupFactors {
    uint64_t scales, mins;
};
[[gnu::always_inline]] inline GroupFactors group_factors(const uint8_t packed[12]) {
    uint32_t a, b, c;
    std::memcpy(&a, packed, 4);
    std::memcpy(&b, packed + 4, 4);
    std::memcpy(&c, packed + 8, 4);
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, top = 0x30303030;
    return {(a & six) | uint64_t((c & four) | (a >> 2 & top)) << 32,
            (b & six) | uint64_t((c >> 4 & four) | (b >> 2 & top)) << 32};
}

// ---- codes: the bits of each weight, before the bias is subtracted ----------------------------

// n bytes of nibbles; the low ones come first.
template <int n>
inline void nibbles(const uint8_t* qs, uint8_t* q) {
    for (int i = 0; i < n; i++) {
        q[i] = qs[i] & 15;
        q[i + n] = qs[i] >> 4;
    }
}

// Two bits of each of 256 weights.
inline void two_bits(const uint8_t* qs, uint8_t* q) {
    for (int g = 0; g < kQK / kQ; g++) {
        for (int i = 0; i < kQ; i++) q[kQ * g + i] = qs[g / 4 * 32 + i] >> 2 * (g % 4) & 3;
    }
}

// Bit `to` of 256 weights: bit g of bits[i] belongs to weight i of group g.
inline void add_bits(const uint8_t* bits, int to, uint8_t* q) {
    for (int g = 0; g < kQK / kQ; g++) {
        for (int i = 0; i < kQ; i++) {
            q[kQ * g + i] = uint8_t(q[kQ * g + i] | (bits[i] >> g & 1) << to);
        }
    }
}

// Bit 4 of 32 weights, in their order.
inline void add_bits_4(const uint8_t* bits, uint8_t* q) {
    for (int i = 0; i < kQ; i++) q[i] = uint8_t(q[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

// Q4_0, Q4_1 and IQ4_NL.
template <typename Block>
inline void codes(const Block& b, uint8_t* q) {
    nibbles<16>(b.qs, q);
}
inline void codes(const BlockQ5_0& b, uint8_t* q) {
    nibbles<16>(b.qs, q);
    add_bits_4(b.qh, q);
}
inline void codes(const BlockQ5_1& b, uint8_t* q) {
    nibbles<16>(b.qs, q);
    add_bits_4(b.qh, q);
}
inline void codes(const BlockMXFP4& b, uint8_t* q) {
    nibbles<16>(b.qs, q);
    for (int i = 0; i < kQ; i++) q[i] = uint8_t(kE2M1[q[i]]);
}
inline void codes(const BlockNVFP4& b, uint8_t* q) {
    for (int g = 0; g < 4; g++) nibbles<8>(b.qs + 8 * g, q + 16 * g);
    for (int i = 0; i < 2 * kQ; i++) q[i] = uint8_t(kE2M1[q[i]]);
}
inline void codes(const BlockQ8_0& b, uint8_t* q) {
    std::memcpy(q, b.qs, kQ);
}
inline void codes(const BlockQ2_K& b, uint8_t* q) {
    two_bits(b.qs, q);
}
inline void codes(const BlockQ3_K& b, uint8_t* q) {
    two_bits(b.qs, q);
    add_bits(b.hmask, 2, q);
}
inline void codes(const BlockQ4_K& b, uint8_t* q) {
    for (int c = 0; c < 4; c++) nibbles<32>(b.qs + 32 * c, q + 64 * c);
}
inline void codes(const BlockQ5_K& b, uint8_t* q) {
    for (int c = 0; c < 4; c++) nibbles<32>(b.qs + 32 * c, q + 64 * c);
    add_bits(b.qh, 4, q);
}
inline void codes(const BlockQ6_K& b, uint8_t* q) {
    uint8_t high[kQK];
    two_bits(b.qh, high);
    for (int h = 0; h < 2; h++) nibbles<64>(b.ql + 64 * h, q + 128 * h);
    for (int i = 0; i < kQK; i++) q[i] = uint8_t(q[i] | high[i] << 4);
}
inline void codes(const BlockTQ2_0& b, uint8_t* q) {
    two_bits(b.qs, q);
}
// Digit n of n_bytes bytes, for digits 0 .. n - 1 in turn (ggml/blocks.h).
template <int n, int n_bytes>
inline void digits(const uint8_t* bytes, uint8_t* q) {
    for (int d = 0, power = 1; d < n; d++, power *= 3) {
        for (int i = 0; i < n_bytes; i++) *q++ = uint8_t((bytes[i] * power & 255) * 3 >> 8);
    }
}
inline void codes(const BlockTQ1_0& b, uint8_t* q) {
    digits<5, 32>(b.qs, q);
    digits<5, 16>(b.qs + 32, q + 160);
    digits<4, 4>(b.qh, q + 240);
}
inline void codes(const BlockIQ4_XS& b, uint8_t* q) {
    for (int g = 0; g < kQK / kQ; g++) nibbles<16>(b.qs + 16 * g, q + kQ * g);
}

// ---- scales: numbers per 16 weights; `min` only if the format has mins -----------------------

// Blocks of 32 and ternary ones have none.
template <typename Block>
inline void scales(const Block&, float* scale, int16_t* min) {
    for (int g = 0; g < BlockTraits<Block>::size / 16; g++) scale[g] = float(min[g] = 1);
}
inline void scales(const BlockNVFP4& b, float* scale, int16_t*) {
    for (int g = 0; g < 4; g++) scale[g] = half_e4m3(b.d[g]);
}
inline void scales(const BlockQ2_K& b, float* scale, int16_t* min) {
    for (int g = 0; g < kQK / 16; g++) {
        scale[g] = float(b.scales[g] & 15);
        min[g] = b.scales[g] >> 4;
    }
}
inline void scales(const BlockQ3_K& b, float* scale, int16_t*) {
    for (int g = 0; g < kQK / 16; g++) {
        const int low = b.scales[g % 8] >> g / 8 * 4 & 15, high = b.scales[8 + g % 4] >> g / 4 * 2;
        scale[g] = float((low | (high & 3) << 4) - 32);
    }
}
// Q4_K and Q5_K. Each one covers two groups of 16.
inline void six_bits(const uint8_t* packed, float* scale, int16_t* min) {
    const GroupFactors f = group_factors(packed);
    for (int g = 0; g < kQK / 16; g++) {
        scale[g] = float(f.scales >> g / 2 * 8 & 255);
        min[g] = f.mins >> g / 2 * 8 & 255;
    }
}
inline void scales(const BlockQ4_K& b, float* scale, int16_t* min) {
    six_bits(b.scales, scale, min);
}
inline void scales(const BlockQ5_K& b, float* scale, int16_t* min) {
    six_bits(b.scales, scale, min);
}
inline void scales(const BlockQ6_K& b, float* scale, int16_t*) {
    for (int g = 0; g < kQK / 16; g++) scale[g] = float(b.scales[g]);
}
inline void scales(const BlockIQ4_XS& b, float* scale, int16_t*) {
    for (int g = 0; g < kQK / 16; g++) {
        const int low = b.scales_l[g / 4] >> g / 2 % 2 * 4 & 15, high = b.scales_h >> g / 2 * 2 & 3;
        scale[g] = float((low | high << 4) - 32);
    }
}

// ---- all of it -------------------------------------------------------------------------------

// The scale of all weights of a block; 1 if it has none.
template <typename Block>
inline float scale_of(const Block& b) {
    if constexpr (kHasPower<Block>) {
        return power_of_two(b.e);
    } else if constexpr (std::is_same_v<Block, BlockNVFP4>) {
        return 1;
    } else {
        return f16_to_f32(b.d);
    }
}

// Of IQ1, IQ2 and IQ3.
template <typename Block>
void take_grids_apart(const Block& block, Parts& p) {
    using Grid = GridBlock<Block>;
    p.d = f16_to_f32(Grid::d(block)) * Grid::unit;
    for (int g = 0; g < kQK / kQ; g++) {
        for (int h = 0; h < 2; h++) {
            const uint32_t scale = Grid::scales(block, g) >> scale_at<Grid>(h) & kScaleMask<Grid>;
            p.scale[2 * g + h] = float(2 * scale + 1);
        }
        const uint32_t signs = sign_bits<Grid>(block, g);
        for (int i = 0; i < kQ; i++) {
            const auto q = int8_t(Grid::eight(block, g, i / 8) >> 8 * (i % 8));
            const bool negative = signs >> i & 1;
            p.q[kQ * g + i] = int8_t(Grid::signs == Signs::shift ? q - 8 + (negative ? -1 : 1)
                                     : negative                  ? -q
                                                                 : q);
        }
    }
}

// Of the other formats.
template <typename Block>
void take_codes_apart(const Block& block, Parts& p) {
    using Traits = BlockTraits<Block>;
    p.d = scale_of(block);
    if constexpr (Traits::has_min && Traits::size == kQ) p.m = f16_to_f32(block.m);
    if constexpr (Traits::has_min && Traits::size == kQK) p.m = -f16_to_f32(block.dmin);
    scales(block, p.scale, p.min);
    uint8_t q[Traits::size];
    codes(block, q);
    constexpr bool table = std::is_same_v<Block, BlockIQ4_NL> || std::is_same_v<Block, BlockIQ4_XS>;
    for (int i = 0; i < Traits::size; i++) {
        p.q[i] = table ? kIQ4[q[i]] : int8_t(q[i] - Traits::bias);
    }
}

template <typename Block>
void take_apart(const Block& block, Parts& p) {
    if constexpr (is_grid<Block>) {
        take_grids_apart(block, p);
    } else {
        take_codes_apart(block, p);
    }
}

// The product of a half and two small integers is exact in a float. Only the addition of the offset
// rounds, so the order of evaluation does not change the bits.
template <typename Block>
void decode(const void* src, float* dst, int64_t n) {
    using Traits = BlockTraits<Block>;
    const uint8_t* from = static_cast<const uint8_t*>(src);
    for (int64_t b = 0; b < n / Traits::size; b++) {
        Block block;
        Parts p;
        std::memcpy(&block, from + b * int64_t(sizeof(block)), sizeof(block));
        take_apart(block, p);
        for (int g = 0; g < Traits::size / 16; g++) {
            const float scale = p.d * p.scale[g];
            const float min = Traits::has_min ? p.m * float(p.min[g]) : 0.0f;
            for (int i = 16 * g; i < 16 * g + 16; i++) {
                const float value = scale * float(p.q[i]);
                dst[b * Traits::size + i] = Traits::has_min ? value + min : value;
            }
        }
    }
}

}  // namespace ggml
