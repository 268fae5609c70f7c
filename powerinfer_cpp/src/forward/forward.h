// The forward pass, from tokens to logits.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// Runs the model over the batch in p.work; its rows already have slots in the KV pages. Throws
// Error(cancelled) between layers if should_stop returns true.
void forward(const Pass& p);

// Runs the layer that guesses tokens over the only row of the batch, whose place in the KV pages
// is its own. row [n_embd]: what the head read of the row before. logits: [n_vocab].
void guess(const Pass& p, const float* row, float* logits);

}  // namespace powerinfer
