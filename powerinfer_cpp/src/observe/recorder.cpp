#include "observe/recorder.h"

#include <algorithm>
#include <cstring>

#include "ggml/ops.h"

namespace powerinfer {

namespace {

// Eight flags (0 or 1) become a byte: the product moves flag i, which is bit 8 i, to bit 56 + i.
void pack(const bool* flags, int64_t n, uint8_t* bits) {
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t eight = 0;
        std::memcpy(&eight, flags + i, size_t(std::min<int64_t>(8, n - i)));
        bits[i / 8] = uint8_t(eight * 0x0102040810204080 >> 56);
    }
}

}  // namespace

Recorder::Recorder(ggml::Carver& carver, const Config& c, const pi_session_params& p)
    : on_(p.record != PI_RECORD_OFF),
      n_embd_(c.n_embd),
      n_ff_(c.n_ff),
      n_blocks_(std::max<int64_t>(1, c.n_expert)),
      n_layer_(c.n_layer),
      n_batch_(p.n_batch) {
    if (p.record == PI_RECORD_BITS) {
        carver.take(bits_, {n_batch_, n_layer_, n_blocks_, (n_ff_ + 7) / 8});
        return;
    }
    if (p.record == PI_RECORD_SQUARES) {
        squares_[PI_INPUT_ATTENTION] = {c.n_embd};
        squares_[PI_INPUT_ATTENTION_OUTPUT] = {c.q_dim()};
        squares_[PI_INPUT_FFN] = {c.n_embd, n_blocks_};
        squares_[PI_INPUT_FFN_DOWN] = {c.n_ff, n_blocks_};
        squares_[PI_INPUT_HEAD] = {c.n_embd};
        for (Squares& input : squares_) {
            carver.take(input.sums, {n_layer_, input.blocks, input.width});
            carver.take(input.rows, {n_layer_, input.blocks});
        }
        return;
    }
    if (p.record >= PI_RECORD_COUNTS) carver.take(counts_, {n_layer_, n_blocks_, n_ff_});
    if (p.record >= PI_RECORD_FIRED) carver.take(fired_, {n_layer_, n_batch_, n_blocks_, n_ff_});
    if (p.record == PI_RECORD_INPUTS) carver.take(inputs_, {n_layer_, n_batch_, n_embd_});
    if (p.record == PI_RECORD_NEEDS) {
        carver.take(proposed_, {n_layer_, n_blocks_, n_ff_});
        carver.take(computed_, {n_layer_, n_blocks_, n_ff_});
    }
}

void Recorder::turn(bool on) {
    on_ = on;
    n_rows_ = 0;
}

void Recorder::begin(int64_t n) {
    n_rows_ = on_ ? n : 0;
    done_ = 0;
    if (!on_) return;
    clear_needs();
    if (n_blocks_ == 1) return;
    if (bits_) std::fill_n(bits_, n * bits_size(), uint8_t(0));
    if (!fired_) return;
    for (int64_t i = 0; i < n_layer_; i++) {
        std::fill_n(fired_ + i * n_batch_ * n_blocks_ * n_ff_, n * n_blocks_ * n_ff_, false);
    }
}

// A row sets the flags of the experts that it chose.
void Recorder::clear_needs() {
    if (!proposed_) return;
    std::fill_n(proposed_, n_layer_ * n_blocks_ * n_ff_, false);
    std::fill_n(computed_, n_layer_ * n_blocks_ * n_ff_, false);
}

void Recorder::advance(int64_t n) {
    done_ += n;
    if (done_ < n_rows_) clear_needs();
}

void Recorder::fired(ggml::Context& context, int64_t layer, int64_t expert, const int32_t* rows,
                     int64_t n, const bool* flags) {
    if (!notes_neurons()) return;
    if (bits_) {
        context.threads.run(n, 16, [&](int64_t begin, int64_t end, int) {
            for (int64_t t = begin; t < end; t++) {
                const int64_t row = done_ + (rows ? rows[t] : t);
                pack(flags + t * n_ff_, n_ff_, bits_of(row, layer, expert));
            }
        });
        return;
    }
    ggml::count_flags(context, flags, n, n_ff_, counts_ + (layer * n_blocks_ + expert) * n_ff_);
    for (int64_t t = 0; fired_ && t < n; t++) {
        const int64_t row = layer * n_batch_ + done_ + (rows ? rows[t] : t);
        std::copy_n(flags + t * n_ff_, n_ff_, fired_ + (row * n_blocks_ + expert) * n_ff_);
    }
}

void Recorder::inputs(int64_t layer, const float* x, int64_t n) {
    if (!inputs_ || !on_) return;
    std::copy_n(x, n * n_embd_, inputs_ + (layer * n_batch_ + done_) * n_embd_);
}

void Recorder::add_squares(ggml::Context& context, int32_t input, int64_t layer, int64_t expert,
                           const float* x, int64_t n) {
    const Squares& to = squares_[input];
    const int64_t block = layer * to.blocks + expert;
    ggml::add_squares(context, x, n, to.width, to.sums + block * to.width);
    to.rows[block] += uint64_t(n);
}

const double* Recorder::sums(int32_t input, int64_t layer) const {
    const Squares& from = squares_[input];
    return from.sums ? from.sums + layer * from.blocks * from.width : nullptr;
}

const uint64_t* Recorder::summed_rows(int32_t input, int64_t layer) const {
    const Squares& from = squares_[input];
    return from.rows ? from.rows + layer * from.blocks : nullptr;
}

bool* Recorder::needs(int64_t layer, int64_t expert, const ggml::Candidates& proposed) {
    if (!proposed_ || !on_) return nullptr;
    bool* flags = proposed_ + (layer * n_blocks_ + expert) * n_ff_;
    for (int64_t s = 0; s < ggml::kSegments; s++) {
        const int32_t* ids = proposed.ids + ggml::segment_of(n_ff_, s).begin;
        for (int32_t i = 0; i < proposed.count[s]; i++) flags[ids[i]] = true;
    }
    return computed_ + (layer * n_blocks_ + expert) * n_ff_;
}

uint8_t* Recorder::bits_of(int64_t row, int64_t layer, int64_t expert) const {
    const int64_t block = (row * n_layer_ + layer) * n_blocks_ + expert;
    return bits_ + block * ((n_ff_ + 7) / 8);
}

const uint8_t* Recorder::bits(int64_t row) const {
    return bits_ && row >= 0 && row < n_rows_ ? bits_of(row, 0, 0) : nullptr;
}

uint64_t* Recorder::counts(int64_t layer) const {
    return counts_ ? counts_ + layer * n_blocks_ * n_ff_ : nullptr;
}

const bool* Recorder::fired(int64_t layer) const {
    return fired_ && n_rows_ ? fired_ + layer * n_batch_ * n_blocks_ * n_ff_ : nullptr;
}

const float* Recorder::input(int64_t layer) const {
    return inputs_ && n_rows_ ? inputs_ + layer * n_batch_ * n_embd_ : nullptr;
}

const bool* Recorder::proposed(int64_t layer) const {
    return proposed_ && n_rows_ ? proposed_ + layer * n_blocks_ * n_ff_ : nullptr;
}

const bool* Recorder::computed(int64_t layer) const {
    return computed_ && n_rows_ ? computed_ + layer * n_blocks_ * n_ff_ : nullptr;
}

}  // namespace powerinfer
