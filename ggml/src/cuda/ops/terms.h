// What groups of 32 weights add to a product with 8-bit activations, with the bits of the CPU.
//
// The CPU has one float a product and adds its groups in ascending order (kernels/formats). The
// products of bytes of a group are an exact integer, whoever adds them in whatever order; only the
// additions to the float are a chain. So lanes make terms of groups, and a chain adds them:
//
//   scaled      sum += (d * x.d) * integer
//   with_min    the same, then sum += m * (x.d * sum of x)
//   of_256      part of 256 columns, from 0: part += x.d * integer, which has the scales of groups;
//               then sum += d * part
//   and_mins    the same, then eight times sum -= (m * min) * (x.d * sum of x)
//   and_min     the same with a second part: part_min += x.d * integer of the mins; then
//               sum += d * part, sum -= m * part_min
//
// Each "+=" rounds once: every instruction set that a CPU beside a GPU has fuses multiply and add
// (all but avx and generic, whose bits differ).
#pragma once

#include "cuda/ops/rows.h"

namespace ggml::GGML_GPU {

enum class Terms { scaled, with_min, of_256, and_mins, and_min };
constexpr Terms terms_of(DType type) {
    switch (type) {
        case DType::Q4_1:
        case DType::Q5_1:
            return Terms::with_min;
        case DType::Q3_K:
        case DType::Q6_K:
            return Terms::of_256;
        case DType::Q4_K:
        case DType::Q5_K:
            return Terms::and_mins;
        case DType::Q2_K:
            return Terms::and_min;
        default:
            return Terms::scaled;
    }
}
constexpr bool has_parts(DType type) {
    return terms_of(type) != Terms::scaled && terms_of(type) != Terms::with_min;
}
constexpr int kPart = kQK / kQ;  // groups of a part
// Floats of a term.
constexpr int term_floats(DType type) {
    return terms_of(type) == Terms::scaled || terms_of(type) == Terms::of_256 ? 2 : 4;
}

// A group of activations.
struct InputGroup {
    unsigned words[8];
    float d;
    int s0, s1;
};
__device__ inline InputGroup load_input(const DeviceInput& x, int64_t row, int i) {
    // Not by load16: tests/gpu/sass.py takes what that loads for weights.
    const uint4* q = reinterpret_cast<const uint4*>(x.q + row * x.cols + kQ * i);
    const uint4 a = q[0], b = q[1];
    const uint2 s = *reinterpret_cast<const uint2*>(x.s + row * (x.cols / kQ) + i);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
            math::bits_as<float>(s.x),
            int16_t(s.y),
            int(s.y) >> 16};
}
__device__ inline float scaled_sum(const InputGroup& x) {
    return x.d * float(x.s0 + x.s1);
}

template <DType type>
struct Term {
    float v[term_floats(type)];
};

template <DType type>
__device__ inline Term<type> term_of(const unsigned (&w)[8], const GroupScales& s,
                                     const InputGroup& x) {
    constexpr Terms terms = terms_of(type);
    constexpr int bias = quant_bias(type);
    int low = 0, high = 0;
    for (int k = 0; k < 4; k++) low = __dp4a(int(w[k]), int(x.words[k]), low);
    if constexpr (has_one_scale(type)) {
        for (int k = 4; k < 8; k++) low = __dp4a(int(w[k]), int(x.words[k]), low);
        if constexpr (bias != 0) low -= bias * (x.s0 + x.s1);
        if constexpr (terms == Terms::and_mins) {
            return {{float(low * s.scale[0]), x.d, s.m * float(s.min[0]), scaled_sum(x)}};
        } else {
            // Of IQ4_XS the product with the integer scale is exact.
            const float d = plane_bytes(type).super ? s.d * float(s.scale[0]) : s.d;
            if constexpr (terms == Terms::with_min) {
                return {{d * x.d, float(low), s.m, scaled_sum(x)}};
            } else {
                return {{d * x.d, float(low)}};
            }
        }
    } else {
        for (int k = 4; k < 8; k++) high = __dp4a(int(w[k]), int(x.words[k]), high);
        if constexpr (bias != 0) low -= bias * x.s0, high -= bias * x.s1;
        const auto sum = float(low * s.scale[0] + high * s.scale[1]);
        if constexpr (terms == Terms::and_min) {
            return {{sum, x.d, float(x.s0 * s.min[0] + x.s1 * s.min[1]), 0}};
        } else {
            return {{sum, x.d}};
        }
    }
}

// Where a term stands in shared memory: two of them in 16 bytes, or one.
template <DType type>
__device__ inline void store_term(float* to, const Term<type>& term) {
    if constexpr (term_floats(type) == 4) {
        *reinterpret_cast<float4*>(to) = {term.v[0], term.v[1], term.v[2], term.v[3]};
    } else {
        *reinterpret_cast<float2*>(to) = {term.v[0], term.v[1]};
    }
}

// Eight terms, with loads of 16 bytes.
template <DType type>
struct EightTerms {
    float4 v[term_floats(type) * 2];
    __device__ explicit EightTerms(const float* from) {
        for (int i = 0; i < term_floats(type) * 2; i++) {
            v[i] = reinterpret_cast<const float4*>(from)[i];
        }
    }
};

// The chain of a row: `groups` terms from `terms` on, and of each part d and m.
template <DType type>
__device__ inline float add_terms(float sum, const float* terms, const float2* units, int groups) {
    constexpr Terms kind = terms_of(type);
    constexpr int floats = term_floats(type), eight = 8 * floats;
    if constexpr (!has_parts(type)) {
        const int whole = groups / 8;
        if (whole > 0) {
            EightTerms<type> next(terms);
            for (int i = 0; i < whole; i++) {
                const EightTerms<type> now = next;
                // Ahead of the additions, which wait for each other. The last one once more.
                next = EightTerms<type>(terms + (i + 1 < whole ? i + 1 : i) * eight);
                for (int k = 0; k < 2 * floats; k++) {
                    sum = fmaf(now.v[k].x, now.v[k].y, sum);
                    sum = fmaf(now.v[k].z, now.v[k].w, sum);
                }
            }
        }
        for (int i = 8 * whole; i < groups; i++) {
            for (int k = 0; k < floats; k += 2) {
                const float2 t = reinterpret_cast<const float2*>(terms + i * floats)[k / 2];
                sum = fmaf(t.x, t.y, sum);
            }
        }
    } else {
        struct Part {
            EightTerms<type> terms;
            float sum = 0, sum_min = 0;
            __device__ explicit Part(const float* from) : terms(from) {
                for (const float4& t : terms.v) {
                    sum = fmaf(t.y, t.x, sum);
                    if constexpr (kind == Terms::of_256) sum = fmaf(t.w, t.z, sum);
                    if constexpr (kind == Terms::and_min) sum_min = fmaf(t.y, t.z, sum_min);
                }
            }
        };
        const int parts = groups / kPart;
        Part next(terms);
        for (int i = 0; i < parts; i++) {
            const Part now = next;
            next = Part(terms + (i + 1 < parts ? i + 1 : i) * eight);
            const float2 unit = units[i];
            sum = fmaf(unit.x, now.sum, sum);
            if constexpr (kind == Terms::and_min) sum = fmaf(-unit.y, now.sum_min, sum);
            if constexpr (kind == Terms::and_mins) {
                for (const float4& t : now.terms.v) sum = fmaf(-t.z, t.w, sum);
            }
        }
    }
    return sum;
}

}  // namespace ggml::GGML_GPU
