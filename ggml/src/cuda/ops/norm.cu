// RMS and layer norms, with the additions to the residual stream before them and the 8-bit form of
// their result after them. Sums have sixteen lanes, as on the CPU (kernels/lanes/elementwise.h), so
// the bits are the CPU's.
#include "cuda/ops.h"
#include "cuda/ops/lanes.h"
#include "cuda/ops/quantise.h"

namespace ggml::GGML_GPU {

namespace {

// Value i of row `row`, once what was added is in it.
__device__ inline float added(const DeviceNorm& p, int64_t row, int i) {
    float v = p.x[row + i];
    if (p.added[0]) v += p.added[0][row + i];
    if (p.added[1]) v += p.added[1][row + i];
    if (p.added[0]) p.x[row + i] = v;
    return v;
}

__device__ inline void put(const DeviceNorm& p, int64_t i, float v) {
    p.y.x[i] = v;
    if (p.y.q) quantise_group(p.y, i, v);
}

// One block a row. A thread reads the values that it has written itself.
__global__ void rms_norm_kernel(DeviceNorm p) {
    GGML_SHARED(float, stage, kStageBytes / sizeof(float));
    GGML_SHARED(double, shared, 1);
    const int n = p.y.cols;
    const int64_t row = int64_t(blockIdx.x) * n;
    double scale = lanes_sum(n, stage, [&](int i) {
        const float v = added(p, row, i);
        return v * v;
    });
    if (threadIdx.x == 0) scale = 1.0 / sqrt(scale / double(n) + double(p.eps));
    const auto factor = float(from_first(scale, shared));
    for (int i = int(threadIdx.x); i < n; i += kThreads) {
        const float v = p.x[row + i] * factor;
        put(p, row + i, p.weight ? v * p.weight[i] : v);
    }
}

__global__ void layer_norm_kernel(DeviceNorm p) {
    GGML_SHARED(double, stage, kStageBytes / sizeof(double));
    GGML_SHARED(double, shared, 1);
    const int n = p.y.cols;
    const int64_t row = int64_t(blockIdx.x) * n;
    const double all = lanes_sum(n, stage, [&](int i) { return double(added(p, row, i)); });
    const double mean = from_first(all, shared) / double(n);
    double scale = lanes_sum(n, stage, [&](int i) {
        const double v = double(p.x[row + i]) - mean;
        return v * v;
    });
    if (threadIdx.x == 0) scale = 1.0 / sqrt(scale / double(n) + double(p.eps));
    scale = from_first(scale, shared);
    for (int i = int(threadIdx.x); i < n; i += kThreads) {
        float v = float((double(p.x[row + i]) - mean) * scale);
        if (p.weight) v *= p.weight[i];
        put(p, row + i, p.bias ? v + p.bias[i] : v);
    }
}

}  // namespace

void norm(DeviceStream* stream, const DeviceNorm& p) {
    if (p.layer) {
        launch<layer_norm_kernel>(stream, unsigned(p.y.rows), kThreads, p);
    } else {
        launch<rms_norm_kernel>(stream, unsigned(p.y.rows), kThreads, p);
    }
}

}  // namespace ggml::GGML_GPU
