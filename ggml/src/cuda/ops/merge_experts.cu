// Where the halves of a mixture meet (merge.cu has the protocol).
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

void publish_experts(DeviceStream*, const DeviceInput&, const DeviceChoice&, const DeviceFrames&,
                     const DeviceExchange&) {
    throw Error(Code::unsupported, "publish_experts");
}

void merge_experts(DeviceStream*, const DeviceChoice&, const DeviceFrames&, const float*,
                   const DeviceExchange&, int, float*) {
    throw Error(Code::unsupported, "merge_experts");
}

}  // namespace ggml::GGML_GPU
