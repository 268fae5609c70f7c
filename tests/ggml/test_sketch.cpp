// Scores from signs against sums in double. The bits must not depend on the number of threads or on
// other rows.
#include <cmath>
#include <random>
#include <vector>

#include "ggml/check.h"
#include "ggml/sketch.h"

using namespace ggml;

namespace {

using Floats = std::vector<float>;
std::mt19937 rng(3);

Floats normal(int64_t n) {
    std::normal_distribution<float> d(0, 1);
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = d(rng);
    return v;
}

void test(int64_t n, int64_t cols, bool offsets) {
    const int64_t rows = 5;
    const Floats w = normal(n * cols), offset = normal(n);
    Floats x = normal(rows * cols);
    x[size_t(cols)] = 1000;  // beyond the highest level
    for (int64_t i = 0; i < cols; i++) x[size_t(4 * cols + i)] = 0;
    std::vector<uint8_t> signs(size_t(n * cols / 8), 0);
    for (int64_t i = 0; i < n * cols; i++) {
        if (w[size_t(i)] < 0) signs[size_t(i / 8)] |= uint8_t(1 << i % 8);
    }
    const Sketch sketch{n, cols, signs.data(), offsets ? offset.data() : nullptr};
    const auto run = [&](int threads, int64_t first, int64_t count) {
        Context context(threads);
        Carved<SketchScratch> scratch("scratch", count, cols);
        Floats score(size_t(count * n));
        sketch_scores(context, sketch, x.data() + first * cols, count, *scratch, score.data());
        return score;
    };
    const Floats score = run(1, 0, rows);
    for (int64_t t = 0; t < rows; t++) {
        const float* in = x.data() + t * cols;
        double mean = 0;
        for (int64_t i = 0; i < cols; i++) mean += std::fabs(in[i]) / double(cols);
        const double unit = 0.45 * mean;
        for (int64_t j = 0; j < n; j++) {
            // Each input is rounded to a whole number of units, at most 7; a tie may go either way.
            double low = offsets ? offset[size_t(j)] : 0, high = low;
            for (int64_t i = 0; i < cols && unit > 0; i++) {
                const double a = std::fabs(in[i]) / unit;
                const bool same = std::signbit(in[i]) == std::signbit(w[size_t(j * cols + i)]);
                const double down = std::min(7.0, std::floor(a * (1 - 1e-5) + 0.5)) * unit;
                const double up = std::min(7.0, std::floor(a * (1 + 1e-5) + 0.5)) * unit;
                low += same ? down : -up;
                high += same ? up : -down;
            }
            const double found = score[size_t(t * n + j)];
            const double rounding = 1e-5 * (std::fabs(found) + mean * double(cols));
            CHECK(low - rounding <= found && found <= high + rounding);
        }
        const Floats alone = run(1, t, 1);
        CHECK(std::equal(alone.begin(), alone.end(), score.begin() + t * n));
    }
    for (int threads : {2, 3}) CHECK(run(threads, 0, rows) == score);
}

}  // namespace

int main() {
    test(1, 8, false);
    test(96, 64, true);
    test(200, 288, false);
    test(130, 512, true);
    return check::summary("test_sketch");
}
