#include "ggml/streams.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ggml/math.h"
#include "kernels/kernels.h"
#include "ops/grain.h"

namespace ggml {

namespace {

constexpr int kStreamType = int(DType::F32);
constexpr int64_t kStreamRun = 256;  // of a row, at a time

// Calls each(row, column, n) for runs of n columns of all rows.
template <typename F>
void each_run(Context& context, const Streams& of, const F& each) {
    const int64_t runs = (of.n + kStreamRun - 1) / kStreamRun;
    const int64_t grain = cpu::row_grain(of.n_streams * kStreamRun);
    context.threads.run(of.rows * runs, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t column = i % runs * kStreamRun;
            each(i / runs, column, std::min(kStreamRun, of.n - column));
        }
    });
}

double likeness(const float* a, const float* b, int64_t n) {
    constexpr int64_t kLanes = 8;  // sums side by side, which do not wait for each other
    double lanes[kLanes] = {};
    for (int64_t i = 0; i < n; i++) lanes[i % kLanes] += double(a[i]) * double(b[i]);
    return std::accumulate(lanes, lanes + kLanes, 0.0) / std::sqrt(double(n));
}

double signed_root(double s) {
    constexpr double kLeast = 1e-6;
    const double size = std::abs(s), root = std::sqrt(size < kLeast ? kLeast : size);
    return s > 0 ? root : s < 0 ? -root : s;  // 0 and NaN stay
}

}  // namespace

void repeat_in_streams(Context& context, const Streams& of, const float* row, float* x) {
    const OpTimer timer(context.profile, "repeat_in_streams");
    each_run(context, of, [&](int64_t t, int64_t column, int64_t n) {
        for (int64_t i = 0; i < of.n_streams; i++) {
            std::copy_n(row + t * of.n + column, n, x + (t * of.n_streams + i) * of.n + column);
        }
    });
}

void mix_streams(Context& context, const Streams& of, float* x, float* gate, float* y) {
    const OpTimer timer(context.profile, "mix_streams");
    const auto count = float(of.n_streams);
    each_run(context, of, [&](int64_t t, int64_t column, int64_t n) {
        float* const to = y + t * of.n + column;
        for (int64_t i = 0; i < of.n_streams; i++) {
            const int64_t at = (t * of.n_streams + i) * of.n + column;
            context.kernels.sigmoid_gate[kStreamType](x + at, gate + at, n);
            if (i == 0) std::copy_n(x + at, n, to);
            if (i > 0) context.kernels.add_scaled[kStreamType](to, 1, x + at, n);
        }
        for (int64_t c = 0; c < n; c++) to[c] /= count;
    });
}

void add_to_streams(Context& context, const Streams& of, float* x, const float* score,
                    const float* y) {
    const OpTimer timer(context.profile, "add_to_streams");
    each_run(context, of, [&](int64_t t, int64_t column, int64_t n) {
        for (int64_t i = 0; i < of.n_streams; i++) {
            const int64_t stream = t * of.n_streams + i;
            const float factor = 2 * sigmoid(score[stream] / float(of.n_streams));
            context.kernels.add_scaled[kStreamType](x + stream * of.n + column, factor,
                                                    y + t * of.n + column, n);
        }
    });
}

void gate_by_likeness(Context& context, const Streams& of, const float* key, const float* query,
                      const float* value, float* y) {
    const OpTimer timer(context.profile, "gate_by_likeness");
    const int64_t streams = of.rows * of.n_streams;
    context.threads.run(streams, cpu::row_grain(of.n), [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = i * of.n;
            const float* const from = value + i / of.n_streams * of.n;
            const double score = signed_root(likeness(key + at, query + at, of.n));
            const float gate = sigmoid(float(score));
            for (int64_t c = 0; c < of.n; c++) y[at + c] = gate * from[c];
        }
    });
}

}  // namespace ggml
