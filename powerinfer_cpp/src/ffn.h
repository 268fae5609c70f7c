// Feed-forward blocks: one per layer, or experts chosen per row.
#pragma once

#include "session.h"

namespace powerinfer {

// What a feed-forward block computes on: n rows.
struct FfnInput {
    const float* x;          // [n, n_embd], normed
    const float* residual;   // [n, n_embd], before the norm: what PowerInfer's predictors see
    const Masking* masking;  // [n]
    int64_t n;
    bool* fired = nullptr;  // [n, n_ff], set where a neuron fires; null: nobody asks
};

// Does this activation leave exact zeros?
bool relu_family(ggml::Activation act);

// y[t] = down . (act(gate . x[t]) * up . x[t]); without a gate down . act(up . x[t]). y: [n,
// n_embd].
void ffn(Session& s, int64_t layer, const Ffn& weights, const FfnInput& in, float* y);

// Chooses the experts of n rows of x, [n, n_embd], and keeps them in the scratch.
void route(Session& s, const Layer& layer, const float* x, int64_t n);

// y[t] = sum over the chosen experts, in ascending order, of share * ffn(expert, x[t]).
void mixture(Session& s, int64_t layer, const FfnInput& in, float* y);

}  // namespace powerinfer
