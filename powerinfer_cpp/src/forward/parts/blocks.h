// Feed-forward blocks that are matrices: a dense FFN, a shared expert, or a group of experts. All
// of a group are computed together, with as many products in a region as do not wait for each
// other.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// A block and its rows: y = down . (act(gate . x) * up . x), without a gate down . act(up . x).
struct FfnBlock {
    const FeedForward& part;
    int64_t expert;  // 0 if the part has only one block
    NeuronSource::Matrices w;
    ggml::Input x = {};             // [n, cols], in 8 bits if wants_q8()
    const int32_t* rows = nullptr;  // [n], indices of the rows in the batch; null: all rows
    float* y = nullptr;             // [n, cols]

    // Waits for the weights, which n rows will use until the end of this.
    FfnBlock(const Pass& p, const FeedForward& part, int64_t expert, int64_t n);
    const Ffn& of_model() const { return part.blocks[size_t(expert)]; }
    // Does it read its input in 8 bits? Does anyone read it as floats, too?
    bool wants_q8() const;
    bool wants_floats(const Pass& p) const;
};

// Computes blocks, those of a part one after the other. Their values, n_ff for each row, fit
// FfnRows together. y of a part with FeedForward::share is weighed by it.
void compute_blocks(const Pass& p, const std::vector<FfnBlock>& blocks);

// y[t] *= sigmoid(score[t]), [n, cols].
void weigh(const Pass& p, const float* score, int64_t n, int64_t cols, float* y);

}  // namespace powerinfer
