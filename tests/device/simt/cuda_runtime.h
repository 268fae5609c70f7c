// The part of the CUDA run time and of CUDA C++ that this project's .cu files use, for g++: they
// are compiled and run without a GPU. Names and meanings are those of NVIDIA's header of this name;
// block.h runs the kernels.
//
// A stream is a real thread with a queue; a graph is a recorded list. Device memory is ordinary
// memory, filled with rubbish when it is allocated, counted, and bounded by shim::set_memory().
// What a kernel does wrong makes every later call of the run time fail, as on hardware.
#pragma once

#define GGML_SHIM 1

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "simt/block.h"

// ---- the language -----------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)

using shim::blockDim;
using shim::blockIdx;
using shim::gridDim;
using shim::threadIdx;

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

// ---- what kernels call ------------------------------------------------------------------------

inline void __syncthreads(shim::Place place = shim::Place::current()) {
    shim::barrier(false, place);
}
inline int __syncthreads_count(int yes, shim::Place place = shim::Place::current()) {
    return int(shim::barrier(yes != 0, place));
}
inline int __syncthreads_or(int yes, shim::Place place = shim::Place::current()) {
    return shim::barrier(yes != 0, place) > 0;
}
inline void __syncwarp(unsigned mask = 0xffffffff, shim::Place place = shim::Place::current()) {
    shim::warp(shim::Collective::sync, mask, 0, 0, 32, place);
}
inline unsigned __ballot_sync(unsigned mask, int yes, shim::Place place = shim::Place::current()) {
    return unsigned(shim::warp(shim::Collective::ballot, mask, yes != 0, 0, 32, place));
}
inline int __any_sync(unsigned mask, int yes, shim::Place place = shim::Place::current()) {
    return shim::warp(shim::Collective::ballot, mask, yes != 0, 0, 32, place) != 0;
}

namespace shim {
template <typename T>
T shuffle(Collective what, unsigned mask, T value, int lane, int width, Place place) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = warp(what, mask, bits, lane, width, place);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
}  // namespace shim

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              shim::Place place = shim::Place::current()) {
    return shim::shuffle(shim::Collective::shuffle, mask, value, lane, width, place);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane, int width = 32,
                  shim::Place place = shim::Place::current()) {
    return shim::shuffle(shim::Collective::shuffle_xor, mask, value, lane, width, place);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lane, int width = 32,
                   shim::Place place = shim::Place::current()) {
    return shim::shuffle(shim::Collective::shuffle_down, mask, value, int(lane), width, place);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned lane, int width = 32,
                 shim::Place place = shim::Place::current()) {
    return shim::shuffle(shim::Collective::shuffle_up, mask, value, int(lane), width, place);
}

inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
// The bytes of a and b as signed numbers, multiplied and added to c.
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += int(int8_t(a >> 8 * i)) * int(int8_t(b >> 8 * i));
    return c;
}
// Byte i of the result is byte (s >> 4 i) & 7 of the eight bytes of a, then b.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const uint64_t both = a | uint64_t(b) << 32;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= unsigned(both >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return result;
}
// The blocks of a kernel run on one thread, and flags that other threads read are released and
// acquired by themselves: fences keep the compiler's order only.
inline void __threadfence() {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
inline unsigned atomicAdd(unsigned* to, unsigned value) {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long value) {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
// Lets other threads of this machine run: a kernel that waits for the host does this.
void __nanosleep(unsigned nanoseconds);

// ---- the run time -----------------------------------------------------------------------------

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
};
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount, integrated;
};
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
enum cudaDeviceAttr { cudaDevAttrKernelExecTimeout = 17 };
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
enum : unsigned { cudaHostAllocDefault = 0, cudaHostAllocMapped = 2 };
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
enum : unsigned { cudaHostRegisterDefault = 0 };
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);

struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct CUevent_st;
using cudaEvent_t = CUevent_st*;
struct CUgraph_st;
using cudaGraph_t = CUgraph_st*;
struct CUgraphExec_st;
using cudaGraphExec_t = CUgraphExec_st*;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);

enum : unsigned { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

enum : unsigned { cudaEventDefault = 0, cudaEventDisableTiming = 2 };
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void* nodes, size_t* n);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

struct cudaFuncAttributes {
    size_t sharedSizeBytes;
};
// Loads a kernel.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    void* attrs = nullptr;
    unsigned numAttrs = 0;
};

namespace shim {

// Puts a kernel, which is the function at `address`, with its arguments into a stream. The bytes of
// the parameters are for a recording (record.h) and may be missing where there is none.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* address,
                   std::vector<std::string> parameters, std::function<void()> kernel);
bool recording();

// A device of so many bytes; 0: no device. Affects allocations from now on.
void set_memory(size_t bytes);
// The context, which the first cudaSetDevice() makes, takes so many bytes of the device; make it
// anew. known: used() tells.
void set_context(size_t bytes, bool known = true);
// Bytes in use on the device, with its context.
std::optional<uint64_t> used();
// Another card: compute capability times 10 (75), and what CUDA the driver is for, times 1000
// (13000; 0: there is no driver). The kernels are for `built` (75) and above.
void set_card(int compute, int driver, int built = 75);
// Does the system end kernels that take too long? (It does not really.) For devices opened from now
// on.
void set_watchdog(bool on);
// Launches of kernels that nothing had loaded: on hardware each may wait for ever.
int unloaded_launches();
// Releases by threads that have entered no device: on hardware each enters the first one.
int releases_outside();
// Bytes of device memory that are allocated, and the most that ever were since set_memory().
size_t allocated();
size_t most_allocated();
// After n more of the calls that can fail (allocations, launches, copies), one fails; -1: none
// does.
void fail_after(int n);
// What went wrong in a kernel, "" where nothing did. Calls go on failing until clear_failure().
std::string failure();
void clear_failure();

}  // namespace shim

template <typename... Wanted, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Wanted...),
                               Given&&... given) {
    std::tuple<Wanted...> arguments(static_cast<Wanted>(given)...);
    std::vector<std::string> parameters;
    if (shim::recording()) {
        const auto bytes = [](const auto& value) {
            return std::string(reinterpret_cast<const char*>(&value), sizeof value);
        };
        std::apply([&](const auto&... value) { (parameters.push_back(bytes(value)), ...); },
                   arguments);
    }
    return shim::launch(*config, reinterpret_cast<const void*>(kernel), std::move(parameters),
                        [=] { std::apply(kernel, arguments); });
}
