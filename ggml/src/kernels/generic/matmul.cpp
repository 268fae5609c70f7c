// Products with weights stored row by row, in plain C++: the specification of matmul__*.
#include "ggml/blocks.h"
#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

float to_float(float x) {
    return x;
}

struct F16 {
    f16_t bits;
};
struct BF16 {
    bf16_t bits;
};
float to_float(F16 x) {
    return f16_to_f32(x.bits);
}
float to_float(BF16 x) {
    return bf16_to_f32(x.bits);
}

// Value i of a row, as float.
template <typename W>
float value(const uint8_t* row, int64_t i) {
    return to_float(reinterpret_cast<const W*>(row)[i]);
}
template <>
float value<BlockQ8_0>(const uint8_t* row, int64_t i) {
    const BlockQ8_0& block = reinterpret_cast<const BlockQ8_0*>(row)[i / kQ];
    return f16_to_f32(block.d) * float(block.qs[i % kQ]);
}

template <typename W>
void matmul(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x,
            int64_t ldx, int64_t nt, float* y, int64_t ldy) {
    for (int64_t r = 0; r < n_rows; r++) {
        const uint8_t* row = w + r * row_bytes;
        for (int64_t t = 0; t < nt; t++) {
            float sum = 0;
            for (int64_t i = 0; i < k; i++) sum += value<W>(row, i) * x[t * ldx + i];
            y[t * ldy + r] = sum;
        }
    }
}

}  // namespace

#define MATMUL(name, type)                                                                    \
    void name(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x, \
              int64_t ldx, int64_t nt, float* y, int64_t ldy) {                               \
        matmul<type>(w, row_bytes, n_rows, k, x, ldx, nt, y, ldy);                            \
    }
MATMUL(matmul__f32_f32, float)
MATMUL(matmul__f16_f32, F16)
MATMUL(matmul__bf16_f32, BF16)
MATMUL(matmul__q8_0_f32, BlockQ8_0)

}  // namespace ggml::cpu::generic
