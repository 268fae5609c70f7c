// Where the memory of a model goes: the parts that loader and sessions allocate.
#pragma once

#include <vector>

#include "names.h"
#include "weight_spec.h"

namespace powerinfer {

struct PlanPart {
    Tier tier;
    Part part;
    int32_t layer;  // -1: of none
    uint64_t bytes;
};

// Sum over all parts; ggml::kMostBytes for that many or more.
uint64_t total(const std::vector<PlanPart>& parts);

// Memory for the weights of a model, what fills up strips and cache lines included.
struct WeightPlan {
    std::vector<PlanPart> parts;
    uint64_t packed = 0, plain = 0;  // sizes of Model::packed and Model::plain
};

// Gives every weight its place. The weights have their tensors; parts of a bundle come one after
// the other.
WeightPlan plan_weights(std::vector<WeightSpec>& weights, bool use_mmap);

}  // namespace powerinfer
