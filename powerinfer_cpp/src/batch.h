// A micro-batch: rows that one forward pass computes, and what is wanted of them.
#pragma once

#include "ggml/carver.h"
#include "ggml/ops.h"

namespace powerinfer {

// n rows. A row is a token at a position of a sequence, whose slot is chosen already; rows of one
// sequence stand in order of their positions.
struct Batch {
    Batch() = default;
    Batch(ggml::Carver& carver, int64_t max_rows) {
        carver.take(token, {max_rows});
        carver.take(position, {max_rows});
        carver.take(slot, {max_rows});
        carver.take(pages, {max_rows});
        carver.take(result, {max_rows});
        carver.take(masked, {max_rows});
        carver.take(generated, {max_rows});
    }

    int64_t n = 0;
    int32_t* token = nullptr;
    int32_t* position = nullptr;
    ggml::KvSlot* slot = nullptr;     // where its keys and values go
    const int32_t** pages = nullptr;  // of its sequence
    float** result =
        nullptr;             // room for its logits [n_vocab] or embedding [n_embd]; null: not kept
    bool* masked = nullptr;  // its feed-forward blocks compute only what predictors propose
    // The caller said that its token was generated: such rows are audited where they are masked.
    bool* generated = nullptr;
};

}  // namespace powerinfer
