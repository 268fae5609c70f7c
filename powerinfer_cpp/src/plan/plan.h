// The memory plan: what a model and a session will take, computed before weights are read.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "powerinfer.h"
#include "weights/weight_plan.h"

namespace powerinfer {

// Replaces zeros in session parameters by the values that they stand for. Throws Error(argument)
// naming the parameter that is out of range.
pi_session_params resolve_session_params(const Model& model, pi_session_params params);

// The session that a model keeps room for, resolved.
pi_session_params kept_session(const Model& model, const pi_model_params& params);

// Resolved for a model, whose plan may allow fewer rows at once.
pi_session_params session_params_for(const Model& model, const pi_session_params& params);

// Rows of a call whose results are kept: of one pass, where they are pooled.
int64_t kept_rows(const pi_session_params& params);

// Floats kept per row: logits or an embedding.
int64_t kept_width(const Config& config, const pi_session_params& params);

// Bytes of a session's Workspace.
uint64_t scratch_bytes(const Model& model, const pi_session_params& params, bool stored);

// What a session with these resolved parameters takes, if a device has the last n_device layers;
// stored: the neurons stay on the disk.
std::vector<PlanPart> session_parts(const Model& model, const pi_session_params& params,
                                    int64_t n_device, bool stored);

// Bytes of a tier that all sessions take which a model leaves room for: n_sessions like `session`,
// which is resolved, and the one beside them. n_device, stored: as in session_parts.
uint64_t sessions_bytes(const Model& model, const pi_model_params& params,
                        const pi_session_params& session, int64_t n_device, bool stored, Tier tier);

// Something that would make a plan fit, and the bytes of RAM that are needed then (ways.h).
struct Way {
    const char* what;  // as pi_way::what
    int64_t value;
    uint64_t bytes;
};

// A model and a session together.
struct Plan {
    std::vector<PlanPart> parts;
    uint64_t budget = 0;       // of RAM
    uint64_t vram_budget = 0;  // 0: no device
    int64_t n_ctx = 0;
    // If the neurons stay on the disk: bytes of those that memory has room for, and of the others;
    // and of the bundled file that has to be written first.
    uint64_t cached = 0, stored = 0, to_write = 0;
    double read_seconds = 0, hits = 0, token_seconds = 0;  // see StoragePlan
    uint64_t twice = 0;
    int64_t n_layer = 0, device_layers = 0;   // of the model; those that a device has
    bool device_head = false;                 // does it have the head?
    LeftToCpu left;                           // why not more
    int64_t experts = 0, device_experts = 0;  // of all layers; those that a device has room for
    std::vector<Way> ways;                    // if it does not fit
};

Plan make_plan(const Model& model, const pi_session_params& params);

}  // namespace powerinfer
