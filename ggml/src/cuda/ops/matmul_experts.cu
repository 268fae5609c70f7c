// Products of a mixture's experts with the rows that chose them.
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

void matmul_experts(DeviceStream*, const DeviceInput&, const DeviceChoice&, const DeviceFrames&,
                    const DeviceProduct*, int) {
    throw Error(Code::unsupported, "matmul_experts");
}

}  // namespace ggml::GGML_GPU
