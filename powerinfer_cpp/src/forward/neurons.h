// Feed-forward blocks whose neurons are partly on the disk.
#pragma once

#include "forward/pass.h"
#include "ggml/neurons.h"

namespace powerinfer {

// One block and its input. A block is a feed-forward part, or an expert of one, by its number
// among all blocks. Where a device has neurons of the part, they are not counted among the block's.
struct StoredBlock {
    int64_t part;  // FeedForward::index
    int32_t block;
    int32_t next;  // the block that the same rows go through next, if that is known; or -1
    const ggml::Neurons& neurons;
    const float* x;  // [n, n_embd]; not needed to ask for neurons
    int64_t n;       // rows
    const ggml::NeuronMask& mask;
    // [n] or null: the segment of each row that is computed without the mask, too, for an audit; or
    // -1.
    const int32_t* audited = nullptr;
};

// Asks for the neurons of a block that its only row may need, and of which memory lacks the first
// part, as far as there is room: before stored_ffn() of that block, in the same layer.
void request_neurons(const Pass& p, const StoredBlock& in);
// The same while its predictor works, for one range of neurons after the other: the scores of these
// are known. Asks for none if there may not be room for all. stored_ffn() of the block comes next.
void request_scored(const Pass& p, const StoredBlock& in, ggml::Segment scored);

// y [n, n_embd], with the bits that ggml::rows_ffn gives. fired: [n, n_ff] or null. Returns what
// the audits found.
ggml::AuditCounts stored_ffn(const Pass& p, const StoredBlock& in, float* y,
                             ggml::NeuronCounts& counts, bool* fired);

}  // namespace powerinfer
