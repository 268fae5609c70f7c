// What ggml/src/cuda/card.h has for a card, on the CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ggml/blocks.h"
#include "simt/cuda_runtime.h"

#define GGML_SHARED(type, name, n) \
    type* const name =             \
        static_cast<type*>(shim::shared_memory(sizeof(type) * (n), shim::Place::current()))

#define GGML_UNROLL
#define GGML_UNROLL_TWO

namespace ggml::GGML_GPU {

inline std::optional<uint64_t> used_bytes(const cudaDeviceProp&) {
    return shim::used();
}
inline std::string driver_version() {
    return "simulated";
}

inline float half_to_float(f16_t bits) {
    return f16_to_f32(bits);
}
inline f16_t float_to_half(float value) {
    return f32_to_f16(value);
}

template <typename T>
T* in_global_memory(T* p) {
    return p;
}

inline uint32_t load_acquire_system(const uint32_t* flag) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
inline void store_release_system(uint32_t* flag, uint32_t value) {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
    shim::linger();
}

inline unsigned long long clock_ns() {
    return shim::clock_ns();
}

inline void multiply_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
    shim::multiply_bytes(c, a0, a1, b);
}
inline void multiply_bytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_bytes(c, a[0], a[1], b[0]);
    multiply_bytes(c, a[2], a[3], b[1]);
}

}  // namespace ggml::GGML_GPU
