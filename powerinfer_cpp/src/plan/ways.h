// What would let a model and its sessions fit the memory that may be used.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "plan/plan.h"

namespace powerinfer {

// Ways to make the model and its sessions smaller than the budget, the mildest first: those that
// suffice alone or, if none does, those that help. Last: a larger budget, if there is free memory;
// and what is slow, which keeps none of the others from the list.
// Empty if they fit. session: resolved.
std::vector<Way> find_ways(const Model& model, const pi_model_params& params,
                           const pi_session_params& session);

}  // namespace powerinfer
