// Rows of the CPU's to rows of a device.
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

void unfold(DeviceStream*, const uint8_t*, const DeviceRows&) {
    throw Error(Code::unsupported, "unfold");
}

}  // namespace ggml::GGML_GPU
