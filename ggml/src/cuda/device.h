// The devices of one kind: of CUDA, and of the shim; and how devices of tests become known.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

// The number that an id has behind its kind: 0 where there is none, -1 where these are no digits.
int device_index(const std::string& digits);

// Opens a device by its id; null where the id is of another kind. Throws Error(device).
using OpenTestDevice = std::unique_ptr<Device> (*)(const std::string& id);
// Makes open_device() try `open` for ids that begin with `kind`. Called by static initialisers of
// programs that link test devices. Returns true.
bool register_test_device(const char* kind, OpenTestDevice open);

}  // namespace ggml
