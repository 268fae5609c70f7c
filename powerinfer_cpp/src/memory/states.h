// States of sequences: what the layers have folded of all their positions (model/layer.h), in slots
// that hold those of all layers. A slot belongs to the sequences and checkpoints at that position;
// a call writes it while it is the only owner's, and into another one otherwise. RAM has the slots
// of its layers, and a device those of its own, under the same numbers.
#pragma once

#include <vector>

#include "ggml/carver.h"
#include "ggml/recurrence.h"
#include "memory/device_kv.h"
#include "model/layer.h"
#include "powerinfer.h"

namespace powerinfer {

// Rows of a call, of one sequence, from which a draft's accepted rows can be folded once more
// without the model. Longer calls are no drafts, and not kept.
constexpr int64_t kReplayedRows = 16;

// Where the layers' states are in a slot, and what enters them in a row: floats.
struct StateLayout {
    StateLayout() = default;
    explicit StateLayout(const std::vector<Layer>& layers);  // of all
    // Of layers [begin, end), or of the others.
    static StateLayout of(const std::vector<Layer>& layers, int64_t begin, int64_t end);
    static StateLayout without(const std::vector<Layer>& layers, int64_t begin, int64_t end);

    std::vector<int64_t> state, entering;  // of each layer, from where on; -1: not here
    int64_t n_state = 0, n_entering = 0;   // of all layers

    explicit operator bool() const { return n_state > 0; }
    bool has(size_t layer) const { return state[layer] >= 0; }
    uint64_t bytes() const { return uint64_t(n_state) * sizeof(float); }

 private:
    template <typename F>
    StateLayout(const std::vector<Layer>& layers, const F& is_here);
};

// Slots of states, and what has entered them, in memory of one kind: RAM or a device.
struct StateSlots {
    StateSlots() = default;
    // params must be resolved. Two slots for each sequence, since a call keeps what was before it,
    // and one for each checkpoint.
    StateSlots(ggml::Carver& carver, const StateLayout& layout, const pi_session_params& params);

    static int64_t count(const pi_session_params& params) {
        return 2 * params.n_seq + params.n_checkpoints;
    }
    float* slot(int32_t i) const { return slots_ + i * layout.n_state; }
    // What has entered in row i of a sequence's last call, i < kReplayedRows.
    float* entered(int32_t seq, int64_t i) const {
        return entered_ + (seq * kReplayedRows + i) * layout.n_entering;
    }

    StateLayout layout;

 private:
    float* slots_ = nullptr;    // [slots, n_state]
    float* entered_ = nullptr;  // [n_seq, kReplayedRows, n_entering]
};

class States {
 public:
    States() = default;
    // params must be resolved. A device has layers [begin, end), RAM the others. Nothing for models
    // without states.
    States(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& params,
           int64_t begin, int64_t end);
    void attach(DeviceKv* device) { device_ = device; }

    explicit operator bool() const { return bool(all_); }
    uint64_t bytes() const { return all_.bytes(); }            // of a slot, of all layers
    const StateLayout& layout() const { return ram_.layout; }  // in RAM

    // A slot with one owner. There must be a free one.
    int32_t take();
    void share(int32_t slot) { owners_[slot]++; }
    void give_back(int32_t slot);
    bool is_shared(int32_t slot) const { return owners_[slot] > 1; }
    // Of RAM.
    float* slot(int32_t i) const { return ram_.slot(i); }
    float* entered(int32_t seq, int64_t i) const { return ram_.entered(seq, i); }
    // The states of all layers, in their order: bytes().
    void read(int32_t slot, uint8_t* out) const;
    void write(int32_t slot, const uint8_t* from) const;

 private:
    // Calls f(floats in RAM, bytes) for those before and behind the device's, and between them
    // device(bytes).
    template <typename F, typename G>
    void each_part(int32_t slot, const F& f, const G& device) const;

    StateLayout all_;
    StateSlots ram_;
    int64_t before_ = 0;  // floats of a slot in RAM, of layers before the device's
    DeviceKv* device_ = nullptr;
    int32_t* owners_ = nullptr;  // [slots]
    int32_t* free_ = nullptr;    // [slots]
    int64_t n_free_ = 0;
};

// The rows of one sequence in a pass, for all its layers.
struct SequenceRows {
    int32_t seq = 0;
    int64_t first = 0, n = 0;  // of RowsBySequence::rows
    // Slots of States; from -1: no positions before. They may be the same.
    int32_t from = -1, to = -1;
    int64_t kept = -1;  // the row of the call with which `entered` begins; -1: nothing is kept
    // In RAM: `from` (null: zeros), `to`, and where what enters is kept, [n, n_entering]; or null.
    const float* before = nullptr;
    float* after = nullptr;
    float* entered = nullptr;
};

// The rows of a pass by sequence. Empty for models without states.
struct RowsBySequence {
    RowsBySequence() = default;
    RowsBySequence(ggml::Carver& carver, int64_t max_rows, int64_t n_seq);

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
    int64_t n_seq = 0;
};

}  // namespace powerinfer
