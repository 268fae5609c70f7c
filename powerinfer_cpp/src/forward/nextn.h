// The layer that guesses tokens (Model::nextn). Its keys and values of a position are those of the
// token there and of the row before, so that the cache has them at the same place as those of the
// other layers.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// Keeps what later guesses need of the rows of the batch, which have gone through all layers.
void keep_for_guesses(const Pass& p);

// Runs the layer that guesses tokens over the only row of the batch, whose place in the KV pages
// is its own. row [n_embd]: what the head read of the row before. logits: [n_vocab].
void guess(const Pass& p, const float* row, float* logits);

}  // namespace powerinfer
