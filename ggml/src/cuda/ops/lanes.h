// Sums of a row's values in the order of the CPU's norms (kernels/lanes/elementwise.h): sixteen
// lanes, and then these in theirs.
#pragma once

#include "cuda/launch.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;  // of a block that adds up a row
constexpr int kLanes = 16;
constexpr int kStageBytes = 16 << 10;

// The sum of value(i) over i < n: i in lane i % 16, ascending, then the lanes in order. All threads
// compute values, sixteen add what is staged in shared memory. Thread 0 gets the sum.
template <typename T, typename F>
__device__ inline double lanes_sum(int n, T* stage, const F& value) {
    constexpr int some = kStageBytes / int(sizeof(T));
    const int thread = int(threadIdx.x);
    T sum = 0;
    for (int begin = 0; begin < n; begin += some) {
        const int end = n - begin < some ? n - begin : some;
        __syncthreads();  // what was staged before has been added
        for (int i = thread; i < end; i += kThreads) stage[i] = value(begin + i);
        __syncthreads();
        for (int i = thread; thread < kLanes && i < end; i += kLanes) sum += stage[i];
    }
    double total = 0;
    if (thread < kWarp) {
        for (int lane = 0; lane < kLanes; lane++) total += double(__shfl_sync(kAll, sum, lane));
    }
    return total;
}

// A value of thread 0, for the whole block. Between two of them there are other barriers.
__device__ inline double from_first(double value, double* shared) {
    if (threadIdx.x == 0) *shared = value;
    __syncthreads();
    return *shared;
}

}  // namespace

}  // namespace ggml::GGML_GPU
