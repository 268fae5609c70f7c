// A device in the place of a GPU that takes the time of one and computes nothing: for measuring the
// CPU's half of a split model, the flags and the threads. Its results are zeros. Test builds only.
#pragma once

#include <memory>
#include <string>

#include "ggml/device.h"
#include "timed/config.h"
#include "timed/stream.h"

namespace ggml::timed {

// Opens a device by an id as in config.h. Throws Error(device).
std::unique_ptr<Device> open_device(const std::string& id);

inline Stream& of(DeviceStream* stream) {
    return *reinterpret_cast<Stream*>(stream);
}

// Its operators. `config` must live as long as streams do.
const DeviceOps& ops();

}  // namespace ggml::timed
