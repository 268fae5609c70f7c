// Device memory for tests, through the run time that the operators were compiled for.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <vector>

#include "ggml/check.h"
#include "ggml/device_ops.h"

namespace gpu_test {

// The device whose run time this is.
#ifdef GGML_SHIM
constexpr const char* kDevice = "simt0";
constexpr bool kShim = true;
#else
constexpr const char* kDevice = "cuda0";
constexpr bool kShim = false;
#endif

// It is ten times slower, and what threads share is the same in every shape and order.
#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

inline void must(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

// The stream of all tests.
inline cudaStream_t raw_stream() {
    static cudaStream_t one = [] {
        cudaStream_t made = nullptr;
        must(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
        return made;
    }();
    return one;
}
inline ggml::DeviceStream* stream() {
    return reinterpret_cast<ggml::DeviceStream*>(raw_stream());
}

// An array on the device. Exactly as large as asked for, so that the address sanitizer sees a
// kernel that goes beyond it.
template <typename T>
class Array {
 public:
    explicit Array(size_t n) : n_(n) {
        must(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T)));
    }
    explicit Array(const std::vector<T>& values) : Array(values.size()) {
        must(cudaMemcpyAsync(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice,
                             raw_stream()));
        must(cudaStreamSynchronize(raw_stream()));
    }
    ~Array() { must(cudaFree(data_)); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    T* get() const { return data_; }
    // What the kernels so far have left in it.
    std::vector<T> read() const {
        std::vector<T> values(n_);
        must(cudaMemcpyAsync(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost,
                             raw_stream()));
        must(cudaStreamSynchronize(raw_stream()));
        return values;
    }

 private:
    T* data_ = nullptr;
    size_t n_;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace gpu_test
