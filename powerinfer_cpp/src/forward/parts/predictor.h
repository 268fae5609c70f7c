// Predictors say which neurons of a block may fire, before its weights are read.
#pragma once

#include "forward/parts/neurons.h"

namespace powerinfer {

// The predictor score below which neurons are skipped.
float score_threshold(const FeedForward& part, const pi_session_params& params);

// Counts the rows that a predictor masks.
int64_t n_masked(const Pass& p, const BlockRows& in);

// The mask says which neurons may be computed for each row: all of them, unless a predictor masks
// the row. Runs the predictor if the block has no scores yet.
ggml::NeuronMask mask_of(const Pass& p, const BlockRows& in);

// Chooses the rows to audit. An audit computes one segment of neurons without the mask, to count
// the firing neurons that the predictor missed. It changes no result. Returns the segment of each
// row, -1 for none, or null if no row is audited.
const int32_t* choose_audits(const Pass& p, const BlockRows& in, const ggml::NeuronMask& mask);

}  // namespace powerinfer
