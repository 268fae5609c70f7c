// What a card's own instructions and NVIDIA's libraries do for launch.h. Where something else than
// nvcc compiles the .cu files, whoever gives them a cuda_runtime.h gives them this, too.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cuda/atomic>
#include <optional>
#include <string>

#include "cuda/nvml.h"
#include "ggml/blocks.h"

// An array in the memory that the threads of a block share.
#define GGML_SHARED(type, name, n) __shared__ type name[n]

// Before a loop: its turns are written out, so that arrays stay in registers.
#define GGML_UNROLL _Pragma("unroll")

// Before a loop: the compiler is to put two of its turns into one, not four, which would take more
// registers.
#define GGML_UNROLL_TWO _Pragma("unroll 2")

namespace ggml::GGML_GPU {

// Bytes that all processes use on a GPU, without a context there; nothing if that cannot be said.
inline std::optional<uint64_t> used_bytes(const cudaDeviceProp& properties) {
    return nvml::used_bytes(properties.uuid.bytes);
}
inline std::string driver_version() {
    return nvml::driver_version();
}

__device__ inline float half_to_float(f16_t bits) {
    return __half2float(__ushort_as_half(bits));
}
// Round to nearest even.
__device__ inline f16_t float_to_half(float value) {
    return __half_as_ushort(__float2half_rn(value));
}

// A pointer that the compiler cannot see comes from a parameter: it would have slower loads.
template <typename T>
__device__ inline T* in_global_memory(T* p) {
    __builtin_assume(__isGlobal(p));
    return p;
}

// Flags that host and device share: what was written before the store is seen after the load.
__device__ inline uint32_t load_acquire_system(const uint32_t* flag) {
    return ::cuda::atomic_ref<uint32_t, ::cuda::thread_scope_system>(*const_cast<uint32_t*>(flag))
        .load(::cuda::memory_order_acquire);
}
__device__ inline void store_release_system(uint32_t* flag, uint32_t value) {
    ::cuda::atomic_ref<uint32_t, ::cuda::thread_scope_system>(*flag).store(
        value, ::cuda::memory_order_release);
}

// Nanoseconds of a clock of the device. Its steps may be a microsecond.
__device__ inline unsigned long long clock_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// On the tensor cores: c += a . b, 16 rows of a with 8 columns of b, 16 signed bytes deep. Lane l
// holds four neighbouring bytes of rows l / 4 and l / 4 + 8 of a, and of column l / 4 of b, from
// byte l % 4 * 4 on; and of c rows l / 4 (c[0], c[1]) and l / 4 + 8, columns l % 4 * 2 and the
// next. (PTX ISA, fragments of mma.m16n8k16 with .s8.)
__device__ inline void multiply_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
#if __CUDA_ARCH__ >= 800
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
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    multiply_bytes(c, a[0], a[1], b[0]);
    multiply_bytes(c, a[2], a[3], b[1]);
#endif
}

}  // namespace ggml::GGML_GPU
