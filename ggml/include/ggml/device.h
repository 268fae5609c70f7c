// Compute devices besides the CPU. cuda/device.cu implements this, or no_cuda/device.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ggml {

struct DeviceInfo {
    std::string name;  // "cuda0: NVIDIA ..."
    uint64_t total_bytes;
    uint64_t free_bytes;
};

// Never throws; empty where there is none.
const std::vector<DeviceInfo>& devices();
// Why the list is as it is: "built without CUDA", "no CUDA driver", "1 CUDA device".
const char* device_note();

}  // namespace ggml
