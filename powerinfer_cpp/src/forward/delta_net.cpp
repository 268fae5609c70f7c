#include "forward/recurrent.h"
#include "ggml/status.h"

namespace powerinfer {

void project(const Pass&, const DeltaNet&, const float*) {
    throw ggml::Error(ggml::Code::unsupported, "layers of gated delta nets are not supported");
}

Entering entering(const Workspace&, const DeltaNet&) {
    return {};
}

void fold(const Folding&, const DeltaNet&) {}

void finish(const Pass&, const DeltaNet&, float*) {}

}  // namespace powerinfer
