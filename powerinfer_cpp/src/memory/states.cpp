#include "memory/states.h"

#include <algorithm>
#include <cstring>

namespace powerinfer {

template <typename F>
StateLayout::StateLayout(const std::vector<Layer>& layers, const F& is_here) {
    for (size_t i = 0; i < layers.size(); i++) {
        const StateSizes sizes = state_sizes(layers[i]);
        const bool here = is_here(int64_t(i));
        state.push_back(here ? n_state : -1);
        entering.push_back(here ? n_entering : -1);
        if (!here) continue;
        // Each layer's state begins at a cache line.
        n_state += (sizes.state + 15) / 16 * 16;
        n_entering += sizes.entering;
    }
}

StateLayout::StateLayout(const std::vector<Layer>& layers)
    : StateLayout(layers, [](int64_t) { return true; }) {}

StateLayout StateLayout::of(const std::vector<Layer>& layers, int64_t begin, int64_t end) {
    return {layers, [=](int64_t i) { return i >= begin && i < end; }};
}

StateLayout StateLayout::without(const std::vector<Layer>& layers, int64_t begin, int64_t end) {
    return {layers, [=](int64_t i) { return i < begin || i >= end; }};
}

StateSlots::StateSlots(ggml::Carver& carver, const StateLayout& of, const pi_session_params& p)
    : layout(of) {
    carver.take(slots_, {count(p), of.n_state});
    carver.take(entered_, {p.n_seq, kReplayedRows, of.n_entering});
}

States::States(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& p,
               int64_t begin, int64_t end)
    : all_(layers) {
    if (!all_) return;
    ram_ = StateSlots(carver, StateLayout::without(layers, begin, end), p);
    before_ = begin < end ? all_.state[size_t(begin)] : all_.n_state;
    const int64_t n = StateSlots::count(p);
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

// Layers of a device are adjacent, so their states are, too.
template <typename F, typename G>
void States::each_part(int32_t slot, const F& f, const G& device) const {
    const auto bytes = [](int64_t floats) { return size_t(floats) * sizeof(float); };
    const int64_t here = ram_.layout.n_state;
    if (before_) f(ram_.slot(slot), bytes(before_));
    if (here < all_.n_state) device(bytes(all_.n_state - here));
    if (before_ < here) f(ram_.slot(slot) + before_, bytes(here - before_));
}

void States::read(int32_t slot, uint8_t* out) const {
    each_part(
        slot,
        [&](const float* from, size_t bytes) {
            std::memcpy(out, from, bytes);
            out += bytes;
        },
        [&](size_t bytes) {
            device_->read_state(slot, out);
            out += bytes;
        });
}

void States::write(int32_t slot, const uint8_t* from) const {
    each_part(
        slot,
        [&](float* to, size_t bytes) {
            std::memcpy(to, from, bytes);
            from += bytes;
        },
        [&](size_t bytes) {
            device_->write_state(slot, from);
            from += bytes;
        });
}

RowsBySequence::RowsBySequence(ggml::Carver& carver, int64_t max_rows, int64_t most_seq)
    : n_seq(most_seq) {
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
        SequenceRows& rows_of = sequences[n++];
        rows_of = {};
        rows_of.seq = s;
        rows_of.first = first;
        rows_of.n = count[s];
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
