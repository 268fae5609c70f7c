// The flags of an exchange between a device and the CPU (DeviceExchange). The order of flag and
// payload is that of the PTX memory model: every block that wrote fences at system scope before it
// arrives, the last one releases the flag at system scope; a waiting block acquires it at system
// scope before it reads. The payload is never read through the read-only cache.
#pragma once

#include "cuda/launch.h"

namespace ggml::GGML_GPU {

// What every block of the launch has written is published, once all of them have called this.
__device__ inline void publish_written(const DeviceExchange& to) {
    __syncthreads();  // what the whole block wrote is before thread 0's fence
    if (threadIdx.x != 0) return;
    __threadfence_system();
    if (atomicAdd(to.arrived, 1u) + 1 != gridDim.x * gridDim.y) return;
    *to.arrived = 0;
    __threadfence_system();
    store_release_system(to.published, *to.epoch);
}

// Waits for the CPU's answer where thread 0 says that it is needed. Each block polls host memory by
// itself, so that none waits for another block to run: there should be few.
__device__ inline void await_answer(const DeviceExchange& from, bool needed) {
    if (threadIdx.x == 0 && needed && !(from.limit && *from.late)) {
        const uint32_t epoch = *from.epoch;
        const unsigned long long begin = clock_ns();
        for (;;) {
            const uint32_t answered = load_acquire_system(from.answered);
            if (answered == epoch || answered == kReleased) break;
            if (from.limit && clock_ns() - begin > from.limit) {
                *from.late = 1;
                break;
            }
            __nanosleep(100);
        }
        if (blockIdx.x == 0 && blockIdx.y == 0) *from.waited += clock_ns() - begin;
    }
    __syncthreads();  // the answer is there, or it is too late
}

}  // namespace ggml::GGML_GPU
