// Weighted sums of F32, F16 and BF16 rows.
#include "kernels/lanes/accumulate.h"

#include "kernels/lanes/values.h"

namespace ggml::cpu::GGML_ISA {

namespace {

template <typename W>
struct Values {
    static void load32(const uint8_t* row, int64_t c, f32x8 (&out)[4]) {
        for (int i = 0; i < 4; i++) out[i] = W::load8(row, c + 8 * i);
    }
};

template <typename W>
void accumulate(const uint8_t* w, const uint8_t* next, int64_t row_bytes, int64_t n_rows,
                int64_t cols, const float* a, int64_t lda, int64_t nt, float* y, int64_t ldy) {
    int64_t c = accumulate_32<Values<W>>(w, next, row_bytes, n_rows, cols, a, lda, nt, y, ldy);
    for (; c < cols; c++) {
        for (int64_t t = 0; t < nt; t++) {
            float sum = y[t * ldy + c];
            for (int64_t r = 0; r < n_rows; r++) {
                sum = add_product(sum, a[t * lda + r], W::load1(w + r * row_bytes, c));
            }
            y[t * ldy + c] = sum;
        }
    }
}

}  // namespace

const accumulate_fn accumulate__f32_f32 = accumulate<F32>;
const accumulate_fn accumulate__f16_f32 = accumulate<F16>;
const accumulate_fn accumulate__bf16_f32 = accumulate<BF16>;

}  // namespace ggml::cpu::GGML_ISA
