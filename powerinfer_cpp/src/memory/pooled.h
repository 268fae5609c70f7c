// Vectors of texts: what the rows of each sequence in a call become together, and what its scores
// are made of.
#pragma once

#include <vector>

#include "ggml/carver.h"
#include "ggml/context.h"
#include "memory/batch.h"
#include "model/model.h"

namespace powerinfer {

class PooledTexts {
 public:
    PooledTexts() = default;
    // params must be resolved, and ask for pooling.
    PooledTexts(ggml::Carver& carver, const Model& model, const pi_session_params& params);

    // Floats of a text's result.
    static int64_t width(const Model& model, const pi_session_params& params);

    // A call whose rows are of the sequences with added[i] > 0: begin(), add() for the rows of each
    // pass in their order, whose embeddings are at Batch::result, and end(). The sums of a mean are
    // floats, added row by row, so that bits depend on the text alone.
    void begin(const std::vector<int64_t>& added);
    void add(const Batch& batch);
    void end(ggml::Context& context, ggml::InputBuffer& input);
    // The result [width] of a sequence; null: the last call had no row of it.
    const float* of(int32_t seq) const;

 private:
    void apply(ggml::Context& context, ggml::InputBuffer& input, const TextStep& step);

    Pooling kind_ = Pooling::mean;
    const std::deque<TextStep>* steps_ = nullptr;
    int64_t n_embd_ = 0, n_ubatch_ = 0;
    int64_t width_ = 0;                     // of x_
    std::vector<int32_t> place_;            // of each sequence in x_; -1: no row
    std::vector<int64_t> rows_;             // that were added, by place
    float *x_ = nullptr, *next_ = nullptr;  // [n_seq, widest]
};

}  // namespace powerinfer
