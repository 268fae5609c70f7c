// The rows with which a pass begins.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// Workspace::x [n, n_embd] = rows of the embedding table, plus the positions' rows for learned
// positions. And what layers need of tokens and positions: their own embeddings, RoPE's tables.
void embed(const Pass& p);

}  // namespace powerinfer
