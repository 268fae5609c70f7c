// Products with weights stored row by row, in plain C++: the specification of matmul__*.
#include <algorithm>

#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

// Decodes a block of columns at a time with the reference codec of the format.
template <DType type>
void matmul(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k, const float* x,
            int64_t ldx, int64_t nt, float* y, int64_t ldy) {
    const DTypeInfo& format = info(type);
    float values[kQ];
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t t = 0; t < nt; t++) y[t * ldy + r] = 0;
        for (int64_t c = 0; c < k; c += kQ) {
            const int64_t n = std::min<int64_t>(kQ, k - c);
            format.decode(w + r * row_bytes + format.size(c), values, n);
            for (int64_t t = 0; t < nt; t++) {
                for (int64_t i = 0; i < n; i++) y[t * ldy + r] += values[i] * x[t * ldx + c + i];
            }
        }
    }
}

}  // namespace

const matmul_fn matmul__f32_f32 = matmul<DType::F32>;
const matmul_fn matmul__f16_f32 = matmul<DType::F16>;
const matmul_fn matmul__bf16_f32 = matmul<DType::BF16>;
const matmul_fn matmul__q8_0_f32 = matmul<DType::Q8_0>;

}  // namespace ggml::cpu::generic
