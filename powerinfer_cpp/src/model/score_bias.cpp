#include <algorithm>
#include <cstdlib>

#include "ggml/math.h"
#include "model/model.h"

namespace powerinfer {

namespace {

// From this distance on all are in the last bucket of their side.
constexpr double kFarthest = 128;

// The bucket of a position d steps behind a row, as T5 and MPNet divide them: half of those of a
// side have one distance each, the others grow with its logarithm.
int64_t bucket(int64_t d, int64_t n_buckets) {
    const int64_t half = n_buckets / 2, exact = half / 2, distance = std::abs(d);
    const int64_t side = d > 0 ? half : 0;
    if (distance < exact) return side + distance;
    // In floats, as it was in training: at exact powers the rounding decides.
    const float turns = float(ggml::log_f64(double(distance) / double(exact))) /
                        float(ggml::log_f64(kFarthest / double(exact))) * float(half - exact);
    return side + std::min(exact + int64_t(turns), half - 1);
}

}  // namespace

void ScoreBias::slope(int64_t n_head) {
    const double ln2 = 0.693147180559945309;
    int64_t whole = 1;
    while (2 * whole <= n_head) whole *= 2;
    for (int64_t h = 0; h < n_head; h++) {
        const double halvings = h < whole ? 8 * double(h + 1) / double(whole)
                                          : 4 * double(2 * (h - whole) + 1) / double(whole);
        slopes.push_back(float(ggml::exp_f64(-halvings * ln2)));
    }
}

void ScoreBias::fill(int64_t n_ctx, float* table) const {
    const int64_t n_head = buckets ? buckets.cols : int64_t(slopes.size());
    const int64_t width = 2 * n_ctx - 1;
    std::vector<float> row(size_t(n_head), 0.0f);
    for (int64_t i = 0; i < width; i++) {
        const int64_t d = i - (n_ctx - 1);
        if (buckets) ggml::decode_row(buckets, bucket(d, buckets.rows), row.data());
        for (int64_t h = 0; h < n_head; h++) {
            table[h * width + i] =
                buckets ? row[size_t(h)] : -slopes[size_t(h)] * float(std::abs(d));
        }
    }
}

}  // namespace powerinfer
