// What a session keeps of its feed-forward blocks for statistics and for training predictors.
#pragma once

#include "ggml/carver.h"
#include "ggml/context.h"
#include "model.h"

namespace powerinfer {

// How often each neuron fired since the recording began and, as far as the session's `record` asks,
// which ones did in the last call and what a predictor of them sees. A neuron fires when what it
// sends down is not zero; neurons of experts that a row did not choose do not.
class Recorder {
 public:
    Recorder() = default;  // records nothing
    // Of resolved parameters.
    Recorder(ggml::Carver& carver, const Config& config, const pi_session_params& params);

    // A call of n rows begins; n rows of it are done; the call failed.
    void begin(int64_t n);
    void advance(int64_t n) { done_ += n; }
    void fail() { n_rows_ = 0; }
    // Of n rows of the batch that is being computed (null: all of them, in order): what fired of a
    // block (expert 0 where there is one), [n, n_ff]; what its predictor sees, [n, n_embd].
    void fired(ggml::Context& context, int64_t layer, int64_t expert, const int32_t* rows,
               int64_t n, const bool* flags);
    void inputs(int64_t layer, const float* x, int64_t n);

    // Of a layer, null where it was not asked for: uint64 [n_expert, n_ff] since the recording
    // began; and of the last call's rows bool [rows, n_expert, n_ff], float [rows, n_embd].
    uint64_t* counts(int64_t layer) const;
    const bool* fired(int64_t layer) const;
    const float* input(int64_t layer) const;

 private:
    int64_t n_embd_ = 0, n_ff_ = 0, n_blocks_ = 0, n_layer_ = 0, n_batch_ = 0;
    int64_t n_rows_ = 0, done_ = 0;  // of the call, and those before the ones being computed
    uint64_t* counts_ = nullptr;     // [n_layer, n_blocks, n_ff]
    float* inputs_ = nullptr;        // [n_layer, n_batch, n_embd]
    bool* fired_ = nullptr;          // [n_layer, n_batch, n_blocks, n_ff]
};

}  // namespace powerinfer
