// What families with gated delta nets share.
#pragma once

#include <vector>

#include "model/families/family.h"

namespace powerinfer {

// Which layers have a delta net.
std::vector<bool> recurrent_layers(const Model& m);
// The sizes of a delta net. tiled: see DeltaNet.
DeltaNet delta_net(const Model& m, bool tiled);
// Adds a delta net of these sizes to layer i, with its tensors and the norm before it; "": none.
void add_delta_net(Weights& w, int64_t i, const DeltaNet& sizes, const char* norm);

}  // namespace powerinfer
