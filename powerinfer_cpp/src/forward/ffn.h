// The feed-forward network (FFN) of a layer: one block, or a mixture of experts that a router
// chooses for each row.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// The threshold of a layer's activation in this mode (pi_sparse). On a smooth activation a
// threshold (CATS) changes the result, so only `exact` applies it.
float activation_threshold(const ggml::Neurons& neurons, int32_t sparse);

// Chooses the experts of the batch's rows from x, [n, n_embd], and stores them in the workspace.
void route(const Pass& p, const Router& router, const float* x);

// For routers that run long before feed_forward(): requests from the disk what the chosen experts
// are known to need after route().
void request_experts(const Pass& p, const FeedForward& experts);

// y = FFN(x), by the part's only block or by the experts that route() chose. x: the normed residual
// stream. x, y: [n, n_embd].
void feed_forward(const Pass& p, const FeedForward& part, const float* x, float* y);

}  // namespace powerinfer
