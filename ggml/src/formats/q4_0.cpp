// Encoder of Q4_0: w = d * (q - 8). The weight w of the largest magnitude gets q = 0, with d = -w /
// 8. A weight of the same magnitude and the opposite sign would need q = 16 and is clipped to 15.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml/blocks.h"
#include "quants.h"
#include "search.h"

namespace ggml {

namespace {

// Product and sum are rounded separately, as in the public quantiser. An FMA would move values that
// are on the edge between two codes; the build forbids that contraction everywhere. q is not finite
// if x is not, or if d is so small that 1 / d overflows; then d is 0 as a half.
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

void weigh_q4_0(const float* src, const float* importance, void* dst, int64_t n) {
    uint8_t* p = static_cast<uint8_t*>(dst);
    for (int64_t b = 0; b < n / kQ; b++) {
        BlockQ4_0 block;
        int8_t q[kQ];
        block.d = search_codes(Uniform{8}, src + b * kQ, importance + b * kQ, 0.1f, q);
        for (int i = 0; i < kQ / 2; i++) {
            block.qs[i] = uint8_t((q[i] + 8) | (q[i + kQ / 2] + 8) << 4);
        }
        std::memcpy(p + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

}  // namespace ggml
