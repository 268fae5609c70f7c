// Weighted sums of values in blocks, in plain C++: the specification of weigh__*.
#include <cmath>

#include "ggml/blocks.h"
#include "kernels/kernels.h"
#include "kernels/value_blocks.h"

namespace ggml::cpu::generic {

namespace {

void weigh(const uint8_t* run, const uint8_t*, int64_t head_dim, int64_t from, int64_t to,
           const float* a, int64_t lda, int64_t nt, float* y, int64_t ldy) {
    for (int64_t t = 0; t < nt; t++, a += lda, y += ldy) {
        float most = 0;
        for (int64_t p = from; p < to; p++) most = a[p] > most ? a[p] : most;
        for (int64_t b = 0; most > 0 && b < head_dim / kQ; b++) {
            const auto* codes = reinterpret_cast<const int8_t*>(run + codes_at(b));
            const auto* scales = reinterpret_cast<const f16_t*>(run + scales_at(head_dim, b));
            float largest = 0;
            bool numbers = true;
            for (int64_t p = from; p < to; p++) {
                const float d = f16_to_f32(scales[p]);
                numbers = numbers && std::isfinite(d);
                largest = d > largest ? d : largest;
            }
            if (numbers && largest == 0) continue;
            int32_t sum[kQ] = {};
            for (int64_t p = from; numbers && p < to; p++) {
                const float weight = (a[p] > 0 ? a[p] : 0) * (1 / most);
                const float scaled = weight * (f16_to_f32(scales[p]) * (kMostWeight / largest));
                const auto factor = int32_t(std::nearbyintf(scaled));
                for (int64_t c = 0; c < kQ; c++) {
                    sum[c] += factor * codes[p / 4 * 4 * kQ + 4 * c + p % 4];
                }
            }
            const float unit = numbers ? most * largest * (1 / kMostWeight) : NAN;
            for (int64_t c = 0; c < kQ; c++) y[b * kQ + c] += unit * float(sum[c]);
        }
    }
}

}  // namespace

const weigh_fn weigh__q8_0 = weigh;

}  // namespace ggml::cpu::generic
