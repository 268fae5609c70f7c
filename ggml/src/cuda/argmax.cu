// The first largest value: greedy sampling without the logits leaving the device.
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;

struct Best {
    float value;
    int at;

    __device__ void take(float other, int place) {
        if (other > value || (other == value && place < at)) {
            value = other;
            at = place;
        }
    }
    __device__ void over_warp() {
        for (int apart = kWarp / 2; apart > 0; apart /= 2) {
            const float other = __shfl_xor_sync(kAll, value, apart);
            const int place = __shfl_xor_sync(kAll, at, apart);
            take(other, place);
        }
    }
};

__global__ void argmax_kernel(const float* x, int n, int32_t* at) {
    GGML_SHARED(float, values, kWarps);
    GGML_SHARED(int, places, kWarps);
    const int thread = int(threadIdx.x);
    Best best{-INFINITY, 0x7fffffff};
    for (int i = thread; i < n; i += kThreads) best.take(x[i], i);
    best.over_warp();
    if (thread % kWarp == 0) {
        values[thread / kWarp] = best.value;
        places[thread / kWarp] = best.at;
    }
    __syncthreads();
    if (thread >= kWarp) return;
    best = {values[thread], places[thread]};
    best.over_warp();
    if (thread == 0) *at = best.at < n ? best.at : 0;  // 0 where nothing is a number
}

}  // namespace

void argmax(DeviceStream* stream, const float* x, int n, int32_t* at) {
    launch<argmax_kernel>(stream, 1, kThreads, x, n, at);
}

}  // namespace ggml::GGML_GPU
