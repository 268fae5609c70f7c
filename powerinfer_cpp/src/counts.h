// What the rows of a session cost: neurons, and bytes of weights and cache.
#pragma once

#include <cstdint>
#include <vector>

#include "batch.h"
#include "model.h"

namespace powerinfer {

// Of all rows since the session began.
struct Counts {
    int64_t rows = 0, kept = 0;               // kept: with logits or an embedding
    uint64_t kv_bytes = 0;                    // keys and values that attention read
    std::vector<ggml::NeuronCounts> neurons;  // [n_layer]
    std::vector<int64_t>
        predicted;  // [n_layer]: by so many rows (of an expert) a predictor was asked

    // Counts the rows of a micro-batch whose positions take position_bytes each in the cache.
    void add(const Model& model, const Batch& batch, int64_t position_bytes);
};

// Bytes by part of the model, as if every row had been alone in its call.
struct Traffic {
    uint64_t attention = 0, predictor = 0, ffn = 0, head = 0, kv = 0;
};

// embedding: kept rows have embeddings instead of logits, and need no head.
Traffic traffic(const Model& model, const Counts& counts, bool embedding);

}  // namespace powerinfer
