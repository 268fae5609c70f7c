// Where the halves of a split layer meet: the device gives the CPU its half, and adds what both
// sent down. The order of flag and payload is that of the PTX memory model: every block that wrote
// fences at system scope before it arrives, the last one releases the flag at system scope; a
// waiting block acquires it at system scope before it reads. The payload is never read through the
// read-only cache.
#include "gpu/launch.h"
#include "gpu/ops.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;
constexpr int kPublished = 4;  // values a thread

__global__ void publish_kernel(const float* x, int cols, const int32_t* cold, const int32_t* count,
                               DeviceExchange to) {
    const int n = *count;
    const int begin = int(blockIdx.x) * kThreads * kPublished + int(threadIdx.x);
    for (int k = 0; k < kPublished; k++) {
        const int i = begin + k * kThreads;
        if (n > 0 && i < cols) to.x[i] = x[i];
        if (i < n) to.ids[i] = cold[i];
    }
    if (begin == 0) *to.count = n;
    __syncthreads();  // what the whole block wrote is before thread 0's fence
    if (threadIdx.x != 0) return;
    __threadfence_system();
    if (atomicAdd(to.arrived, 1u) + 1 != gridDim.x) return;
    *to.arrived = 0;
    __threadfence_system();
    store_release_system(to.published, *to.epoch);
}

// The parts in order, then what another tier sent down, then the bias.
__device__ inline float merged(const float* sums, const float* other, const float* bias, int cols,
                               int c) {
    float total = 0;
    if (sums) {
        for (int part = 0; part < kDeviceParts; part++) total += sums[int64_t(part) * cols + c];
    }
    if (other) total = other[c] + total;
    return bias ? total + bias[c] : total;
}

__global__ void merge_kernel(const float* sums, const float* other, const float* bias, int cols,
                             float* y) {
    const int c = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (c < cols) y[c] = merged(sums, other, bias, cols, c);
}

// Few blocks, since each polls host memory by itself: none waits for another block to run.
constexpr int kMerged = 4;  // columns a thread

__global__ void merge_answer_kernel(const float* sums, const int32_t* count, DeviceExchange from,
                                    const float* bias, int cols, float* y) {
    const float* here = count[0] > 0 ? sums : nullptr;
    const float* there = count[1] > 0 ? from.sums : nullptr;
    if (threadIdx.x == 0 && there) {
        const uint32_t epoch = *from.epoch;
        const unsigned long long begin = clock_ns();
        for (;;) {
            const uint32_t answered = load_acquire_system(from.answered);
            if (answered == epoch || answered == kReleased) break;
            __nanosleep(100);
        }
        if (blockIdx.x == 0) *from.waited += clock_ns() - begin;
    }
    __syncthreads();  // the answer is there
    for (int k = 0; k < kMerged; k++) {
        const int c = (int(blockIdx.x) * kMerged + k) * kThreads + int(threadIdx.x);
        if (c < cols) y[c] = merged(here, there, bias, cols, c);
    }
}

}  // namespace

void publish(DeviceStream* stream, const float* x, int cols, const DeviceLists& lists, int n,
             const DeviceExchange& to) {
    const int most = n > cols ? n : cols;
    launch(stream, publish_kernel, blocks_for(most, kThreads * kPublished), kThreads, x, cols,
           lists.cold, lists.count + 1, to);
}

void merge(DeviceStream* stream, const float* sums, const float* other, const float* bias, int cols,
           float* y) {
    launch(stream, merge_kernel, blocks_for(cols, kThreads), kThreads, sums, other, bias, cols, y);
}

void merge_answer(DeviceStream* stream, const float* sums, const int32_t* count,
                  const DeviceExchange& from, const float* bias, int cols, float* y) {
    launch(stream, merge_answer_kernel, blocks_for(cols, kThreads * kMerged), kThreads, sums, count,
           from, bias, cols, y);
}

}  // namespace ggml::GGML_GPU
