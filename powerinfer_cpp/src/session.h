// A session: sequences of computed positions, and threads and memory for computing more of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "audit.h"
#include "counts.h"
#include "model.h"
#include "plan.h"
#include "record.h"
#include "rope.h"
#include "sequence.h"
#include "workspace.h"

namespace powerinfer {

class Session {
 public:
    // Takes memory for what it plans (session_parts); refuses what does not fit: Error(argument),
    // Error(memory).
    Session(std::shared_ptr<const Model> model, const pi_session_params& params);

    // Computes rows; pi_eval_batch in powerinfer.h says how. Throws Error(argument | context |
    // cancelled), and then no row counts.
    void eval(const pi_batch& batch);
    // Logits or embedding of a row of the last eval; Error(argument) when it was not kept.
    const float* result(int32_t row) const;

    // Positions of a sequence; each throws Error(argument) for sequences or counts that are not
    // there.
    int64_t length(int32_t seq) const;
    void truncate(int32_t seq, int64_t n);
    void copy(int32_t from, int32_t to, int64_t n);
    // How many of the first n positions hold what these rows would give, computed from the first
    // position on. generated: null for a prompt.
    int64_t match(int32_t seq, const int32_t* token, const bool* generated, int64_t n) const;
    // How rows of a prompt, or generated ones, are computed, as a number that states carry: what of
    // the parameters changes results.
    uint64_t way(bool generated) const;
    Sequences& sequences() { return sequences_; }
    const Sequences& sequences() const { return sequences_; }

    // Tells the caller's log; level as pi_log_callback has it.
    void log(int32_t level, const std::string& message) const;

    const std::shared_ptr<const Model> model;
    const pi_session_params params;  // resolved
    ggml::Context context;
    Counts counts;
    Recorder record;
    Audit audit;

 private:
    // Is a row masked by predictors?
    bool masks(bool generated) const;
    void check(const pi_batch& batch) const;
    void require_sequence(int32_t seq) const;
    // Rows [begin, end) of a call, as the micro-batch of the workspace.
    void fill(const pi_batch& batch, int32_t begin, int32_t end);

    const int cores_;       // more threads than these would wait for each other's turns
    const bool predicted_;  // some layer's predictor is listened to
    Reservation reserved_;
    std::vector<ggml::Memory> memory_;  // of each part of the plan
    Sequences sequences_;
    Workspace work_;
    RopeTable rope_;
    float* results_ = nullptr;        // [n_logits, result width]
    std::vector<int32_t> result_at_;  // slot of each row of the last eval, -1: not kept
    int32_t n_kept_ = 0;              // of the eval that is running
};

}  // namespace powerinfer
