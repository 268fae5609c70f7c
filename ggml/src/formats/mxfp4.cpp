// Encoder of MXFP4, with the bits of the public quantiser: the largest weight gets the exponent of
// E2M1's largest values, each weight the nearest value, of equally near ones the first.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml/blocks.h"
#include "ggml/math.h"
#include "quants.h"

namespace ggml {

void encode_mxfp4(const float* src, void* dst, int64_t n) {
    uint8_t* p = static_cast<uint8_t*>(dst);
    for (int64_t b = 0; b < n / kQ; b++) {
        const float* x = src + b * kQ;
        float largest = 0;
        for (int i = 0; i < kQ; i++) largest = std::max(largest, std::fabs(x[i]));
        // The logarithm to base 2, rounded to a float as there: what is nearly a power of two
        // counts as one. Of magnitudes below those of exponent 0 the public quantiser makes large
        // numbers.
        const float power = float(log_f64(double(largest)) * 1.4426950408889634);
        BlockMXFP4 block{uint8_t(std::clamp(std::floor(power) + 125, 0.f, 254.f)), {}};
        const float d = power_of_two(block.e);
        for (int i = 0; i < kQ; i++) {
            int best = 0;
            float least = std::fabs(x[i]);
            for (int q = 1; q < 16; q++) {
                const float error = std::fabs(d * float(kE2M1[q] - 16) - x[i]);
                if (error < least) least = error, best = q;
            }
            block.qs[i % 16] = uint8_t(block.qs[i % 16] | best << i / 16 * 4);
        }
        std::memcpy(p + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

}  // namespace ggml
