// The product of one block of weights with 8-bit activations. All quantised products of generic use
// it.
#pragma once

#include "formats/parts.h"
#include "ggml/blocks.h"
#include "kernels/kernels.h"

namespace ggml::cpu::generic {

inline int32_t dot16(const int8_t* w, const int8_t* x) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += w[i] * x[i];
    return sum;
}

// Adds the product of columns 32 i .. 32 i + 31 of a block with block b of the activations.
template <typename Block>
float add_group(float sum, const Parts& p, int i, const Q8Rows& x, int64_t b) {
    const int g = 2 * i;
    const int8_t* q = x.q + b * kQ;
    // Each product is exact in a float, and so is the sum, but of NVFP4.
    const float product = p.scale[g] * float(dot16(p.q + 16 * g, q)) +
                          p.scale[g + 1] * float(dot16(p.q + 16 * g + 16, q + 16));
    sum += p.d * x.d[b] * product;
    if (BlockTraits<Block>::has_min) {
        const int32_t offset = p.min[g] * x.s16[2 * b] + p.min[g + 1] * x.s16[2 * b + 1];
        sum += p.m * x.d[b] * float(offset);
    }
    return sum;
}

// Adds the product of one block with the activations from block x0 on.
template <typename Block>
float add_block(float sum, const Parts& p, const Q8Rows& x, int64_t x0) {
    for (int i = 0; i < BlockTraits<Block>::size / kQ; i++) {
        sum = add_group<Block>(sum, p, i, x, x0 + i);
    }
    return sum;
}

}  // namespace ggml::cpu::generic
