// The devices of CUDA, and how devices of other kinds become known.
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

// The number that an id has behind its kind: 0 where there is none, -1 where these are no digits.
int device_index(const std::string& digits);

// Opens a device by its id; null where the id is of another kind. Throws Error(device).
using OpenDevice = std::unique_ptr<Device> (*)(const std::string& id);
// Makes open_device() try `open` for ids that begin with `kind`. For static initialisers of objects
// that a program links: this library names none of them, and does not list their devices. Returns
// true.
bool register_device_kind(const char* kind, OpenDevice open);

}  // namespace ggml
