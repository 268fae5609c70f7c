// States of sequences: what the layers have folded of all their positions (model/layer.h), in slots
// that hold those of all layers. A slot belongs to the sequences and checkpoints at that position;
// a call writes it while it is the only owner's, and into another one otherwise.
#pragma once

#include <vector>

#include "ggml/carver.h"
#include "ggml/recurrence.h"
#include "model/layer.h"
#include "powerinfer.h"

namespace powerinfer {

// Rows of a call, of one sequence, from which a draft's accepted rows can be folded once more
// without the model. Longer calls are no drafts, and not kept.
constexpr int64_t kReplayedRows = 16;

// Where the layers' states are in a slot, and what enters them in a row: floats.
struct StateLayout {
    StateLayout() = default;
    explicit StateLayout(const std::vector<Layer>& layers);

    std::vector<int64_t> state, entering;  // of each layer, from where on
    int64_t n_state = 0, n_entering = 0;   // of all layers

    explicit operator bool() const { return n_state > 0; }
    uint64_t bytes() const { return uint64_t(n_state) * sizeof(float); }
};

class States {
 public:
    States() = default;
    // params must be resolved. Two slots for each sequence, since a call keeps what was before it,
    // and one for each checkpoint. Nothing for models without states.
    States(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& params);

    explicit operator bool() const { return bool(layout_); }
    const StateLayout& layout() const { return layout_; }

    // A slot with one owner. There must be a free one.
    int32_t take();
    void share(int32_t slot) { owners_[slot]++; }
    void give_back(int32_t slot);
    bool is_shared(int32_t slot) const { return owners_[slot] > 1; }
    float* slot(int32_t i) const { return slots_ + i * layout_.n_state; }
    // What has entered in row i of a sequence's last call, i < kReplayedRows.
    float* entered(int32_t seq, int64_t i) const {
        return entered_ + (seq * kReplayedRows + i) * layout_.n_entering;
    }

 private:
    StateLayout layout_;
    float* slots_ = nullptr;     // [slots, n_state]
    float* entered_ = nullptr;   // [n_seq, kReplayedRows, n_entering]
    int32_t* owners_ = nullptr;  // [slots]
    int32_t* free_ = nullptr;    // [slots]
    int64_t n_free_ = 0;
};

// The rows of one sequence in a pass, for all its layers.
struct SequenceRows {
    int32_t seq = 0;
    int64_t first = 0, n = 0;       // of RowsBySequence::rows
    const float* before = nullptr;  // a slot of States; null: no positions before
    float* after = nullptr;         // the same, perhaps `before`
    float* entered = nullptr;       // where what enters is kept, [n, n_entering]; null: nowhere
};

// The rows of a pass by sequence. Empty for models without states.
struct RowsBySequence {
    RowsBySequence() = default;
    RowsBySequence(ggml::Carver& carver, int64_t max_rows, int64_t n_seq, int64_t n_entering);

    // Groups the n rows with these sequences. What a group's states are is left to be filled.
    void group(const int32_t* seq, int64_t n_rows);
    // The groups for an operator, whose part of a state begins `at` floats into a slot. Valid until
    // the next call.
    const ggml::StateRows* at(int64_t at) const;

    int64_t n = 0;
    SequenceRows* sequences = nullptr;         // [n_seq]
    int32_t* rows = nullptr;                   // [max_rows], those of a sequence ascending
    int32_t* count = nullptr;                  // [n_seq], scratch
    ggml::StateRows* for_operators = nullptr;  // [n_seq]
    int64_t n_seq = 0, n_entering = 0;
};

}  // namespace powerinfer
