// Rows of floats, and of Q8_0, as the kernels of eight lanes read them.
#pragma once

#include "ggml/blocks.h"
#include "kernels/simd.h"

namespace ggml::cpu::GGML_ISA {

// Eight values of a row from column i on, or one value. For Q8_0 the eight must lie in one block.
struct F32 {
    static constexpr int size = 4;  // bytes of a value
    static f32x8 load8(const uint8_t* row, int64_t i) { return load_f32(row + 4 * i); }
    static float load1(const uint8_t* row, int64_t i) {
        return reinterpret_cast<const float*>(row)[i];
    }
};

struct F16 {
    static constexpr int size = 2;  // bytes of a value
    static f32x8 load8(const uint8_t* row, int64_t i) { return load_f16(row + 2 * i); }
    static float load1(const uint8_t* row, int64_t i) {
        return f16_value(reinterpret_cast<const f16_t*>(row)[i]);
    }
};

struct BF16 {
    static constexpr int size = 2;  // bytes of a value
    static f32x8 load8(const uint8_t* row, int64_t i) { return load_bf16(row + 2 * i); }
    static float load1(const uint8_t* row, int64_t i) {
        return bf16_to_f32(reinterpret_cast<const bf16_t*>(row)[i]);
    }
};

struct Q8_0 {
    static constexpr int size = 1;  // approximately: without the scales

    static f32x8 load8(const uint8_t* row, int64_t i) {
        const BlockQ8_0& block = reinterpret_cast<const BlockQ8_0*>(row)[i / kQ];
        return mul(splat(f16_value(block.d)), load_i8(block.qs + i % kQ));
    }
    static float load1(const uint8_t* row, int64_t i) {
        const BlockQ8_0& block = reinterpret_cast<const BlockQ8_0*>(row)[i / kQ];
        return f16_value(block.d) * float(block.qs[i % kQ]);
    }
};

}  // namespace ggml::cpu::GGML_ISA
