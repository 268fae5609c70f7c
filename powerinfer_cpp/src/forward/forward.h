// The forward pass, from tokens to logits.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// Runs the model over the batch in p.work; its rows already have slots in the KV pages. Throws
// Error(cancelled) between layers if should_stop returns true.
void forward(const Pass& p);

}  // namespace powerinfer
