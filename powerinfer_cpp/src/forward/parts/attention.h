// Attention between products: queries, keys and values of x, and what the heads give.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// y = Wo . attention(Wq . x, Wk . x, Wv . x). x, y: [n, n_embd]. Stores the rows' keys and values,
// unless those of another layer are read.
void attention(const Pass& p, int64_t layer, const Attention& a, ggml::SharedInput& x, float* y);

// For each head of queries or keys x [n, n_head * head_dim]: its norm (if any), then RoPE; or RoPE
// first.
void norm_and_rope(const Pass& p, const Attention& a, const float* weight, int64_t n_head,
                   float* x);

}  // namespace powerinfer
