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
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "ggml/blocks.h"
#include "ggml/device_ops.h"
#include "ggml/math.h"
#include "ggml/status.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>

#include <cuda/atomic>

#include "cuda/nvml.h"
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

// The kernels of this device, for load_kernels(). Filled before main() by launch() itself, which is
// the only way to start a kernel: none can be forgotten.
inline std::vector<const void*>& kernels() {
    static std::vector<const void*> all;
    return all;
}
template <auto kernel>
struct Listed {
    static const bool done;
};
template <auto kernel>
const bool Listed<kernel>::done = [] {
    kernels().push_back(reinterpret_cast<const void*>(kernel));
    return true;
}();

template <typename... Wanted, typename... Given>
void launch_with(const cudaLaunchConfig_t& config, void (*kernel)(Wanted...),
                 const Given&... given) {
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Wanted>(given)...), "kernel launch");
}

// Puts a kernel into a stream. Throws Error(device).
template <auto kernel, typename... Given>
void launch(DeviceStream* stream, dim3 grid, dim3 block, const Given&... given) {
    (void)Listed<kernel>::done;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = handle(stream);
    launch_with(config, kernel, given...);
}

// A kernel that is chosen at run time, for a generic lambda: launch<decltype(it)::value>(...).
template <auto kernel>
using Kernel = std::integral_constant<decltype(kernel), kernel>;

// Bytes that all processes use on a GPU, without a context there; nothing if that cannot be said.
inline std::optional<uint64_t> used_bytes(const cudaDeviceProp& properties) {
#ifdef __CUDACC__
    return nvml::used_bytes(properties.uuid.bytes);
#else
    (void)properties;
    return shim::used();
#endif
}
inline std::string driver_version() {
#ifdef __CUDACC__
    return nvml::driver_version();
#else
    return "simulated";
#endif
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

// On the tensor cores: c += a . b, 16 rows of a with 8 columns of b, 16 signed bytes deep. Lane l
// holds four neighbouring bytes of rows l / 4 and l / 4 + 8 of a, and of column l / 4 of b, from
// byte l % 4 * 4 on; and of c rows l / 4 (c[0], c[1]) and l / 4 + 8, columns l % 4 * 2 and the
// next. (PTX ISA, fragments of mma.m16n8k16 with .s8.)
__device__ inline void multiply_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
#ifndef __CUDACC__
    shim::multiply_bytes(c, a0, a1, b);
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
#else
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[0]), "+r"(c[1])
        : "r"(a0), "r"(b));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[2]), "+r"(c[3])
        : "r"(a1), "r"(b));
#endif
}
// The same, 32 bytes deep: a[2], a[3] and b[1] are the second half.
__device__ inline void multiply_bytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    multiply_bytes(c, a[0], a[1], b[0]);
    multiply_bytes(c, a[2], a[3], b[1]);
#endif
}

__device__ inline float warp_max(float value) {
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
        const float other = __shfl_xor_sync(kAll, value, apart);
        value = other > value ? other : value;
    }
    return value;
}

}  // namespace ggml::GGML_GPU
