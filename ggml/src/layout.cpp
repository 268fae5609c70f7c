// Strips of eight interleaved rows: packing, and taking one row out again.
#include <cstring>

#include "ggml/tensor.h"

namespace ggml {

namespace {

// Both strip forms interleave groups of four bytes: group v of row r comes to 32 v + 4 r.
template <typename Strip, typename Block>
void pack(const uint8_t* rows, int64_t n, int64_t cols, uint8_t* strip) {
    const int64_t n_blocks = cols / kQ;
    Strip* out = reinterpret_cast<Strip*>(strip);
    std::memset(strip, 0, n_blocks * sizeof(Strip));
    for (int64_t b = 0; b < n_blocks; b++) {
        for (int64_t r = 0; r < n; r++) {
            const Block& block = reinterpret_cast<const Block*>(rows)[r * n_blocks + b];
            out[b].d[r] = block.d;
            for (size_t v = 0; v < sizeof(block.qs) / 4; v++) {
                std::memcpy(out[b].qs + 32 * v + 4 * r, block.qs + 4 * v, 4);
            }
        }
    }
}

template <typename Strip, typename Block>
void decode(const Matrix& w, int64_t row, float* out) {
    const DTypeInfo& format = info(w.type);
    const Strip* strip = reinterpret_cast<const Strip*>(w.data + row / kStrip * kStrip * w.row_bytes());
    const int64_t r = row % kStrip;
    for (int64_t b = 0; b < w.cols / kQ; b++) {
        Block block;
        block.d = strip[b].d[r];
        for (size_t v = 0; v < sizeof(block.qs) / 4; v++) {
            std::memcpy(block.qs + 4 * v, strip[b].qs + 32 * v + 4 * r, 4);
        }
        format.decode(&block, out + b * kQ, kQ);
    }
}

}  // namespace

bool has_strips(DType type) { return type == DType::Q8_0 || type == DType::Q4_0; }

void pack_strip(DType type, const uint8_t* rows, int64_t n, int64_t cols, uint8_t* strip) {
    if (type == DType::Q8_0) {
        pack<StripQ8_0, BlockQ8_0>(rows, n, cols, strip);
    } else {
        pack<StripQ4_0, BlockQ4_0>(rows, n, cols, strip);
    }
}

void decode_row(const Matrix& w, int64_t row, float* out) {
    if (w.layout == Layout::rows) {
        info(w.type).decode(w.data + row * w.row_bytes(), out, w.cols);
    } else if (w.type == DType::Q8_0) {
        decode<StripQ8_0, BlockQ8_0>(w, row, out);
    } else {
        decode<StripQ4_0, BlockQ4_0>(w, row, out);
    }
}

}  // namespace ggml
