// Activations to 8 bits, by the kernels that make them: the same bits as quantize__f32_q8 of the
// CPU.
#pragma once

#include "cuda/launch.h"

namespace ggml::GGML_GPU {

// Value i of x, the lane's of a warp that holds a group of 32: stores its 8-bit form and, once a
// group, scale and sums.
__device__ inline void quantise_group(const DeviceInput& x, int64_t i, float value) {
    // NaN is left out of the scale, and is what the scale becomes.
    const float largest = warp_max(value == value ? fabsf(value) : 0.0f);
    const bool numbers = !__any_sync(kAll, value != value);
    const float d = largest / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
    const float rounded = rintf(value * inverse);
    // What is not a number, or too large since the scale was too small to invert, becomes -127 as
    // on the CPU.
    const bool fits = fabsf(rounded) < 2147483648.0f;
    const float clamped = rounded < -127.0f ? -127.0f : rounded > 127.0f ? 127.0f : rounded;
    const int q = fits ? int(clamped) : -127;
    x.q[i] = int8_t(q);
    int sum = q;
    for (int apart = 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(kAll, sum, apart);
    const int other = __shfl_xor_sync(kAll, sum, 16);
    if (i % kQ == 0) {
        x.s[i / kQ] = {numbers ? d : nanf(""), int16_t(sum), int16_t(other)};
    }
}

}  // namespace ggml::GGML_GPU
