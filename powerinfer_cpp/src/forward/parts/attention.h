// Attention between products: queries, keys and values of x, and what the heads give.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// y = Wo . attention(Wq . x, Wk . x, Wv . x). x, y: [n, n_embd]. Stores the rows' keys and values,
// unless those of another layer are read.
void attention(const Pass& p, int64_t layer, const Attention& a, ggml::SharedInput& x, float* y);

// For each head of queries x [n, q_dim], or of keys x [n, k_dim]: its norm (if any), then RoPE; or
// RoPE first.
enum class HeadsOf { queries, keys };
void norm_and_rope(const Pass& p, const Attention& a, HeadsOf heads, float* x);

}  // namespace powerinfer
