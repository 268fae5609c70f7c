// Scores from signs. Inputs are converted to bit planes once. Then each row of signs is read once
// for all inputs.
#include "ggml/sketch.h"

#include <algorithm>
#include <cmath>

#include "cpu/kernels.h"

namespace ggml {

namespace {

using cpu::plane_bytes;

// The unit of levels, relative to the mean magnitude. The largest level, 7, is 3.15 times the mean;
// larger values are clipped to it. Values from 0.3 to 0.5 hardly differ in quality.
constexpr double kUnit = 0.45;
constexpr int kTop = 7;

constexpr int64_t kTile = 64;  // rows that stay in a core's cache for all inputs

// Splits one input of n values into its planes.
void split(const float* x, int64_t n, float* unit, int32_t* total, uint8_t* planes) {
    const int64_t plane = plane_bytes(n / 8);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += std::fabs(x[i]);
    *unit = float(kUnit * sum / double(n));
    *total = 0;
    std::fill_n(planes, 4 * plane, uint8_t(0));
    const float inverse = *unit > 0 ? 1 / *unit : 0.0f;
    for (int64_t i = 0; i < n; i++) {
        const float size = std::fabs(x[i]) * inverse + 0.5f;
        const int level = size < kTop ? int(size) : kTop;  // kTop for NaN, too
        *total += level;
        const int bits = std::signbit(x[i]) | level << 1;
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
