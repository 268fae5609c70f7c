// Weighted sums of rows in plain C++: the specification of accumulate__*.
#include <algorithm>

#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

// Decodes a block of columns at a time with the reference codec of the format.
template <DType type>
void accumulate(const uint8_t* w, const uint8_t*, int64_t row_bytes, int64_t n_rows, int64_t cols,
                const float* a, int64_t lda, int64_t nt, float* y, int64_t ldy) {
    const DTypeInfo& format = info(type);
    float values[kQK];
    const int64_t step = std::max<int64_t>(kQ, format.block);
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t c = 0; c < cols; c += step) {
            const int64_t n = std::min(step, cols - c);
            format.decode(w + r * row_bytes + format.size(c), values, n);
            for (int64_t t = 0; t < nt; t++) {
                for (int64_t i = 0; i < n; i++) y[t * ldy + c + i] += a[t * lda + r] * values[i];
            }
        }
    }
}

}  // namespace

const accumulate_fn accumulate__f32_f32 = accumulate<DType::F32>;
const accumulate_fn accumulate__f16_f32 = accumulate<DType::F16>;
const accumulate_fn accumulate__bf16_f32 = accumulate<DType::BF16>;

}  // namespace ggml::cpu::generic
