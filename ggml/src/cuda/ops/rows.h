// Products with rows of weights in planes (planes.h), and their values: what matrix products, the
// sparse FFN and the embedding are made of. A warp works on a row, its lanes on groups of 32
// weights.
#pragma once

#include "cuda/launch.h"
#include "cuda/planes.h"
#include "ggml/device_ops.h"

namespace ggml::GGML_GPU {

// Sixteen bytes of a row, in one load.
__device__ inline uint4 load16(const uint8_t* p) {
    return *reinterpret_cast<const uint4*>(p);
}
template <typename T>
__device__ inline T load(const uint8_t* p) {
    return *reinterpret_cast<const T*>(p);
}

// A group of 32 quants as bytes: word k holds those of weights 4 k to 4 k + 3. And what makes
// weights of them: w[i] = d[i / 16] * q[i] + m[i / 16].
struct Group {
    unsigned words[8];
    float d[2], m[2];
};

// Are quants entries of a table?
constexpr bool has_table(DType type) {
    return type == DType::IQ4_NL || type == DType::IQ4_XS || type == DType::MXFP4;
}

// Four neighbouring entries of a type's table, less its bias, as bytes of a word.
constexpr unsigned table_word(DType type, int i) {
    unsigned word = 0;
    for (int k = 3; k >= 0; k--) {
        word = word << 8 | uint8_t(type == DType::MXFP4 ? kE2M1[i + k] - 16 : kIQ4[i + k]);
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

template <DType type>
__device__ inline Group load_group(const uint8_t* row, const PlaneOffsets& at, int64_t i) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    Group g;
    const uint8_t* low = row + i * bytes.low;
    if constexpr (bytes.low == 32) {
        const uint4 a = load16(low), b = load16(low + 16);
        const unsigned all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        for (int k = 0; k < 8; k++) g.words[k] = all[k];
    } else if constexpr (bytes.low == 16) {
        const uint4 a = load16(low);
        const unsigned all[4] = {a.x, a.y, a.z, a.w};
        for (int k = 0; k < 4; k++) {
            if constexpr (has_table(type)) {
                table_values<type>(all[k], g.words[k], g.words[k + 4]);
            } else {
                g.words[k] = all[k] & 0x0f0f0f0f;
                g.words[k + 4] = all[k] >> 4 & 0x0f0f0f0f;
            }
        }
    } else {
        const uint2 a = load<uint2>(low);
        for (int k = 0; k < 8; k++) g.words[k] = (k % 2 ? a.y : a.x) >> k / 2 * 2 & 0x03030303;
    }
    if constexpr (bytes.high == 4) {
        const unsigned bits = load<unsigned>(row + at.high + 4 * i);
        for (int k = 0; k < 8; k++) g.words[k] |= spread_bits(bits, k, bytes.low == 8 ? 2 : 4);
    } else if constexpr (bytes.high == 8) {
        const uint2 a = load<uint2>(row + at.high + 8 * i);
        for (int k = 0; k < 8; k++) {
            g.words[k] |= ((k % 2 ? a.y : a.x) >> k / 2 * 2 & 0x03030303) << 4;
        }
    }
    const uint8_t* scale = row + at.scale + i * bytes.scale;
    const uint8_t* super = row + at.super + i / 8 * bytes.super;
    g.m[0] = g.m[1] = 0;
    if constexpr (bytes.super == 0) {
        // One or two halves, or an exponent.
        if constexpr (bytes.scale == 4) {
            const unsigned dm = load<unsigned>(scale);
            g.d[0] = g.d[1] = half_to_float(f16_t(dm));
            g.m[0] = g.m[1] = half_to_float(f16_t(dm >> 16));
        } else {
            if constexpr (type == DType::MXFP4) {
                g.d[0] = math::bits_as<float>(power_bits(*scale));
            } else {
                g.d[0] = half_to_float(load<f16_t>(scale));
            }
            g.d[1] = g.d[0];
            constexpr float offset = type == DType::Q4_0 ? -8 : type == DType::Q5_0 ? -16 : 0;
            g.m[0] = g.m[1] = g.d[0] * offset;
        }
    } else if constexpr (type == DType::Q4_K || type == DType::Q5_K) {
        const unsigned both = load<unsigned>(super);
        const uint16_t sm = load<uint16_t>(scale);
        g.d[0] = g.d[1] = half_to_float(f16_t(both)) * float(sm & 255);
        g.m[0] = g.m[1] = -(half_to_float(f16_t(both >> 16)) * float(sm >> 8));
    } else if constexpr (type == DType::Q2_K) {
        const unsigned both = load<unsigned>(super);
        const uint16_t sm = load<uint16_t>(scale);
        const float d = half_to_float(f16_t(both)), dmin = half_to_float(f16_t(both >> 16));
        for (int half = 0; half < 2; half++) {
            const int byte = sm >> 8 * half & 255;
            g.d[half] = d * float(byte & 15);
            g.m[half] = -(dmin * float(byte >> 4));
        }
    } else {
        // Signed scales of 32 (IQ4_XS) or 16 weights.
        const float d = half_to_float(load<f16_t>(super));
        constexpr float offset = type == DType::Q6_K ? -32 : type == DType::Q3_K ? -4 : 0;
        for (int half = 0; half < 2; half++) {
            g.d[half] = d * float(int8_t(scale[bytes.scale == 2 ? half : 0]));
            g.m[half] = g.d[half] * offset;
        }
    }
    return g;
}

// Does one scale (and offset) serve all 32 weights of a group?
constexpr bool has_one_scale(DType type) {
    return type != DType::Q2_K && type != DType::Q3_K && type != DType::Q6_K;
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

// What a group of quants adds to a product: `low` and `high` are the dot products of its halves
// with a group of activations, or `low` is that of the whole group where it has one scale.
template <DType type>
__device__ inline float scaled_dot(const float (&d)[2], const float (&m)[2], int low, int high,
                                   int s0, int s1) {
    float part = d[0] * float(low);
    if constexpr (has_one_scale(type)) {
        if constexpr (!has_signed_quants(type)) part = fmaf(m[0], float(s0 + s1), part);
    } else {
        part = fmaf(d[1], float(high), part);
        part = fmaf(m[0], float(s0), part);
        part = fmaf(m[1], float(s1), part);
    }
    return part;
}

// The order in which products are summed, in every kernel: groups of 32 quants or 8 floats that are
// 32 groups apart, one after the other; of the 32 sums four neighbours, in a tree; and these eight
// one after the other. A warp does it with a group a lane, a tile (tiles.cu) with five sums a
// value.
constexpr int kTogether = 4;
__device__ inline float lanes_sum(float value) {
    for (int apart = 1; apart < kTogether; apart *= 2) {
        value += __shfl_xor_sync(kAll, value, apart);
    }
    float sum = __shfl_sync(kAll, value, 0);
    for (int lane = kTogether; lane < kWarp; lane += kTogether) {
        sum += __shfl_sync(kAll, value, lane);
    }
    return sum;
}

// Of the product of a row with n rows of activations from `first` on, the part of a lane: sum[t],
// to be added by lanes_sum(). n is at most `most`.
template <DType type, int most>
__device__ inline void row_dot(const uint8_t* row, const DeviceInput& x, int first, int n, int lane,
                               float (&sum)[most]) {
    for (int t = 0; t < most; t++) sum[t] = 0;
    if constexpr (is_float_type(type)) {
        for (int i = lane; i < x.cols / 8; i += kWarp) {
            float w[8];
            load8<type>(row, i, w);
            for (int t = 0; t < most; t++) {
                if (most > 1 && t >= n) break;
                const float4* to =
                    reinterpret_cast<const float4*>(x.x + int64_t(first + t) * x.cols + 8 * i);
                const float4 a = to[0], b = to[1];
                float s = sum[t];
                s = fmaf(w[0], a.x, s);
                s = fmaf(w[1], a.y, s);
                s = fmaf(w[2], a.z, s);
                s = fmaf(w[3], a.w, s);
                s = fmaf(w[4], b.x, s);
                s = fmaf(w[5], b.y, s);
                s = fmaf(w[6], b.z, s);
                sum[t] = fmaf(w[7], b.w, s);
            }
        }
    } else {
        const PlaneOffsets at(plane_bytes(type), x.cols);
        const int groups = x.cols / kQ;
        for (int i = lane; i < groups; i += kWarp) {
            const Group g = load_group<type>(row, at, i);
            for (int t = 0; t < most; t++) {
                if (most > 1 && t >= n) break;
                // Not by load16: tests/gpu/sass.py takes what that loads for weights.
                const uint4* q =
                    reinterpret_cast<const uint4*>(x.q + int64_t(first + t) * x.cols + kQ * i);
                const uint4 a = q[0], b = q[1];
                const uint2 s =
                    *reinterpret_cast<const uint2*>(x.s + int64_t(first + t) * groups + i);
                int low = 0, high = 0;
                int& second = has_one_scale(type) ? low : high;
                low = __dp4a(int(g.words[0]), int(a.x), low);
                low = __dp4a(int(g.words[1]), int(a.y), low);
                low = __dp4a(int(g.words[2]), int(a.z), low);
                low = __dp4a(int(g.words[3]), int(a.w), low);
                second = __dp4a(int(g.words[4]), int(b.x), second);
                second = __dp4a(int(g.words[5]), int(b.y), second);
                second = __dp4a(int(g.words[6]), int(b.z), second);
                second = __dp4a(int(g.words[7]), int(b.w), second);
                const float part =
                    scaled_dot<type>(g.d, g.m, low, high, int16_t(s.y), int(s.y) >> 16);
                sum[t] = fmaf(math::bits_as<float>(s.x), part, sum[t]);
            }
        }
    }
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
