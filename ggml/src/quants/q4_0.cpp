// Q4_0: w = d * (q - 8). The weight with the largest magnitude, sign included, becomes q = 0
// exactly: d = -w / 8. Its opposite would be q = 16 and is cut to 15.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml/blocks.h"
#include "quants.h"

namespace ggml {

namespace {

// Product and sum are rounded each on its own, as the public quantiser does: an FMA would move
// values on the edge between two codes. Hence no contraction, which the build forbids everywhere.
// Not finite where x is not, or where d is so small that 1 / d overflows; d is 0 as a half then.
uint8_t nibble(float x, float inverse) {
    const float product = x * inverse;
    const float q = product + 8.5f;
    return std::isfinite(q) ? uint8_t(std::clamp(q, 0.f, 15.f)) : uint8_t(0);
}

}  // namespace

void encode_q4_0(const float* src, void* dst, int64_t n) {
    uint8_t* p = static_cast<uint8_t*>(dst);
    for (int64_t b = 0; b < n / kQ; b++) {
        const float* x = src + b * kQ;
        float extreme = 0;
        for (int i = 0; i < kQ; i++)
            if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
        const float d = extreme / -8, inverse = d != 0 ? 1 / d : 0;
        BlockQ4_0 block;
        block.d = f32_to_f16(d);
        for (int i = 0; i < kQ / 2; i++) {
            const int low = nibble(x[i], inverse), high = nibble(x[i + kQ / 2], inverse);
            block.qs[i] = uint8_t(low | high << 4);
        }
        std::memcpy(p + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

}  // namespace ggml
