// Products with strips of eight interleaved rows, in plain C++: the specification of strip__*. For
// each block of 32 columns, an exact integer sum (including the scales of groups) is multiplied by
// both float scales and added to one float per row. Formats with mins add a second such sum.
#include "formats/parts.h"
#include "ggml/blocks.h"
#include "kernels/generic/block_product.h"
#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

template <typename Block>
void one_strip(DType type, const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
               int64_t ldy) {
    constexpr int size = BlockTraits<Block>::size;
    for (int r = 0; r < kStrip; r++) {
        for (int64_t t = 0; t < nt; t++) y[t * ldy + r] = 0;
        for (int64_t b = 0; b < x.cols / size; b++) {
            Block block;
            Parts p;
            unpack_block(type, w + b * kStrip * int64_t(sizeof(block)), r,
                         reinterpret_cast<uint8_t*>(&block));
            take_apart(block, p);
            for (int64_t t = 0; t < nt; t++) {
                const int64_t x0 = ((t0 + t) * x.cols + b * size) / kQ;
                y[t * ldy + r] = add_block<Block>(y[t * ldy + r], p, x, x0);
            }
        }
    }
}

}  // namespace

#define STRIP(name, type)                                                                     \
    void name(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y, \
              int64_t ldy) {                                                                  \
        for (int64_t i = 0; i < n; i++, w += kStrip * info(DType::type).size(x.cols)) {       \
            one_strip<Block##type>(DType::type, w, x, t0, nt, y + i * kStrip, ldy);           \
        }                                                                                     \
    }
STRIP(strip__q8_0_q8, Q8_0)
STRIP(strip__q4_0_q8, Q4_0)
STRIP(strip__q4_1_q8, Q4_1)
STRIP(strip__q5_0_q8, Q5_0)
STRIP(strip__q5_1_q8, Q5_1)
STRIP(strip__q2_k_q8, Q2_K)
STRIP(strip__q3_k_q8, Q3_K)
STRIP(strip__q4_k_q8, Q4_K)
STRIP(strip__q5_k_q8, Q5_K)
STRIP(strip__q6_k_q8, Q6_K)
STRIP(strip__iq4_nl_q8, IQ4_NL)
STRIP(strip__iq4_xs_q8, IQ4_XS)

}  // namespace ggml::cpu::generic
