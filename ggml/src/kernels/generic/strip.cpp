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

#define STRIP(type, suffix, ...) \
    const strip_fn strip__##suffix##_q8 = strips<Block##type, DType::type>;
GGML_BLOCK_FORMATS(STRIP)

}  // namespace ggml::cpu::generic
