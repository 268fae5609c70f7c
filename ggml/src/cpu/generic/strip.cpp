// Products with strips of eight interleaved rows, in plain C++: the specification of strip__*.
// Per block of 32 columns: an exact integer sum, times both scales, added to one float per row.
#include "cpu/kernels.h"
#include "ggml/blocks.h"

namespace ggml::cpu::generic {

namespace {

// Integer product of one block of row r with 32 activations.
int32_t dot(const StripQ8_0& w, int r, const int8_t* q, int32_t) {
    int32_t sum = 0;
    for (int i = 0; i < kQ; i++) sum += w.qs[(i / 4) * 32 + r * 4 + i % 4] * q[i];
    return sum;
}

int32_t dot(const StripQ4_0& w, int r, const int8_t* q, int32_t s8) {
    int32_t sum = 0;
    for (int i = 0; i < kQ / 2; i++) {
        const uint8_t byte = w.qs[(i / 4) * 32 + r * 4 + i % 4];
        sum += (byte & 15) * q[i] + (byte >> 4) * q[i + 16];
    }
    return sum - s8;  // the weights are q - 8
}

template <typename Strip>
void strip(const uint8_t* data, const Q8Rows& x, int64_t t0, int64_t nt, float* y, int64_t ldy) {
    const Strip* w = reinterpret_cast<const Strip*>(data);
    const int64_t n_blocks = x.cols / kQ;
    for (int64_t t = 0; t < nt; t++) {
        const int64_t row = t0 + t;
        for (int r = 0; r < kStrip; r++) {
            float sum = 0;
            for (int64_t b = 0; b < n_blocks; b++) {
                const int32_t product =
                    dot(w[b], r, x.q + row * x.cols + b * kQ, x.s8[row * n_blocks + b]);
                sum += f16_to_f32(w[b].d[r]) * x.d[row * n_blocks + b] * float(product);
            }
            y[t * ldy + r] = sum;
        }
    }
}

}  // namespace

void strip__q8_0_q8(const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y, int64_t ldy) {
    strip<StripQ8_0>(w, x, t0, nt, y, ldy);
}

void strip__q4_0_q8(const uint8_t* w, const Q8Rows& x, int64_t t0, int64_t nt, float* y, int64_t ldy) {
    strip<StripQ4_0>(w, x, t0, nt, y, ldy);
}

}  // namespace ggml::cpu::generic
