// What every .cu file includes. Each is compiled twice: by nvcc for GPUs, into namespace
// ggml::cuda, and for tests by an ordinary compiler with another cuda_runtime.h, into a namespace
// of its own, where the same kernels and the same host code run on the CPU. GGML_GPU is that
// namespace. Only this header knows which of the two it is.
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
#include "cuda/card.h"
#else
#include <card.h>  // which is beside that cuda_runtime.h
#endif

namespace ggml::GGML_GPU {

#define GGML_TEXT_OF(name) #name
#define GGML_TEXT(name) GGML_TEXT_OF(name)
constexpr const char* kKind = GGML_TEXT(GGML_GPU);  // "cuda": what ids begin with

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

inline unsigned blocks_for(int64_t n, int64_t per_block) {
    return unsigned((n + per_block - 1) / per_block);
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
