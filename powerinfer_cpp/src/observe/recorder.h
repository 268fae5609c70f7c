// Records a session's feed-forward blocks, for statistics and for training predictors.
#pragma once

#include "ggml/carver.h"
#include "ggml/context.h"
#include "ggml/neurons.h"
#include "model/model.h"

namespace powerinfer {

// Records how often each neuron fired in the session and, depending on `record`, which neurons
// fired in the last call and the inputs of the predictors; or the squared inputs of matrices. A
// neuron fires if the value that
// multiplies its down row is not zero. Neurons of experts that a row did not choose do not fire,
// and those that a predictor masks are not known to.
class Recorder {
 public:
    Recorder() = default;  // records nothing
    // params must be resolved.
    Recorder(ggml::Carver& carver, const Config& config, const pi_session_params& params);

    // Off: nothing is recorded, and nothing is known of the last call.
    void turn(bool on);
    bool on() const { return on_; }
    bool notes_neurons() const { return on_ && !squares_[0].sums; }
    // begin: a call of n rows begins. advance: n more rows of it are done. fail: the call failed.
    void begin(int64_t n);
    void advance(int64_t n);
    void fail() { n_rows_ = 0; }
    // For n rows of the current batch (rows: their indices; null: all, in order): which neurons of
    // a block fired, [n, n_ff] (expert 0 if there is one block); and the input of the layer's
    // predictor, [n, n_embd].
    void fired(ggml::Context& context, int64_t layer, int64_t expert, const int32_t* rows,
               int64_t n, const bool* flags);
    void inputs(int64_t layer, const float* x, int64_t n);
    // n rows of an input (a pi_input) [n, width] are added to the sums.
    void squares(ggml::Context& context, int32_t input, int64_t layer, int64_t expert,
                 const float* x, int64_t n) {
        if (squares_[0].sums && on_) add_squares(context, input, layer, expert, x, n);
    }
    bool sums_squares() const { return squares_[0].sums && on_; }
    // The neurons that a row alone in its batch proposed. Returns where the kernel notes the ones
    // that it computes, [n_ff]; null if this is not recorded.
    bool* needs(int64_t layer, int64_t expert, const ggml::Candidates& proposed);

    // For one layer, null if not recorded: counts [n_blocks, n_ff] since the session began; for the
    // rows of the last call, fired [rows, n_blocks, n_ff] and input [rows, n_embd].
    uint64_t* counts(int64_t layer) const;
    const bool* fired(int64_t layer) const;
    const float* input(int64_t layer) const;
    // Sums of squares [experts, width], and rows [experts]; null if not recorded.
    const double* sums(int32_t input, int64_t layer) const;
    const uint64_t* summed_rows(int32_t input, int64_t layer) const;
    // Which neurons of a row of the last call fired, as bits: bits_size() bytes, see pi_fired_bits.
    const uint8_t* bits(int64_t row) const;
    int64_t bits_size() const { return n_layer_ * n_blocks_ * ((n_ff_ + 7) / 8); }
    // For the last row: [n_blocks, n_ff].
    const bool* proposed(int64_t layer) const;
    const bool* computed(int64_t layer) const;

 private:
    // Of an input: for each layer and expert [width] sums, and the number of rows.
    struct Squares {
        int64_t width = 0, blocks = 1;  // blocks: experts of a layer
        double* sums = nullptr;
        uint64_t* rows = nullptr;
    };
    void add_squares(ggml::Context& context, int32_t input, int64_t layer, int64_t expert,
                     const float* x, int64_t n);
    void clear_needs();
    uint8_t* bits_of(int64_t row, int64_t layer, int64_t expert) const;

    bool on_ = false;
    int64_t n_embd_ = 0, n_ff_ = 0, n_blocks_ = 0, n_layer_ = 0, n_batch_ = 0;
    int64_t n_rows_ = 0, done_ = 0;  // rows of the call, and those of them that are done
    uint64_t* counts_ = nullptr;     // [n_layer, n_blocks, n_ff]
    float* inputs_ = nullptr;        // [n_layer, n_batch, n_embd]
    bool* fired_ = nullptr;          // [n_layer, n_batch, n_blocks, n_ff]
    uint8_t* bits_ = nullptr;        // [n_batch, n_layer, n_blocks, (n_ff + 7) / 8]
    Squares squares_[PI_INPUT_HEAD + 1];
    bool *proposed_ = nullptr, *computed_ = nullptr;  // [n_layer, n_blocks, n_ff]
};

}  // namespace powerinfer
