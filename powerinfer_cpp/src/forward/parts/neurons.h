// The neurons that the CPU computes: of a part, of an expert, or what a device leaves of a part.
#pragma once

#include "forward/pass.h"
#include "ggml/neurons.h"

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

// A block of neurons, which is a feed-forward part or an expert of one, and its input.
struct NeuronBlock {
    const FeedForward& part;
    int64_t expert;  // 0 if the part has one block
    const ggml::Neurons& neurons;
    const float* x;  // [n, n_embd]; not needed to ask for neurons
    int64_t n;       // rows
    const ggml::NeuronMask& mask;
    int32_t next = -1;  // the block that the same rows go through next, if that is known
    // [n] or null: the segment of each row that is computed without the mask, too, for an audit; or
    // -1.
    const int32_t* audited = nullptr;
    // Of the only row, instead of a mask: the neurons that it may compute, ascending; or null.
    const int32_t* listed = nullptr;
    int64_t n_listed = 0;

    int32_t number() const { return part.number(expert); }
};

// The block as compute_neurons() takes it. neurons: those of the block, perhaps with another
// threshold or with biases of adapters.
inline NeuronBlock neurons_of(const BlockRows& in, const ggml::Neurons& neurons,
                              const ggml::NeuronMask& mask) {
    return {in.part, in.expert, neurons, in.x, in.n, mask};
}

// Asks for the neurons of a block that its only row may need, and of which memory lacks the first
// part, as far as there is room: before compute_neurons() of that block, in the same layer.
void request_neurons(const Pass& p, const NeuronBlock& in);
// The same while its predictor works, for one range of neurons after the other: the scores of these
// are known. Asks for none if there may not be room for all. compute_neurons() of the block comes
// next.
void request_scored(const Pass& p, const NeuronBlock& in, ggml::Segment scored);

// y [n, cols] = what all neurons of n <= kMostWhole experts of a part, each of which can_be_whole,
// send down for the row x. All are in memory, and nobody wants to know which fire.
void compute_whole(const Pass& p, const FeedForward& part, const ggml::Neurons* experts, int64_t n,
                   const float* x, float* y);

// y [n, n_embd] = what the neurons send down. Counts them, audits rows, and records what fired.
void compute_neurons(const Pass& p, const NeuronBlock& in, float* y);

}  // namespace powerinfer
