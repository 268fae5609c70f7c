// Rows of weights in planes (planes.h), group by group: what matrix products, the sparse FFN and
// the embedding are made of.
#pragma once

#include "cuda/launch.h"
#include "cuda/planes.h"
#include "ggml/device_ops.h"

namespace ggml::GGML_GPU {

// Sixteen bytes of a row, in one load.
__device__ inline uint4 load16(const uint8_t* p) {
    return *in_global_memory(reinterpret_cast<const uint4*>(p));
}
template <typename T>
__device__ inline T load(const uint8_t* p) {
    return *in_global_memory(reinterpret_cast<const T*>(p));
}

// A group of 32 quants as bytes: word k holds those of weights 4 k to 4 k + 3. And what makes
// weights of them: w[i] = d[i / 16] * q[i] + m[i / 16].
struct Group {
    unsigned words[8];
    float d[2], m[2];
};

// A group as it stands in the planes: loaded, but not taken apart, so that several can be on their
// way at once.
struct StoredGroup {
    unsigned low[8], high[2], scale, super;
};

// What scales a group: w = d * scale[i / 16] * (q - bias) + m * min[i / 16], without scale and min
// where a group has just d, or d and m. `m` is what blocks store: K-quants subtract it. Of NVFP4 d
// belongs to the first 16 weights and m to the others.
struct GroupScales {
    float d, m;
    int scale[2], min[2];
};

// Are quants entries of a table?
constexpr bool has_table(DType type) {
    return type == DType::IQ4_NL || type == DType::IQ4_XS || type == DType::MXFP4 ||
           type == DType::NVFP4;
}

// Four neighbouring entries of a type's table, less its bias, as bytes of a word.
constexpr unsigned table_word(DType type, int i) {
    unsigned word = 0;
    for (int k = 3; k >= 0; k--) {
        const bool e2m1 = type == DType::MXFP4 || type == DType::NVFP4;
        word = word << 8 | uint8_t(e2m1 ? kE2M1[i + k] - 16 : kIQ4[i + k]);
    }
    return word;
}

// The table of a type by nibble: what the lower nibbles of the bytes of `word` stand for, and the
// upper ones.
template <DType type>
__device__ inline void table_values(unsigned word, unsigned& low, unsigned& high) {
    constexpr unsigned first = table_word(type, 0), second = table_word(type, 4),
                       third = table_word(type, 8), fourth = table_word(type, 12);
    // __byte_perm takes four bytes of eight: by the lower three bits from both halves of the table,
    // and by the fourth bit from one of the two.
    const unsigned place = word & 0x77777777, half = 0x32103210 | (word >> 1 & 0x44444444);
    const unsigned bytes01 =
        __byte_perm(__byte_perm(first, second, place), __byte_perm(third, fourth, place), half);
    const unsigned bytes23 = __byte_perm(__byte_perm(first, second, place >> 16),
                                         __byte_perm(third, fourth, place >> 16), half >> 16);
    low = __byte_perm(bytes01, bytes23, 0x6420);
    high = __byte_perm(bytes01, bytes23, 0x7531);
}

// Bit i of `bits` to bit `to` of byte i, for the four of word k.
__device__ inline unsigned spread_bits(unsigned bits, int k, int to) {
    return ((bits >> 4 * k & 15) * 0x00204081 & 0x01010101) << to;
}

// Does one scale (and offset) serve all 32 weights of a group?
constexpr bool has_one_scale(DType type) {
    return type != DType::Q2_K && type != DType::Q3_K && type != DType::Q6_K &&
           type != DType::NVFP4;
}

// What is subtracted from quants.
constexpr int quant_bias(DType type) {
    return type == DType::Q4_0   ? 8
           : type == DType::Q5_0 ? 16
           : type == DType::Q3_K ? 4
           : type == DType::Q6_K ? 32
                                 : 0;
}

template <DType type>
__device__ inline StoredGroup load_stored(const uint8_t* row, const PlaneOffsets& at, int i) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    StoredGroup g;
    const uint8_t* low = row + i * bytes.low;
    if constexpr (bytes.low == 8) {
        const uint2 a = load<uint2>(low);
        g.low[0] = a.x, g.low[1] = a.y;
    } else {
        for (int k = 0; k < bytes.low / 4; k += 4) {
            const uint4 a = load16(low + 4 * k);
            g.low[k] = a.x, g.low[k + 1] = a.y, g.low[k + 2] = a.z, g.low[k + 3] = a.w;
        }
    }
    if constexpr (bytes.high == 4) {
        g.high[0] = load<unsigned>(row + at.high + 4 * i);
    } else if constexpr (bytes.high == 8) {
        const uint2 a = load<uint2>(row + at.high + 8 * i);
        g.high[0] = a.x, g.high[1] = a.y;
    }
    const uint8_t* scale = row + at.scale + i * bytes.scale;
    if constexpr (bytes.scale == 4) {
        g.scale = load<unsigned>(scale);
    } else if constexpr (bytes.scale == 2) {
        g.scale = load<uint16_t>(scale);
    } else {
        g.scale = load<uint8_t>(scale);
    }
    const uint8_t* super = row + at.super + i / 8 * bytes.super;
    if constexpr (bytes.super == 4) {
        g.super = load<unsigned>(super);
    } else if constexpr (bytes.super == 2) {
        g.super = load<uint16_t>(super);
    }
    return g;
}

template <DType type>
__device__ inline void quants(const StoredGroup& g, unsigned (&words)[8]) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    if constexpr (bytes.low == 32) {
        for (int k = 0; k < 8; k++) words[k] = g.low[k];
    } else if constexpr (bytes.low == 16) {
        for (int k = 0; k < 4; k++) {
            if constexpr (has_table(type)) {
                table_values<type>(g.low[k], words[k], words[k + 4]);
            } else {
                words[k] = g.low[k] & 0x0f0f0f0f;
                words[k + 4] = g.low[k] >> 4 & 0x0f0f0f0f;
            }
        }
    } else {
        for (int k = 0; k < 8; k++) words[k] = g.low[k % 2] >> k / 2 * 2 & 0x03030303;
    }
    if constexpr (bytes.high == 4) {
        for (int k = 0; k < 8; k++) words[k] |= spread_bits(g.high[0], k, bytes.low == 8 ? 2 : 4);
    } else if constexpr (bytes.high == 8) {
        for (int k = 0; k < 8; k++) words[k] |= (g.high[k % 2] >> k / 2 * 2 & 0x03030303) << 4;
    }
}

template <DType type>
__device__ inline GroupScales scales(const StoredGroup& g) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    GroupScales s = {};
    if constexpr (type == DType::MXFP4) {
        s.d = math::bits_as<float>(power_bits(uint8_t(g.scale)));
    } else if constexpr (type == DType::NVFP4) {
        s.d = math::bits_as<float>(e4m3_bits(uint8_t(g.scale))) * kHalfE4M3;
        s.m = math::bits_as<float>(e4m3_bits(uint8_t(g.scale >> 8))) * kHalfE4M3;
    } else if constexpr (bytes.super == 0) {  // one or two halves
        s.d = half_to_float(f16_t(g.scale));
        if constexpr (bytes.scale == 4) s.m = half_to_float(f16_t(g.scale >> 16));
    } else {
        s.d = half_to_float(f16_t(g.super));
        if constexpr (bytes.super == 4) s.m = half_to_float(f16_t(g.super >> 16));
        for (int half = 0; half < 2; half++) {
            if constexpr (type == DType::Q2_K) {
                s.scale[half] = int(g.scale >> 8 * half & 15);
                s.min[half] = int(g.scale >> 8 * half >> 4 & 15);
            } else if constexpr (bytes.super == 4) {  // Q4_K and Q5_K
                s.scale[half] = int(g.scale & 255);
                s.min[half] = int(g.scale >> 8);
            } else {  // signed, of 32 (IQ4_XS) or 16 weights
                s.scale[half] = int8_t(bytes.scale == 2 ? g.scale >> 8 * half : g.scale);
            }
        }
    }
    return s;
}

template <DType type>
__device__ inline Group load_group(const uint8_t* row, const PlaneOffsets& at, int i) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    const StoredGroup stored = load_stored<type>(row, at, i);
    const GroupScales s = scales<type>(stored);
    Group g;
    quants<type>(stored, g.words);
    for (int half = 0; half < 2; half++) {
        g.d[half] = bytes.super                         ? s.d * float(s.scale[half])
                    : type == DType::NVFP4 && half == 1 ? s.m
                                                        : s.d;
        g.m[half] = bytes.super == 4   ? -(s.m * float(s.min[half]))
                    : bytes.scale == 4 ? s.m
                                       : g.d[half] * float(-quant_bias(type));
    }
    return g;
}

// Quants of these types are signed bytes, without an offset; those of the others are not.
constexpr bool has_signed_quants(DType type) {
    return type == DType::Q8_0 || has_table(type);
}

// Weight i of a group; exactly what the reference codec gives.
template <DType type>
__device__ inline float group_value(const Group& g, int i) {
    const unsigned byte = g.words[i / 4] >> i % 4 * 8 & 255;
    const float q = has_signed_quants(type) ? float(int8_t(byte)) : float(int(byte));
    return fmaf(g.d[i / 16], q, g.m[i / 16]);
}

// Eight neighbouring floats of a row, whatever their type.
template <DType type>
__device__ inline void load8(const uint8_t* row, int64_t i, float* out) {
    if constexpr (type == DType::F32) {
        for (int h = 0; h < 2; h++) {
            const float4 v = *reinterpret_cast<const float4*>(row + 32 * i + 16 * h);
            out[4 * h] = v.x;
            out[4 * h + 1] = v.y;
            out[4 * h + 2] = v.z;
            out[4 * h + 3] = v.w;
        }
    } else {
        const uint4 v = load16(row + 16 * i);
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
        for (int k = 0; k < 4; k++) {
            if constexpr (type == DType::BF16) {
                out[2 * k] = math::bits_as<float>(words[k] << 16);
                out[2 * k + 1] = math::bits_as<float>(words[k] & 0xffff0000);
            } else {
                out[2 * k] = half_to_float(f16_t(words[k]));
                out[2 * k + 1] = half_to_float(f16_t(words[k] >> 16));
            }
        }
    }
}

constexpr bool is_float_type(DType type) {
    return type == DType::F32 || type == DType::F16 || type == DType::BF16;
}

// Calls `use` with the type as a constant: use(TypeTag<type>()).
template <DType t>
struct TypeTag {
    static constexpr DType type = t;
};
template <typename Use>
void with_type(DType type, const Use& use) {
#define USE(name, ...) \
    if (type == DType::name) return use(TypeTag<DType::name>());
    USE(F32, f32)
    USE(F16, f16)
    USE(BF16, bf16)
    GGML_PLAIN_FORMATS(USE)
    GGML_K_FORMATS(USE)
#undef USE
    throw Error(Code::unsupported, "a device has no products for this type");
}

}  // namespace ggml::GGML_GPU
