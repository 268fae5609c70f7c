// The memory plan: what a model and a session take, known before a byte of weights is read.
#pragma once

#include <string>
#include <vector>

#include "model.h"

namespace powerinfer {

struct Plan {
    std::vector<pi_plan_part> parts;
    uint64_t budget = 0;
    int64_t n_ctx = 0;
};

// Session parameters with zeros replaced by what they stand for. Throws Error(argument) naming the
// parameter that is out of range.
pi_session_params resolve_session_params(const Config& config, pi_session_params params);

// Floats that are kept of a row: its logits or its embedding.
int64_t kept_width(const Config& config, const pi_session_params& params);

// Of resolved parameters.
uint64_t kv_bytes(const Config& config, const pi_session_params& params);
uint64_t scratch_bytes(const Config& config, const pi_session_params& params);

Plan make_plan(const Model& model, const pi_session_params& params);

}  // namespace powerinfer
