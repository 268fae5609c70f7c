#include "forward/recurrent.h"
#include "ggml/status.h"

namespace powerinfer {

void project(const Pass&, const Mamba2&, const float*) {
    throw ggml::Error(ggml::Code::unsupported, "layers of Mamba-2 are not supported");
}

Entering entering(const Workspace&, const Mamba2&) {
    return {};
}

void fold(const Folding&, const Mamba2&) {}

void finish(const Pass&, const Mamba2&, float*) {}

}  // namespace powerinfer
