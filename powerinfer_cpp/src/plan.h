// The memory plan: what a model and a session take, known before a byte of weights is read. Loader
// and sessions allocate what stands here.
#pragma once

#include <string>
#include <vector>

#include "names.h"
#include "powerinfer.h"
#include "weight_spec.h"

namespace powerinfer {

struct Config;
struct Model;

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

// Session parameters with zeros replaced by what they stand for. Throws Error(argument) naming the
// parameter that is out of range.
pi_session_params resolve_session_params(const Config& config, pi_session_params params);

// Floats that are kept of a row: its logits or its embedding.
int64_t kept_width(const Config& config, const pi_session_params& params);

// What a session with these resolved parameters takes.
std::vector<PlanPart> session_parts(const Config& config, const pi_session_params& params);

// A model and a session together.
struct Plan {
    std::vector<PlanPart> parts;
    uint64_t budget = 0;
    int64_t n_ctx = 0;
};

Plan make_plan(const Model& model, const pi_session_params& params);

}  // namespace powerinfer
