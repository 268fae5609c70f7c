// The device list of a build without CUDA: same symbols as cuda/device.cu.
#include "ggml/device.h"

namespace ggml {

const std::vector<DeviceInfo>& devices() {
    static const std::vector<DeviceInfo> none;
    return none;
}

const char* device_note() {
    return "built without CUDA";
}

}  // namespace ggml
