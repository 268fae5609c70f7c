// What groups of 32 weights add to a product with 8-bit activations, with the bits of the CPU.
//
// The CPU has one float a product and adds its groups in ascending order (kernels/formats). The
// products of bytes of a group are an exact integer, whoever adds them in whatever order; only the
// additions to the float are a chain. So lanes make terms of groups, and a chain adds them:
//
//   scaled      sum += (d * x.d) * integer
//   halves      sum += x.d * (d * integer + other d * other integer), of 16 weights each; either
//               product is exact
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

#include <type_traits>

#include "cuda/ops/rows.h"

namespace ggml::GGML_GPU {

enum class Terms { scaled, halves, with_min, of_256, and_mins, and_min };
constexpr Terms terms_of(DType type) {
    switch (type) {
        case DType::NVFP4:
            return Terms::halves;
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
    return terms_of(type) > Terms::with_min;
}
constexpr int kPart = kQK / kQ;  // groups of a part
// Floats of a term, and beside it of the activations, which rows of weights share.
constexpr int term_floats(DType type) {
    return terms_of(type) == Terms::with_min ? 4 : terms_of(type) == Terms::of_256 ? 1 : 2;
}
constexpr int input_floats(DType type) {
    return !has_parts(type) ? 0 : terms_of(type) == Terms::and_mins ? 2 : 1;
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
            return {{float(low * s.scale[0]), s.m * float(s.min[0])}};
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
        if constexpr (terms == Terms::halves) {
            return {{x.d, fmaf(s.m, float(high), s.d * float(low))}};
        } else if constexpr (terms == Terms::and_min) {
            return {{sum, float(x.s0 * s.min[0] + x.s1 * s.min[1])}};
        } else {
            return {{sum}};
        }
    }
}

// To shared memory, where terms of a row stand side by side; and what they need of the activations.
template <DType type>
__device__ inline void store_term(float* to, const Term<type>& term) {
    if constexpr (term_floats(type) == 4) {
        *reinterpret_cast<float4*>(to) = {term.v[0], term.v[1], term.v[2], term.v[3]};
    } else if constexpr (term_floats(type) == 2) {
        *reinterpret_cast<float2*>(to) = {term.v[0], term.v[1]};
    } else {
        *to = term.v[0];
    }
}
template <DType type>
__device__ inline void store_input(float* to, const InputGroup& x) {
    if constexpr (input_floats(type) == 2) {
        *reinterpret_cast<float2*>(to) = {x.d, scaled_sum(x)};
    } else if constexpr (input_floats(type) == 1) {
        *to = x.d;
    }
}

// Eight groups' floats, n of each, with loads of 16 bytes.
template <int n>
struct Eight {
    float v[8 * n];
    __device__ explicit Eight(const float* from) {
        for (int i = 0; i < 8 * n; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(from + i);
            v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
        }
    }
};

// Eight terms that each add to the sum.
template <DType type>
class PlainLink {
 public:
    __device__ PlainLink(const float* terms, const float*, const float2*, int i)
        : terms_(terms + i * 8 * term_floats(type)) {}
    __device__ float add(float sum) const {
        for (int k = 0; k < 8 * term_floats(type); k += 2) {
            sum = fmaf(terms_.v[k], terms_.v[k + 1], sum);
        }
        return sum;
    }

 private:
    Eight<term_floats(type)> terms_;
};

// A part, whose own sum does not wait for that of the row.
template <DType type>
class PartLink {
    static constexpr Terms kTerms = terms_of(type);
    static constexpr int kTerm = term_floats(type), kInput = input_floats(type);

 public:
    __device__ PartLink(const float* terms, const float* inputs, const float2* units, int i)
        : terms_(terms + i * 8 * kTerm), inputs_(inputs + i * 8 * kInput), unit_(units[i]) {
        for (int k = 0; k < 8; k++) {
            const float d = inputs_.v[k * kInput];
            part_ = fmaf(d, terms_.v[k * kTerm], part_);
            if constexpr (kTerms == Terms::and_min) {
                part_min_ = fmaf(d, terms_.v[k * kTerm + 1], part_min_);
            }
        }
    }
    __device__ float add(float sum) const {
        sum = fmaf(unit_.x, part_, sum);
        if constexpr (kTerms == Terms::and_min) sum = fmaf(-unit_.y, part_min_, sum);
        if constexpr (kTerms == Terms::and_mins) {
            for (int k = 0; k < 16; k += 2) sum = fmaf(-terms_.v[k + 1], inputs_.v[k + 1], sum);
        }
        return sum;
    }

 private:
    Eight<kTerm> terms_;
    Eight<kInput> inputs_;
    float2 unit_;
    float part_ = 0, part_min_ = 0;
};

// The chain of a row: `groups` terms, what they need of the activations, and of each part d and m.
template <DType type>
__device__ inline float add_terms(float sum, const float* terms, const float* inputs,
                                  const float2* units, int groups) {
    using Link = std::conditional_t<has_parts(type), PartLink<type>, PlainLink<type>>;
    const int links = groups / 8;
    if (links > 0) {
        Link link(terms, inputs, units, 0);
        GGML_UNROLL_TWO
        for (int i = 1; i < links; i++) {
            // Loaded ahead of the additions, which wait for each other.
            const Link next(terms, inputs, units, i);
            sum = link.add(sum);
            link = next;
        }
        sum = link.add(sum);
    }
    if constexpr (!has_parts(type)) {
        for (int i = 8 * links; i < groups; i++) {
            for (int k = 0; k < term_floats(type); k += 2) {
                const float* t = terms + i * term_floats(type) + k;
                sum = fmaf(t[0], t[1], sum);
            }
        }
    }
    return sum;
}

}  // namespace ggml::GGML_GPU
