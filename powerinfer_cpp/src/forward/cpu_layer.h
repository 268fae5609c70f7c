// A layer on the CPU: its parts, one after the other (walk.h).
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// The rows of Workspace::x, which are the residual stream, go through layer i.
void compute_layer(const Pass& p, int64_t i);

}  // namespace powerinfer
