// The operators of this device, one .cu file per kind (ops/).
#pragma once

#include "ggml/device_ops.h"

namespace ggml::GGML_GPU {

#define DEVICE_OP(name, ...) void name(DeviceStream* stream, __VA_ARGS__);
#include "ggml/device_ops.inc"
#undef DEVICE_OP

// All of them.
const DeviceOps& ops();

}  // namespace ggml::GGML_GPU
