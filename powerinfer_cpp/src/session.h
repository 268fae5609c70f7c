// A session: KV cache, threads and scratch for computing rows of one model.
#pragma once

#include <memory>
#include <vector>

#include "audit.h"
#include "kv_cache.h"
#include "model.h"
#include "plan.h"
#include "record.h"
#include "rope.h"
#include "traffic.h"

namespace powerinfer {

// One row of a batch: a token at a position of a sequence.
struct Row {
    int32_t token;
    int32_t seq;
    int64_t pos;
    bool masked;    // its FFN computes only what a predictor proposes
    float* result;  // its logits [n_vocab] or embedding [n_embd], null when nobody asked
};

// Intermediate results of up to n_ubatch rows; names are those of the formulas in forward.cpp.
struct Scratch {
    Scratch() = default;
    Scratch(const Config& config, int64_t n_ubatch, int threads);
    static uint64_t bytes(const Config& config, int64_t n_ubatch, int threads);

    float *x, *normed;             // [rows, n_embd]: residual stream, its norm
    float *out, *ffn_out;          // [rows, n_embd]: what attention and FFN add to it
    float *q, *attended;           // [rows, q_dim]
    float *k, *v;                  // [rows, kv_dim]
    float *gate, *up;              // [rows, n_ff]
    float* cos_sin;                // [rows, n_rot]
    float *router, *share;         // [rows, n_expert]: scores, and what each chosen expert counts
    float *gathered, *expert_out;  // [rows, n_embd]: rows of one expert, and its results
    std::vector<ggml::AttentionRow> attention_rows;
    ggml::InputBuffer input;
    float *hidden = nullptr, *score = nullptr;  // [rows, rank], [rows, n_ff]: of predictors
    float* gathered_residual = nullptr;         // [rows, n_embd], beside `gathered`
    Masking *masking = nullptr, *gathered_masking = nullptr;  // [rows]
    bool* masked = nullptr;                                   // [rows]
    ggml::NeuronScratch neurons;
    ggml::SketchScratch sketch;

 private:
    ggml::Memory memory_;
};

struct Session {
    // Refuses what does not fit: Error(argument), Error(memory).
    Session(std::shared_ptr<const Model> model, const pi_session_params& params);

    // Computes rows; pi_eval in powerinfer.h says how. Throws Error(argument | context |
    // cancelled), and then no row counts.
    void eval(const int32_t* token, const int32_t* seq, const bool* keep, int32_t n);
    // Logits or embedding of a row of the last eval; Error(argument) when it was not kept.
    const float* result(int32_t row) const;
    int64_t result_width() const { return kept_width(model->config, params); }
    void truncate(int32_t seq, int64_t n);
    // A sequence as bytes (state.cpp): how many, writing them, and taking them in. Error(format)
    // for bytes of another model, Error(context) for more positions than there are.
    uint64_t state_size(int32_t seq) const;
    void save_state(int32_t seq, uint8_t* out) const;
    void load_state(int32_t seq, const uint8_t* data, uint64_t size);
    // Throws Error(cancelled) when the caller's should_stop says so.
    void check_stop() const;
    // Tells the caller's log; level as pi_log_callback has it.
    void log(int32_t level, const std::string& message) const;

    std::shared_ptr<const Model> model;
    pi_session_params params;  // resolved
    Reservation reserved;      // for everything below
    ggml::Context context;
    KvCache kv;
    Scratch scratch;
    RopeTable rope;
    std::vector<ggml::NeuronCounts> counts;  // per layer, since the session began
    RowCounts row_counts;
    Recorder record;
    Audit audit;

 private:
    // Is a row masked when its sequence has n rows in this call?
    bool masks(int64_t n) const;
    void check(const int32_t* token, const int32_t* seq, const bool* keep, int32_t n) const;
    ggml::Memory results_;            // [n_logits, result_width()]
    std::vector<int32_t> result_at_;  // slot of each row of the last eval, -1: not kept
};

// Runs the model over 1..n_ubatch rows whose positions follow what the KV cache holds
// (forward.cpp).
void forward(Session& session, const Row* rows, int64_t n);

}  // namespace powerinfer
