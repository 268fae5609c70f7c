// The blocks of quantised formats as they stand in files (the public GGUF layouts), and half floats.
#pragma once

#include <cstdint>
#include <cstring>

namespace ggml {

using f16_t = uint16_t;   // IEEE binary16, as bits
using bf16_t = uint16_t;  // the upper half of a binary32, as bits

constexpr int kQ = 32;  // weights in a block of every format here

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

inline float bits_to_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

inline uint32_t float_to_bits(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}

inline float bf16_to_f32(bf16_t h) { return bits_to_float(uint32_t(h) << 16); }

// Round to nearest even; NaN stays NaN.
inline bf16_t f32_to_bf16(float f) {
    uint32_t x = float_to_bits(f);
    if ((x & 0x7fffffff) > 0x7f800000) return bf16_t((x >> 16) | 64);
    return bf16_t((x + (0x7fff + ((x >> 16) & 1))) >> 16);
}

// Exact for every half, subnormals, infinities and NaN included.
inline float f16_to_f32(f16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    if (exp == 31) return bits_to_float(sign | 0x7f800000 | man << 13);
    if (exp == 0) {  // subnormal: man * 2^-24
        const float f = float(man) * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    return bits_to_float(sign | (exp + 112) << 23 | man << 13);
}

// Round to nearest even, overflow to infinity, as F16C does.
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
