// Products with strips of eight interleaved rows, in plain C++: the specification of strip__*. For
// each block of 32 columns, an exact integer sum (including the scales of groups) is multiplied by
// both float scales and added to one float per row. Formats with mins add a second such sum.
#include "formats/parts.h"
#include "ggml/blocks.h"
#include "kernels/generic/block_product.h"
#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

template <typename Block, DType type>
void strips(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
            int64_t ldy) {
    constexpr int size = BlockTraits<Block>::size;
    const int64_t n_blocks = x.cols / size,
                  strip_bytes = kStrip * n_blocks * int64_t(sizeof(Block));
    for (int64_t row = 0; row < n * kStrip; row++) {
        const uint8_t* strip = w + row / kStrip * strip_bytes;
        for (int64_t t = 0; t < nt; t++) y[t * ldy + row] = 0;
        for (int64_t b = 0; b < n_blocks; b++) {
            Block block;
            Parts p;
            unpack_block(type, strip + b * kStrip * int64_t(sizeof(block)), row % kStrip,
                         reinterpret_cast<uint8_t*>(&block));
            take_apart(block, p);
            for (int64_t t = 0; t < nt; t++) {
                const int64_t x0 = ((t0 + t) * x.cols + b * size) / kQ;
                y[t * ldy + row] = add_block<Block>(y[t * ldy + row], p, x, x0);
            }
        }
    }
}

}  // namespace

#define STRIP(name, type) const strip_fn name = strips<Block##type, DType::type>;
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
