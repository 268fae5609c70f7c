// A block of any format unpacked into integers, for decoders and the generic kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "ggml/blocks.h"

namespace ggml {

// w[i] = d * scale[i / 16] * q[i] + m * min[i / 16]; the second term only if has_min.
struct Parts {
    float d = 0, m = 0;
    int16_t scale[kQK / 16];
    int16_t min[kQK / 16];
    int8_t q[kQK];
};

template <typename Block>
struct BlockTraits {
    static constexpr int size = kQ;
    static constexpr bool has_min = false;
};
template <int n, bool min>
struct Traits {
    static constexpr int size = n;
    static constexpr bool has_min = min;
};
template <>
struct BlockTraits<BlockQ4_1> : Traits<kQ, true> {};
template <>
struct BlockTraits<BlockQ5_1> : Traits<kQ, true> {};
template <>
struct BlockTraits<BlockQ2_K> : Traits<kQK, true> {};
template <>
struct BlockTraits<BlockQ3_K> : Traits<kQK, false> {};
template <>
struct BlockTraits<BlockQ4_K> : Traits<kQK, true> {};
template <>
struct BlockTraits<BlockQ5_K> : Traits<kQK, true> {};
template <>
struct BlockTraits<BlockQ6_K> : Traits<kQK, false> {};
template <>
struct BlockTraits<BlockIQ4_XS> : Traits<kQK, false> {};

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

void take_apart(const BlockQ4_0& block, Parts& p);
void take_apart(const BlockQ4_1& block, Parts& p);
void take_apart(const BlockQ5_0& block, Parts& p);
void take_apart(const BlockQ5_1& block, Parts& p);
void take_apart(const BlockQ8_0& block, Parts& p);
void take_apart(const BlockQ2_K& block, Parts& p);
void take_apart(const BlockQ3_K& block, Parts& p);
void take_apart(const BlockQ4_K& block, Parts& p);
void take_apart(const BlockQ5_K& block, Parts& p);
void take_apart(const BlockQ6_K& block, Parts& p);
void take_apart(const BlockIQ4_NL& block, Parts& p);
void take_apart(const BlockIQ4_XS& block, Parts& p);

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
            const float scale = p.d * float(p.scale[g]);
            const float min = Traits::has_min ? p.m * float(p.min[g]) : 0.0f;
            for (int i = 16 * g; i < 16 * g + 16; i++) {
                const float value = scale * float(p.q[i]);
                dst[b * Traits::size + i] = Traits::has_min ? value + min : value;
            }
        }
    }
}

}  // namespace ggml
