// Quantises activations to 8 bits, in plain C++: the specification of quantize__f32_q8.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

void quantize(const float* x, int64_t t0, int64_t nt, const Q8Rows& out) {
    const int64_t n_blocks = out.cols / kQ;
    for (int64_t b = t0 * n_blocks; b < (t0 + nt) * n_blocks; b++) {
        const float* block = x + b * kQ;
        float largest = 0;
        for (int i = 0; i < kQ; i++) largest = std::max(largest, std::fabs(block[i]));
        const float d = largest / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
        int32_t sum[2] = {};
        bool numbers = true;
        for (int i = 0; i < kQ; i++) {
            numbers = numbers && block[i] == block[i];
            const float q = std::nearbyintf(block[i] * inverse);
            // Only NaN, or a scale too small to invert, gives a value out of range. What does not
            // fit an int32 becomes -127, as in the conversion instruction of x86.
            const bool fits = std::fabs(q) < 2147483648.0f;
            out.q[b * kQ + i] = int8_t(fits ? std::clamp(q, -127.0f, 127.0f) : -127.0f);
            sum[i / 16] += out.q[b * kQ + i];
        }
        // A NaN input makes the scale NaN, because 8-bit codes cannot represent it.
        const float scale = numbers ? d : std::numeric_limits<float>::quiet_NaN();
        out.d[b] = scale;
        out.s8[b] = 8 * (sum[0] + sum[1]);
        out.ds[b] = scale * float(sum[0] + sum[1]);
        out.s16[2 * b] = int16_t(sum[0]);
        out.s16[2 * b + 1] = int16_t(sum[1]);
    }
}

}  // namespace

const quantize_fn quantize__f32_q8 = quantize;

}  // namespace ggml::cpu::generic
