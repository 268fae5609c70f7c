// The product of one block of weights with 8-bit activations: what every quantised product is made
// of.
#pragma once

#include "cpu/kernels.h"
#include "ggml/blocks.h"
#include "quants/parts.h"

namespace ggml::cpu::generic {

inline int32_t dot16(const int8_t* w, const int8_t* x) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += w[i] * x[i];
    return sum;
}

// Adds the product of one block with the activations from block x0 (of 32) on.
template <typename Block>
float add_block(float sum, const Parts& p, const Q8Rows& x, int64_t x0) {
    using Traits = BlockTraits<Block>;
    for (int g = 0; g < Traits::size / 16; g += 2) {
        const int64_t b = x0 + g / 2;
        const int8_t* q = x.q + b * kQ;
        const int32_t product =
            p.scale[g] * dot16(p.q + 16 * g, q) + p.scale[g + 1] * dot16(p.q + 16 * g + 16, q + 16);
        sum += p.d * x.d[b] * float(product);
        if (Traits::has_min) {
            const int32_t offset = p.min[g] * x.s16[2 * b] + p.min[g + 1] * x.s16[2 * b + 1];
            sum += p.m * x.d[b] * float(offset);
        }
    }
    return sum;
}

}  // namespace ggml::cpu::generic
