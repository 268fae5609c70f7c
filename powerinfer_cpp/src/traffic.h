// How many bytes of weights and cache the rows of a session have read.
#pragma once

#include <cstdint>
#include <vector>

namespace powerinfer {

struct Session;
struct Row;

// What rows did beside their neurons, since the session began.
struct RowCounts {
    int64_t rows = 0, kept = 0;  // kept: with logits or an embedding
    uint64_t kv_bytes = 0;       // keys and values that attention read
    std::vector<int64_t>
        predicted;  // [n_layer]: by so many rows (of an expert) a predictor was asked

    // Counts n rows of a session.
    void add(const Session& session, const Row* row, int64_t n);
};

// Bytes by part of the model, as if every row had been alone in its call.
struct Traffic {
    uint64_t attention = 0, predictor = 0, ffn = 0, head = 0, kv = 0;
};

Traffic traffic(const Session& session);

}  // namespace powerinfer
