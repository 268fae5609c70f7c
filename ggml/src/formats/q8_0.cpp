// Encoder of Q8_0: w = d * q with d = max|w| / 127 and q in -127..127, rounded half away from zero.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml/blocks.h"
#include "quants.h"

namespace ggml {

void encode_q8_0(const float* src, void* dst, int64_t n) {
    uint8_t* p = static_cast<uint8_t*>(dst);
    for (int64_t b = 0; b < n / kQ; b++) {
        const float* x = src + b * kQ;
        float largest = 0;
        for (int i = 0; i < kQ; i++) largest = std::max(largest, std::fabs(x[i]));
        const float d = largest / 127, inverse = d != 0 ? 1 / d : 0;
        BlockQ8_0 block;
        block.d = f32_to_f16(d);
        for (int i = 0; i < kQ; i++) {
            const float q = std::round(x[i] * inverse);
            // q is not finite if x is not, or if d is so small that 1 / d overflows; then d is 0 as
            // a half.
            block.qs[i] = std::isfinite(q) ? int8_t(std::clamp(q, -127.f, 127.f)) : int8_t(0);
        }
        std::memcpy(p + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

}  // namespace ggml
