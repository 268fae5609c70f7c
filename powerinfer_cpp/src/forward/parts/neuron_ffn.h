// Feed-forward blocks in neuron rows: only the neurons that fire are computed.
#pragma once

#include "forward/parts/neurons.h"

namespace powerinfer {

// The threshold of a layer's activation in this mode (pi_sparse). On a smooth activation a
// threshold (CATS) changes the result, so only `exact` applies it.
float activation_threshold(const ggml::Neurons& neurons, int32_t sparse);

// y [n, n_embd] = what the block gives for its rows.
void neuron_ffn(const Pass& p, const BlockRows& in, float* y);

}  // namespace powerinfer
