// The router of a mixture, and where its experts' results meet.
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

void route(DeviceStream*, const Routing&, float*, const DeviceChoice&) {
    throw Error(Code::unsupported, "route");
}

}  // namespace ggml::GGML_GPU
