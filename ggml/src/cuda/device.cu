// The CUDA devices of this machine.
#include <cuda_runtime.h>

#include "ggml/device.h"

namespace ggml {

namespace {

struct List {
    std::vector<DeviceInfo> devices;
    std::string note;

    List() {
        int n = 0;
        const cudaError_t status = cudaGetDeviceCount(&n);
        if (status != cudaSuccess) {
            note = std::string("no CUDA device: ") + cudaGetErrorString(status);
            return;
        }
        for (int i = 0; i < n; i++) {
            cudaDeviceProp properties;
            size_t free_bytes = 0, total_bytes = 0;
            if (cudaSetDevice(i) != cudaSuccess ||
                cudaGetDeviceProperties(&properties, i) != cudaSuccess ||
                cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
                continue;
            }
            devices.push_back(
                {"cuda" + std::to_string(i) + ": " + properties.name, total_bytes, free_bytes});
        }
        note = std::to_string(devices.size()) + " CUDA device(s)";
    }
};

const List& list() {
    static const List found;
    return found;
}

}  // namespace

const std::vector<DeviceInfo>& devices() {
    return list().devices;
}

const char* device_note() {
    return list().note.c_str();
}

}  // namespace ggml
