// The parts of memory that the loader and sessions allocate, and the locations of weights.
#pragma once

#include <vector>

#include "base/names.h"
#include "base/placement.h"
#include "weights/weight_spec.h"

namespace powerinfer {

struct PlanPart {
    Tier tier;
    Part part;
    int32_t layer;  // -1: not of one layer
    uint64_t bytes;
};

// Sum over the parts of one tier; ggml::kMostBytes if it does not fit 64 bits.
uint64_t total(const std::vector<PlanPart>& parts, Tier tier);

// Memory for the weights of a model, including padding of strips and cache lines.
struct WeightPlan {
    std::vector<PlanPart> parts;
    uint64_t packed = 0, plain = 0;  // sizes of Model::packed and Model::plain
    uint64_t device = 0;             // size of DeviceModel::weights
};

// Sets the location of every weight. Tensors must be resolved, and the parts of a bundle must be
// consecutive. split: what a device holds; null: there is none. stored: what stays on the disk of
// that which the device does not have.
WeightPlan plan_weights(std::vector<WeightSpec>& weights, bool use_mmap, const DeviceSplit* split,
                        OnDisk stored);

}  // namespace powerinfer
