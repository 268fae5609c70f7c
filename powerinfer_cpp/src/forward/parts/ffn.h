// The feed-forward network (FFN) of a layer: one block, or a mixture of experts that a router
// chooses for each row.
#pragma once

#include "forward/parts/experts.h"
#include "forward/pass.h"

namespace powerinfer {

// y = FFN(x), by the part's only block or by the experts that route() chose, and those of the part
// beside it. x: the normed residual stream. x, y: [n, n_embd].
void feed_forward(const Pass& p, const FeedForward& part, ggml::SharedInput& x, float* y,
                  const Beside& beside = {});

}  // namespace powerinfer
