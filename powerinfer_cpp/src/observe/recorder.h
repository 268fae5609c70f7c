// Records a session's feed-forward blocks, for statistics and for training predictors.
#pragma once

#include <vector>

#include "ggml/carver.h"
#include "ggml/context.h"
#include "ggml/neurons.h"
#include "model/model.h"

namespace powerinfer {

// Records how often each neuron fired in the session and, depending on `record`, which neurons
// fired in the last call and the inputs of the predictors; or the squared inputs of matrices. A
// neuron fires if the value that multiplies its down row is not zero. Neurons of experts that a row
// did not choose do not fire, and those that a predictor masks are not known to.
//
// Feed-forward parts of the model are called by their numbers (FeedForward::index).
class Recorder {
 public:
    Recorder() = default;  // records nothing
    // params must be resolved.
    Recorder(ggml::Carver& carver, const Model& model, const pi_session_params& params);

    // Off: nothing is recorded, and nothing is known of the last call.
    void turn(bool on);
    bool on() const { return on_; }
    bool notes_neurons() const { return on_ && !sums_squares_; }
    // begin: a call of n rows begins. advance: n more rows of it are done. fail: the call failed.
    void begin(int64_t n);
    void advance(int64_t n);
    void fail() { n_rows_ = 0; }
    // For n rows of the current batch (rows: their indices; null: all, in order): which neurons of
    // a block fired, [n, n_ff] (expert 0 if there is one block); and the input of the part's
    // predictor, [n, width].
    void fired(ggml::Context& context, int64_t part, int64_t expert, const int32_t* rows, int64_t n,
               const bool* flags);
    void inputs(int64_t part, const float* x, int64_t n);
    // n rows of an input (a pi_input) [n, width] are added to the sums. at: the layer, of
    // feed-forward parts their number, of the head 0.
    void squares(ggml::Context& context, int32_t input, int64_t at, int64_t expert, const float* x,
                 int64_t n) {
        if (sums_squares()) add_squares(context, input, at, expert, x, n);
    }
    bool sums_squares() const { return on_ && sums_squares_; }
    // The neurons that a row alone in its batch proposed. Returns where the kernel notes the ones
    // that it computes, [n_ff]; null if this is not recorded.
    bool* needs(int64_t part, int64_t expert, const ggml::Candidates& proposed);

    // For one part, null if not recorded: counts [n_blocks, n_ff] since the session began; for the
    // rows of the last call, fired [rows, n_blocks, n_ff] and input [rows, width].
    uint64_t* counts(int64_t part) const;
    const bool* fired(int64_t part) const;
    const float* input(int64_t part) const;
    // Sums of squares [experts, width], and rows [experts]; null if not recorded.
    const double* sums(int32_t input, int64_t at) const;
    const uint64_t* summed_rows(int32_t input, int64_t at) const;
    // Which neurons of a part fired for a row of the last call, as bits: bits_of_part() bytes, see
    // pi_fired_bits.
    const uint8_t* bits(int64_t row, int64_t part) const;
    int64_t bits_of_part(int64_t part) const {
        const Part& of = parts_[size_t(part)];
        return of.bits_end() - of.bits;
    }
    int64_t bits_size() const { return parts_.empty() ? 0 : parts_.back().bits_end(); }
    // For the last row: [n_blocks, n_ff].
    const bool* proposed(int64_t part) const;
    const bool* computed(int64_t part) const;

 private:
    // A feed-forward part: its sizes, and what the parts before it take.
    struct Part {
        int64_t n_ff, n_blocks;
        int64_t width;  // of the predictor's input
        int64_t first;  // neuron
        int64_t bits;   // byte of a row's bits
        int64_t block_bits() const { return (n_ff + 7) / 8; }
        int64_t end() const { return first + n_blocks * n_ff; }
        int64_t bits_end() const { return bits + n_blocks * block_bits(); }
    };
    // Of an input of a layer or part: [blocks, width] sums, and rows [blocks].
    struct Squares {
        int64_t width = 0, blocks = 1;
        double* sums = nullptr;
        uint64_t* rows = nullptr;
    };
    void plan_squares(ggml::Carver& carver, const Model& model);
    void add_squares(ggml::Context& context, int32_t input, int64_t at, int64_t expert,
                     const float* x, int64_t n);
    void clear_needs();
    int64_t n_neurons() const { return parts_.empty() ? 0 : parts_.back().end(); }
    // Of all rows of a call: [n_batch, n_blocks, n_ff].
    bool* fired_of(const Part& part) const { return fired_ + n_batch_ * part.first; }
    uint8_t* bits_of(int64_t row, int64_t part, int64_t expert) const;

    bool on_ = false, sums_squares_ = false;
    bool mixes_ = false;  // there are rows that do not compute all blocks
    int64_t n_embd_ = 0, n_batch_ = 0;
    int64_t n_rows_ = 0, done_ = 0;  // rows of the call, and those of them that are done
    std::vector<Part> parts_;
    uint64_t* counts_ = nullptr;  // [n_neurons]
    float* inputs_ = nullptr;     // [parts, n_batch, n_embd], of which a part uses its width
    bool* fired_ = nullptr;       // [n_batch * n_neurons], part after part
    uint8_t* bits_ = nullptr;     // [n_batch, bits_size]
    std::vector<Squares> squares_[PI_INPUT_HEAD + 1];
    bool *proposed_ = nullptr, *computed_ = nullptr;  // [n_neurons]
};

}  // namespace powerinfer
