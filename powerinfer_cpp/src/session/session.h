// A session: sequences of computed positions, and the threads and memory to compute more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "forward/device_forward.h"
#include "memory/pooled.h"
#include "memory/sequence.h"
#include "memory/workspace.h"
#include "model/adapters.h"
#include "model/model.h"
#include "model/rope.h"
#include "observe/audit.h"
#include "observe/counts.h"
#include "observe/recorder.h"
#include "plan/plan.h"
#include "sampler/sampler.h"

namespace powerinfer {

// What may follow a token.
struct Guess {
    int32_t token;
    float probability;
    const float* logits;  // [n_vocab], until the next call
};

class Session {
 public:
    // Reserves and allocates what session_parts plans. Throws Error(argument) for parameters out of
    // range, Error(memory) if the budget is too small.
    Session(std::shared_ptr<const Model> model, const pi_session_params& params);

    // Computes rows, see pi_eval_batch in powerinfer.h. Throws Error(argument | context |
    // cancelled); then the sequences are as before. Whether the pages suffice is known before
    // anything is computed.
    void eval(const pi_batch& batch);
    // Logits or embedding of a row of the last eval. Throws Error(argument) if it was not kept.
    const float* result(int32_t row) const;
    // What a sequence's rows of the last eval have become together. Throws Error(argument) if it
    // had none, or if the session does not pool.
    const float* pooled(int32_t seq) const;
    // tokens[i] = samplers[i]->sample(the logits of rows[i]), by all threads. Throws
    // Error(argument) before it uses a sampler, or Error(memory). No sampler may be given twice.
    void sample(Sampler* const* samplers, const int32_t* rows, int32_t n, int32_t* tokens);

    // See pi_guess in powerinfer.h. Throws Error(argument | context | unsupported | cancelled).
    Guess guess(int32_t seq, int32_t token);

    // Operations on sequences. Each throws Error(argument) if the sequence or the positions do not
    // exist. truncate and copy throw Error(unsupported) and change nothing if the model has states
    // and that of the n positions is not known, or if what they see was given up (Sequences::find);
    // or Error(device), after which the state of what they were to change is not known.
    int64_t length(int32_t seq) const;
    // See pi_sequence_rest in powerinfer.h.
    void rest(int32_t seq, bool rests);
    // Positions that fit the pages which no sequence has.
    int64_t free_positions() const { return sequences_.free_pages() * kKvPage; }
    void truncate(int32_t seq, int64_t n);
    void copy(int32_t from, int32_t to, int64_t n);
    // The number of leading positions that equal what these n rows would give in an empty sequence,
    // and up to which the sequence can be cut. generated: null for a prompt.
    int64_t match(int32_t seq, const int32_t* token, const bool* generated, int64_t n) const;
    // Changes the weights that the next rows are computed with. Scales of 0 count as no adapter. If
    // something changes, every sequence becomes empty, and results are not kept. Throws
    // Error(argument | unsupported | memory), and changes nothing.
    void set_adapters(std::vector<ScaledAdapter> adapters);
    // Encodes the parameters that change the results of prompt rows, or of generated ones. Saved
    // states contain it.
    uint64_t numerics_key(bool generated) const;
    Sequences& sequences() { return sequences_; }
    const Sequences& sequences() const { return sequences_; }
    const DeviceForward* device() const { return device_.get(); }  // null without one

    // Calls the caller's log; level as in pi_log_callback.
    void log(int32_t level, const std::string& message) const;

    const std::shared_ptr<const Model> model;
    const pi_session_params params;  // resolved
    ggml::Context context;
    Counts counts;
    Recorder record;
    Audit audit;
    const std::vector<RopeTable>& ropes() const { return ropes_; }

 private:
    RowReaders rows_on_disk() const { return {token_rows_.get(), own_rows_.get()}; }
    // Is a row masked by predictors?
    bool masks(bool generated) const;
    // Does the device compute all its neurons, and get those of RAM for it (prompt_upload.h)?
    bool uploads_cold(bool generated) const;
    // Throws, or gives the number of rows of each sequence, whose rest ends.
    std::vector<int64_t> check(const pi_batch& batch);
    // The end of a pass that may go up to `end`: where it has to be cut for a checkpoint.
    int32_t end_of_pass(const pi_batch& batch, int32_t begin, int32_t end) const;
    // `to` becomes the first n positions of `from`, with their state. Throws Error(unsupported) if
    // that is not known, and changes nothing.
    void restate(int32_t from, int32_t to, int64_t n);
    void require_sequence(int32_t seq) const;
    void require_token(int32_t token) const;
    void require_type(int32_t type) const;
    void require_room(int64_t n_positions) const;
    // Fills the micro-batch of the workspace with rows [begin, end) of a call.
    void fill(Batch& batch, const pi_batch& given, int32_t begin, int32_t end);
    // Rows that a call of n rows computes at once. More than n_ubatch if the cache of neurons on
    // the disk has memory for them, since each neuron is read once for all: `bytes` of it.
    int32_t rows_at_once(int32_t n, uint64_t& bytes) const;

    const bool predicted_;  // some layer uses its predictor
    Reservation reserved_, device_reserved_;
    std::vector<ggml::Memory> memory_;  // one per part of the plan
    ggml::PinnedMemory pinned_;         // the first results, which a device copies there
    Sequences sequences_;
    Workspace work_;
    Adapters adapters_;
    bool told_of_exact_ = false;    // that adapters keep predictors from being used
    std::vector<RopeTable> ropes_;  // of Config::ropes
    std::unique_ptr<TableRows> token_rows_, own_rows_;  // see RowReaders; null: not on the disk
    std::unique_ptr<DeviceForward> device_;             // after what it uses; null without a device
    float* results_ = nullptr;                          // [n_logits, result width]
    PooledTexts pooled_;                                // of sessions that pool
    std::vector<int32_t> result_at_;  // slot of each row of the last eval, -1: not kept
    int32_t n_kept_ = 0;              // in the running eval
};

}  // namespace powerinfer
