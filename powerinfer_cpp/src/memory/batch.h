// A micro-batch: the rows of one forward pass.
#pragma once

#include "ggml/attention.h"
#include "ggml/carver.h"

namespace powerinfer {

// n rows. A row is a token at a position of a sequence; its slot in the KV cache is already chosen.
// Rows of one sequence are in the order of their positions.
struct Batch {
    Batch() = default;
    Batch(ggml::Carver& carver, int64_t max_rows) {
        carver.take(token, {max_rows});
        carver.take(seq, {max_rows});
        carver.take(position, {max_rows});
        carver.take(slot, {max_rows});
        carver.take(pages, {max_rows});
        carver.take(result, {max_rows});
        carver.take(masked, {max_rows});
        carver.take(generated, {max_rows});
        carver.take(uploads_cold, {max_rows});
    }

    int64_t n = 0;
    int32_t* token = nullptr;
    int32_t* seq = nullptr;
    int32_t* position = nullptr;
    ggml::KvSlot* slot = nullptr;     // place of its keys and values
    const int32_t** pages = nullptr;  // of its sequence
    float** result = nullptr;         // for logits [n_vocab] or embedding [n_embd]; null: not kept
    bool* masked = nullptr;           // its FFN computes only neurons that predictors propose
    bool* generated = nullptr;        // its token was generated: audited if masked
    bool* uploads_cold = nullptr;     // a device computes the neurons of RAM, too (prompt_upload.h)
};

}  // namespace powerinfer
