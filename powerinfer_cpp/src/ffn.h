// Feed-forward blocks: one per layer, or experts chosen per row.
#pragma once

#include "session.h"

namespace powerinfer {

// y[t] = down . (act(gate . x[t]) * up . x[t]), n rows; without a gate down . act(up . x[t]).
// x, y: [n, n_embd], apart from each other.
void ffn(Session& s, const Ffn& weights, const float* x, int64_t n, float* y);

// Chooses the experts of n rows of x, [n, n_embd], and keeps them in the scratch.
void route(Session& s, const Layer& layer, const float* x, int64_t n);

// y[t] = sum over the chosen experts, in ascending order, of share * ffn(expert, x[t]).
void mixture(Session& s, const Layer& layer, const float* x, int64_t n, float* y);

}  // namespace powerinfer
