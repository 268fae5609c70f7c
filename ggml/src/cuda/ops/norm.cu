// RMS and layer norms, with the additions to the residual stream before them and the 8-bit form of
// their result after them. Sums have sixteen lanes, as on the CPU (kernels/lanes/elementwise.h), so
// the bits are the CPU's.
#include "cuda/ops.h"
#include "cuda/ops/lanes.h"
#include "cuda/ops/quantise.h"

namespace ggml::GGML_GPU {

namespace {

// Value i of what is added to a row, behind its own norm. A factor of 1 leaves its bits.
template <bool finishes>
__device__ inline float addend(const DeviceAdded& a, float norm, int64_t row, int i) {
    float v = a.x[row + i];
    if (finishes && a.norm) v = v * norm * a.norm[i];
    return v * a.factor;
}

// Value i of row `row`, once what was added is in it. norm: 1 / the root of each addend's squares.
template <bool finishes>
__device__ inline float added(const DeviceNorm& p, const float (&norm)[2], int64_t row, int i) {
    float v = p.x[row + i];
    if (p.added[0].x) v += addend<finishes>(p.added[0], norm[0], row, i);
    if (p.added[1].x) v += addend<finishes>(p.added[1], norm[1], row, i);
    if (p.added[0].x) p.x[row + i] = v;
    return v;
}

// What an RMS norm multiplies a row's values by, of which `value` gives those at i < n.
template <typename F>
__device__ inline float rms_factor(int n, float eps, float* stage, double* shared, const F& value) {
    double scale = lanes_sum(n, stage, [&](int i) {
        const float v = value(i);
        return v * v;
    });
    if (threadIdx.x == 0) scale = 1.0 / sqrt(scale / double(n) + double(eps));
    return float(from_first(scale, shared));
}

__device__ inline void put(const DeviceNorm& p, int64_t i, float v) {
    p.y.x[i] = v;
    if (p.y.q) quantise_group(p.y, i, v);
}

// One block a row. A thread reads the values that it has written itself. finishes: what is added
// has norms.
template <bool finishes>
__global__ void rms_norm_kernel(DeviceNorm p) {
    GGML_SHARED(float, stage, kStageBytes / sizeof(float));
    GGML_SHARED(double, shared, 1);
    const int n = p.y.cols;
    const int64_t row = int64_t(blockIdx.x) * n;
    float norm[2] = {};
    const auto norm_of = [&](const DeviceAdded& a) {
        return rms_factor(n, a.eps, stage, shared, [&](int i) { return a.x[row + i]; });
    };
    if (finishes && p.added[0].norm) norm[0] = norm_of(p.added[0]);
    if (finishes && p.added[1].norm) norm[1] = norm_of(p.added[1]);
    const float factor = rms_factor(n, p.eps, stage, shared,
                                    [&](int i) { return added<finishes>(p, norm, row, i); });
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
    const double all =
        lanes_sum(n, stage, [&](int i) { return double(added<false>(p, {}, row, i)); });
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
    } else if (p.added[0].norm || p.added[1].norm) {
        launch<rms_norm_kernel<true>>(stream, unsigned(p.y.rows), kThreads, p);
    } else {
        launch<rms_norm_kernel<false>>(stream, unsigned(p.y.rows), kThreads, p);
    }
}

}  // namespace ggml::GGML_GPU
