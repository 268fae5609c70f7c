// The forward pass: tokens in, logits out.
#pragma once

#include "pass.h"

namespace powerinfer {

// Runs the model over the batch of p.work, whose rows have their slots in the KV pages. Throws
// Error(cancelled) between layers when the caller's should_stop says so.
void forward(const Pass& p);

}  // namespace powerinfer
