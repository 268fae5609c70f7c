// Feed-forward blocks: one per layer, or experts chosen per row.
#pragma once

#include "pass.h"

namespace powerinfer {

// Does this activation leave exact zeros?
bool relu_family(ggml::Activation act);

// Chooses the experts of the batch's rows by x, [n, n_embd], and keeps them in the workspace.
void route(const Pass& p, const Layer& layer, const float* x);

// y = the layer's block, or its mixture of the experts that route() chose, of x, the norm of the
// residual stream in the workspace. x, y: [n, n_embd].
void feed_forward(const Pass& p, int64_t layer, const float* x, float* y);

}  // namespace powerinfer
