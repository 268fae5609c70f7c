// What every .cu file includes. Each is compiled twice: by nvcc for GPUs, into namespace
// ggml::cuda, and by g++ with shim/cuda_runtime.h, into ggml::simt, where the same kernels and the
// same host code run on the CPU. GGML_GPU is that namespace. Only this header knows which of the
// two it is.
//
// Kernels are written for the same bits in both: sums in a fixed order, fmaf() where multiply and
// add are to be one operation, no atomic additions of floats.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ggml/blocks.h"
#include "ggml/device_ops.h"
#include "ggml/math.h"
#include "ggml/status.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>

#include <cuda/atomic>
// An array in the memory that the threads of a block share.
#define GGML_SHARED(type, name, n) __shared__ type name[n]
#else
#define GGML_SHARED(type, name, n) \
    type* const name =             \
        static_cast<type*>(shim::shared_memory(sizeof(type) * (n), shim::Place::current()))
#endif

namespace ggml::GGML_GPU {

#define GGML_TEXT_OF(name) #name
#define GGML_TEXT(name) GGML_TEXT_OF(name)
constexpr const char* kKind = GGML_TEXT(GGML_GPU);  // "cuda" or "simt"

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffff;  // every lane of a warp

// Throws Error(device) naming the call, unless it went well.
inline void check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    throw Error(error == cudaErrorMemoryAllocation ? Code::memory : Code::device,
                std::string(call) + ": " + cudaGetErrorString(error));
}

inline cudaStream_t handle(DeviceStream* stream) {
    return reinterpret_cast<cudaStream_t>(stream);
}

// Puts a kernel into a stream. Throws Error(device).
template <typename... Wanted, typename... Given>
void launch(DeviceStream* stream, void (*kernel)(Wanted...), dim3 grid, dim3 block,
            const Given&... given) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = handle(stream);
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Wanted>(given)...), "kernel launch");
}

inline unsigned blocks_for(int64_t n, int64_t per_block) {
    return unsigned((n + per_block - 1) / per_block);
}

__device__ inline float half_to_float(f16_t bits) {
#ifdef __CUDACC__
    return __half2float(__ushort_as_half(bits));
#else
    return f16_to_f32(bits);
#endif
}

// Round to nearest even.
__device__ inline f16_t float_to_half(float value) {
#ifdef __CUDACC__
    return __half_as_ushort(__float2half_rn(value));
#else
    return f32_to_f16(value);
#endif
}

// Flags that host and device share: what was written before the store is seen after the load.
__device__ inline uint32_t load_acquire_system(const uint32_t* flag) {
#ifdef __CUDACC__
    return ::cuda::atomic_ref<uint32_t, ::cuda::thread_scope_system>(*const_cast<uint32_t*>(flag))
        .load(::cuda::memory_order_acquire);
#else
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
#endif
}
__device__ inline void store_release_system(uint32_t* flag, uint32_t value) {
#ifdef __CUDACC__
    ::cuda::atomic_ref<uint32_t, ::cuda::thread_scope_system>(*flag).store(
        value, ::cuda::memory_order_release);
#else
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
    shim::linger();
#endif
}

// Nanoseconds of a clock of the device. Its steps may be a microsecond.
__device__ inline unsigned long long clock_ns() {
#ifdef __CUDACC__
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    return shim::clock_ns();
#endif
}

// The sum of a value over a warp, the same in every lane: a tree of fixed shape.
__device__ inline float warp_sum(float value) {
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
        value += __shfl_xor_sync(kAll, value, apart);
    }
    return value;
}

__device__ inline float warp_max(float value) {
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
        const float other = __shfl_xor_sync(kAll, value, apart);
        value = other > value ? other : value;
    }
    return value;
}

}  // namespace ggml::GGML_GPU
