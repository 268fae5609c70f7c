// Several residual streams beside each other (StreamMix in model/layer.h).
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// y [n, n_embd] = what n rows of the streams are mixed to. scores [n, n_streams]: for
// ggml::add_to_streams; null: nothing will be added.
void read_streams(const Pass& p, const StreamMix& mix, const float* x, int64_t n, float* y,
                  float* scores);

}  // namespace powerinfer
