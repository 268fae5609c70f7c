// A block of weights with its rows of a batch: what the steps of a feed-forward part share.
#pragma once

#include "forward/neurons.h"
#include "model/layer.h"

namespace powerinfer {

// A block of weights, which is a whole FFN or one expert, and the rows that it computes.
struct BlockRows {
    const FeedForward& part;
    int64_t expert;         // 0 if the part has only one block
    const float* x;         // [n, n_embd], normed
    const float* residual;  // [n, n_embd], before the norm: PowerInfer's predictors read it
    const int32_t* rows;    // [n], indices of the rows in the batch; null: all rows
    int64_t n;
    int64_t scored = 0;      // index of the first row's scores in the workspace
    bool predicted = false;  // the scores have been computed

    const Ffn& w() const { return part.blocks[size_t(expert)]; }
    int64_t row(int64_t t) const { return rows ? rows[t] : t; }
    int32_t number() const { return part.number(expert); }
};

// The block as compute_neurons() takes it. neurons: those of the block, perhaps with another
// threshold or with biases of adapters.
inline NeuronBlock neurons_of(const BlockRows& in, const ggml::Neurons& neurons,
                              const ggml::NeuronMask& mask) {
    return {in.part, in.expert, neurons, in.x, in.n, mask};
}

}  // namespace powerinfer
