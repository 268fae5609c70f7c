// Scores from signs. Inputs are converted to bit planes once. Then each row of signs is read once
// for all inputs.
#include "ggml/sketch.h"

#include <algorithm>
#include <cmath>

#include "formats/sketch_levels.h"
#include "kernels/kernels.h"

namespace ggml {

namespace {

using cpu::plane_bytes;

constexpr int64_t kTile = 64;  // rows that stay in a core's cache for all inputs

double magnitude(const float* x, int64_t n) {
    double sums[kSketchSums] = {};
    for (int64_t begin = 0; begin < n; begin += kSketchSums) {
        const int64_t end = std::min<int64_t>(n - begin, kSketchSums);
        for (int64_t k = 0; k < end; k++) sums[k] += std::fabs(x[begin + k]);
    }
    for (int half = kSketchSums / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; k++) sums[k] += sums[k + half];
    }
    return sums[0];
}

// Splits one input of n values into its planes.
void split(const float* x, int64_t n, float* unit, int32_t* total, uint8_t* planes) {
    const int64_t plane = plane_bytes(n / 8);
    *unit = sketch_unit(magnitude(x, n), n);
    *total = 0;
    std::fill_n(planes, 4 * plane, uint8_t(0));
    const float inverse = sketch_inverse(*unit);
    for (int64_t i = 0; i < n; i++) {
        const int bits = sketch_bits(x[i], inverse);
        *total += bits >> 1;
        for (int p = 0; p < 4; p++) {
            planes[p * plane + i / 8] |= uint8_t((bits >> p & 1) << i % 8);
        }
    }
}

}  // namespace

SketchScratch::SketchScratch(Carver& carver, int64_t max_rows, int64_t cols) {
    carver.take(planes_, {max_rows, 4, plane_bytes(cols / 8)});
    carver.take(unit_, {max_rows});
    carver.take(total_, {max_rows});
}

void sketch_scores(Context& context, const Sketch& w, const float* x, int64_t rows,
                   SketchScratch& s, float* score) {
    const int64_t bytes = w.cols / 8, planes = 4 * plane_bytes(bytes);
    OpTimer timer(context.profile, "sketch");
    timer.read(uint64_t(w.rows * bytes));
    context.threads.run(rows, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            split(x + t * w.cols, w.cols, s.unit_ + t, s.total_ + t, s.planes_ + t * planes);
        }
    });
    context.threads.run(w.rows, kTile, [&](int64_t begin, int64_t end, int) {
        int32_t differing[kTile];
        const auto count = context.kernels.sketch[int(DType::I8)];
        for (int64_t t = 0; t < rows; t++) {
            count(w.signs + begin * bytes, end - begin, bytes, s.planes_ + t * planes, differing);
            float* to = score + t * w.rows;
            for (int64_t n = begin; n < end; n++) {
                to[n] = s.unit_[t] * float(s.total_[t] - 2 * differing[n - begin]);
                if (w.offset) to[n] += w.offset[n];
            }
        }
    });
}

}  // namespace ggml
