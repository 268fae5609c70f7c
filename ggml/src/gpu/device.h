// The devices of one kind: of CUDA, and of the shim.
#pragma once

#include "ggml/device.h"

namespace ggml {

namespace cuda {
std::vector<DeviceInfo> devices(std::string& note);
std::unique_ptr<Device> open_device(int index);
}  // namespace cuda

namespace simt {
std::vector<DeviceInfo> devices(std::string& note);
std::unique_ptr<Device> open_device(int index);
}  // namespace simt

}  // namespace ggml
