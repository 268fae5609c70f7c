// A micro-batch: the rows of one forward pass.
#pragma once

#include "ggml/attention.h"
#include "ggml/carver.h"

namespace powerinfer {

// n rows. A row is a token at a position of a sequence; its places in the KV cache are already
// chosen, one for each class of layers (kv_layout.h). Rows of one sequence are in the order of
// their positions.
struct Batch {
    Batch() = default;
    // n_classes: of keys and values.
    Batch(ggml::Carver& carver, int64_t most_rows, int64_t n_classes) : max_rows(most_rows) {
        carver.take(token, {max_rows});
        carver.take(seq, {max_rows});
        carver.take(position, {max_rows});
        carver.take(end, {max_rows});
        carver.take(type, {max_rows});
        carver.take(slot, {n_classes, max_rows});
        carver.take(pages, {n_classes, max_rows});
        carver.take(result, {max_rows});
        carver.take(masked, {max_rows});
        carver.take(generated, {max_rows});
        carver.take(uploads_cold, {max_rows});
    }

    // The places of a class's keys and values, and the pages of its sequence in it: of each row.
    ggml::KvSlot* slots_of(int64_t kind) const { return slot + kind * max_rows; }
    const int32_t** pages_of(int64_t kind) const { return pages + kind * max_rows; }

    int64_t n = 0, max_rows = 0;
    int32_t* token = nullptr;
    int32_t* seq = nullptr;
    int32_t* position = nullptr;
    int32_t* end = nullptr;           // positions of its sequence, those of this pass too
    int32_t* type = nullptr;          // row of Model::token_types
    ggml::KvSlot* slot = nullptr;     // [n_classes, max_rows]
    const int32_t** pages = nullptr;  // [n_classes, max_rows]
    float** result = nullptr;         // for logits [n_vocab] or embedding [n_embd]; null: not kept
    bool* masked = nullptr;           // its FFN computes only neurons that predictors propose
    bool* generated = nullptr;        // its token was generated: audited if masked
    bool* uploads_cold = nullptr;     // a device computes the neurons of RAM, too (prompt_upload.h)
};

}  // namespace powerinfer
