// Attention over latents (model/layer.h): what comes before and after ggml::attention().
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// Of the norms of latents, whatever a file says of the others: its models were trained with it.
constexpr float kLatentEps = 1e-6f;

// The batch's queries and keys, from x [n, n_embd]: q and k of the workspace.
void latent_queries_and_keys(const Pass& p, const Attention& a, ggml::SharedInput& x);

// Makes of the latents that heads have weighed, [n, attended_dim], what the heads give, [n,
// out_dim], in the same place.
void latent_results(const Pass& p, const Attention& a);

}  // namespace powerinfer
