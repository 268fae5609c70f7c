// Where the halves of a mixture meet: the device gives the CPU what its experts need, and adds what
// the experts of both give.
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/ops/exchange.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;
constexpr int kValues = 4;  // of a thread

// The pairs whose experts are not here, counted by a whole block.
__device__ inline int cold_pairs(const DeviceChoice& choice, const DeviceFrames& frames) {
    const int pairs = choice.rows * choice.n_used;
    int n = 0;
    for (int begin = 0; begin < pairs; begin += kThreads) {
        const int i = begin + int(threadIdx.x);
        n += __syncthreads_count(i < pairs && frames.frame[choice.expert[i]] < 0);
    }
    return n;
}

__global__ void publish_experts_kernel(DeviceInput x, DeviceChoice choice, DeviceFrames frames,
                                       DeviceExchange to) {
    const int cold = cold_pairs(choice, frames), thread = int(threadIdx.x);
    const int64_t t = blockIdx.y;
    for (int k = 0; cold > 0 && k < kValues; k++) {
        const int c = (int(blockIdx.x) * kValues + k) * kThreads + thread;
        if (c < x.cols) to.x[t * x.cols + c] = x.x[t * x.cols + c];
    }
    if (blockIdx.x == 0) {
        for (int k = thread; k < choice.n_used; k += kThreads) {
            to.ids[t * choice.n_used + k] = choice.expert[t * choice.n_used + k];
        }
        if (t == 0 && thread == 0) to.count[0] = cold;
    }
    publish_written(to);
}

constexpr int kMergedRows = 8;  // blocks of a column

__global__ void merge_experts_kernel(DeviceChoice choice, DeviceFrames frames, const float* here,
                                     DeviceExchange from, int cols, float* y) {
    await_answer(from, cold_pairs(choice, frames) > 0);
    for (int64_t t = blockIdx.y; t < choice.rows; t += gridDim.y) {
        for (int k = 0; k < kValues; k++) {
            const int c = (int(blockIdx.x) * kValues + k) * kThreads + int(threadIdx.x);
            if (c >= cols) break;
            float sum = 0;
            for (int64_t pair = t * choice.n_used; pair < (t + 1) * choice.n_used; pair++) {
                const bool is_here = frames.frame[choice.expert[pair]] >= 0;
                const float* given = is_here ? here : from.sums;
                sum += choice.weight[pair] * given[pair * cols + c];
            }
            y[t * cols + c] = sum;
        }
    }
}

}  // namespace

void publish_experts(DeviceStream* stream, const DeviceInput& x, const DeviceChoice& choice,
                     const DeviceFrames& frames, const DeviceExchange& to) {
    const dim3 grid(blocks_for(x.cols, kThreads * kValues), unsigned(x.rows));
    launch<publish_experts_kernel>(stream, grid, kThreads, x, choice, frames, to);
}

void merge_experts(DeviceStream* stream, const DeviceChoice& choice, const DeviceFrames& frames,
                   const float* here, const DeviceExchange& from, int cols, float* y) {
    const dim3 grid(blocks_for(cols, kThreads * kValues),
                    unsigned(choice.rows < kMergedRows ? choice.rows : kMergedRows));
    launch<merge_experts_kernel>(stream, grid, kThreads, choice, frames, here, from, cols, y);
}

}  // namespace ggml::GGML_GPU
