// Makes the shim's device known as "simt", or "simt0" and so on.
#include "cuda/device.h"

namespace ggml::simt {

std::unique_ptr<Device> open_device(int index);  // of cuda/device.cu

namespace {

std::unique_ptr<Device> open(const std::string& id) {
    const int index = device_index(id.substr(4));
    return index < 0 ? nullptr : open_device(index);
}

[[maybe_unused]] const bool registered = register_device_kind("simt", open);

}  // namespace

}  // namespace ggml::simt
