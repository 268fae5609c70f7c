// RMS and layer norms, with the additions to the residual stream before them and the 8-bit form of
// their result after them.
#include "cuda/ops.h"
#include "cuda/ops/quantise.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// The sum of a value over the block, the same in every thread: warps, then their sums in order.
__device__ inline float block_sum(float value, float* sums) {
    value = warp_sum(value);
    __syncthreads();  // the sums of the call before have been read
    if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < kWarps; w++) total += sums[w];
    return total;
}

// One block a row.
__global__ void norm_kernel(DeviceNorm p) {
    GGML_SHARED(float, sums, kWarps);
    const int n = p.y.cols;
    const int64_t row = int64_t(blockIdx.x) * n;
    float* x = p.x + row;
    float total = 0;
    for (int i = int(threadIdx.x); i < n; i += kThreads) {
        float v = x[i];
        if (p.added[0]) v += p.added[0][row + i];
        if (p.added[1]) v += p.added[1][row + i];
        if (p.added[0]) x[i] = v;
        total = p.bias ? total + v : fmaf(v, v, total);
    }
    float mean = 0, squares = block_sum(total, sums);
    if (p.bias) {
        mean = squares / float(n);
        total = 0;
        for (int i = int(threadIdx.x); i < n; i += kThreads) {
            total = fmaf(x[i] - mean, x[i] - mean, total);
        }
        squares = block_sum(total, sums);
    }
    const float scale = 1.0f / sqrtf(squares / float(n) + p.eps);
    for (int i = int(threadIdx.x); i < n; i += kThreads) {
        float v = (x[i] - mean) * scale * p.weight[i];
        if (p.bias) v += p.bias[i];
        p.y.x[row + i] = v;
        if (p.y.q) quantise_group(p.y, row + i, v);
    }
}

}  // namespace

void norm(DeviceStream* stream, const DeviceNorm& p) {
    launch<norm_kernel>(stream, unsigned(p.y.rows), kThreads, p);
}

}  // namespace ggml::GGML_GPU
