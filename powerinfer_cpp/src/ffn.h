// Feed-forward blocks: one per layer, or experts chosen per row.
#pragma once

#include "pass.h"

namespace powerinfer {

// Is this activation exactly 0 for negative inputs?
bool relu_family(ggml::Activation act);

// Chooses the experts of the batch's rows from x, [n, n_embd], and stores them in the workspace.
void route(const Pass& p, const Layer& layer, const float* x);

// y = the layer's block, or its mixture of the experts chosen by route(), applied to x, the normed
// residual stream. x, y: [n, n_embd].
void feed_forward(const Pass& p, int64_t layer, const float* x, float* y);

}  // namespace powerinfer
