#include "memory/states.h"

#include <algorithm>

namespace powerinfer {

StateLayout::StateLayout(const std::vector<Layer>& layers) {
    for (const Layer& layer : layers) {
        const StateSizes sizes = state_sizes(layer);
        state.push_back(n_state);
        entering.push_back(n_entering);
        // Each layer's state begins at a cache line.
        n_state += (sizes.state + 15) / 16 * 16;
        n_entering += sizes.entering;
    }
}

States::States(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& p)
    : layout_(layers) {
    if (!layout_) return;
    const int64_t n = 2 * p.n_seq + p.n_checkpoints;
    carver.take(slots_, {n, layout_.n_state});
    carver.take(entered_, {p.n_seq, kReplayedRows, layout_.n_entering});
    carver.take(owners_, {n});
    carver.take(free_, {n});
    if (!free_) return;  // counted only
    for (n_free_ = 0; n_free_ < n; n_free_++) free_[n_free_] = int32_t(n - 1 - n_free_);
}

int32_t States::take() {
    const int32_t slot = free_[--n_free_];
    owners_[slot] = 1;
    return slot;
}

void States::give_back(int32_t slot) {
    if (--owners_[slot] == 0) free_[n_free_++] = slot;
}

RowsBySequence::RowsBySequence(ggml::Carver& carver, int64_t max_rows, int64_t most_seq,
                               int64_t all_entering)
    : n_seq(most_seq), n_entering(all_entering) {
    carver.take(sequences, {n_seq});
    carver.take(rows, {max_rows});
    carver.take(count, {n_seq});
    carver.take(for_operators, {n_seq});
}

void RowsBySequence::group(const int32_t* seq, int64_t n_rows) {
    std::fill_n(count, n_seq, 0);
    for (int64_t t = 0; t < n_rows; t++) count[seq[t]]++;
    n = 0;
    int32_t first = 0;
    for (int32_t s = 0; s < n_seq; s++) {
        if (!count[s]) continue;
        sequences[n++] = {s, first, count[s]};
        const int32_t here = first;
        first += count[s];
        count[s] = here;
    }
    for (int64_t t = 0; t < n_rows; t++) rows[count[seq[t]]++] = int32_t(t);
}

const ggml::StateRows* RowsBySequence::at(int64_t at) const {
    for (int64_t i = 0; i < n; i++) {
        const SequenceRows& s = sequences[i];
        for_operators[i] = {rows + s.first, s.n, s.before ? s.before + at : nullptr, s.after + at};
    }
    return for_operators;
}

}  // namespace powerinfer
