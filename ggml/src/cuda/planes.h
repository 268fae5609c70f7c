// Quantised rows as GPUs read them: the parts of a row's blocks side by side, in planes.
//
// A block of a file is 18, 34 or 210 bytes: lanes that read one each neither load 16 bytes at a
// time nor share cache lines well. So a row becomes four planes, each beginning at a multiple of 16
// bytes:
//
//   low    the lower bits of the quants, per group of 32 weights: 8, 16 or 32 bytes (2, 4, 8 bits).
//          4 bits: byte i holds weight i in its low and weight i + 16 in its high nibble; 2 bits:
//          bits 2 s of byte i hold weight 8 s + i
//   high   what is above them: 4 bytes (bit i is of weight i) or 8 (2 bits, as in low), or none
//   scale  what scales a group: one or two halves d, m; or one or two bytes, per 16 or 32 weights
//          (of MXFP4 the exponent, of NVFP4 an E4M3)
//   super  halves d, or d and dmin, per 256 weights
//
// and w[i] = d * q[i] + m with d and m from scale and super (rows.h). A row of floats stays as it
// is. Rows of Q3_K, Q4_K, Q5_K and IQ4_XS grow by 1.5 to 3.6%, since their scales are widened to
// bytes.
#pragma once

#include <cstdint>

#include "ggml/dtype.h"
#include "ggml/math.h"

namespace ggml {

// Bytes of each plane: per 32 weights, and of `super` per 256.
struct PlaneBytes {
    int low, high, scale, super;
};
constexpr PlaneBytes plane_bytes(DType type) {
    switch (type) {
        case DType::Q4_0:
        case DType::IQ4_NL:
            return {16, 0, 2, 0};
        case DType::MXFP4:
            return {16, 0, 1, 0};
        case DType::NVFP4:
            return {16, 0, 2, 0};
        case DType::Q4_1:
            return {16, 0, 4, 0};
        case DType::Q5_0:
            return {16, 4, 2, 0};
        case DType::Q5_1:
            return {16, 4, 4, 0};
        case DType::Q8_0:
            return {32, 0, 2, 0};
        case DType::Q2_K:
            return {8, 0, 2, 4};
        case DType::Q3_K:
            return {8, 4, 2, 2};
        case DType::Q4_K:
            return {16, 0, 2, 4};
        case DType::Q5_K:
            return {16, 4, 2, 4};
        case DType::Q6_K:
            return {16, 8, 2, 2};
        case DType::IQ4_XS:
            return {16, 0, 1, 2};
        default:
            return {0, 0, 0, 0};
    }
}

// Where the planes of a row of `cols` weights begin, and its size.
struct PlaneOffsets {
    int64_t high, scale, super, end;

    GGML_BOTH static constexpr int64_t padded(int64_t bytes) { return (bytes + 15) / 16 * 16; }
    GGML_BOTH constexpr PlaneOffsets(PlaneBytes b, int64_t cols)
        : high(padded(cols / 32 * b.low)),
          scale(high + padded(cols / 32 * b.high)),
          super(scale + padded(cols / 32 * b.scale)),
          end(super + padded(cols / 256 * b.super)) {}
};

}  // namespace ggml
