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

Recorder::Recorder(ggml::Carver& carver, const Model& model, const pi_session_params& p)
    : on_(p.record != PI_RECORD_OFF),
      sums_squares_(p.record == PI_RECORD_SQUARES),
      n_embd_(model.config.n_embd),
      n_batch_(p.n_batch) {
    for (const FeedForward* f : model.ffns) {
        if (f->layer >= model.config.n_layer) continue;  // that guesses (Model::nextn)
        const int64_t width = model.config.predict_from_normed ? f->columns(n_embd_) : n_embd_;
        parts_.push_back({f->n_ff, f->n_blocks(), width, n_neurons(), bits_size()});
        mixes_ = mixes_ || f->n_blocks() > 1;
    }
    if (sums_squares_) {
        plan_squares(carver, model);
        return;
    }
    if (p.record == PI_RECORD_BITS) {
        carver.take(bits_, {n_batch_, bits_size()});
        return;
    }
    if (p.record >= PI_RECORD_COUNTS) carver.take(counts_, {n_neurons()});
    if (p.record >= PI_RECORD_FIRED) carver.take(fired_, {n_batch_, n_neurons()});
    if (p.record == PI_RECORD_INPUTS) {
        carver.take(inputs_, {int64_t(parts_.size()), n_batch_, n_embd_});
    }
    if (p.record == PI_RECORD_NEEDS) {
        carver.take(proposed_, {n_neurons()});
        carver.take(computed_, {n_neurons()});
    }
}

void Recorder::plan_squares(ggml::Carver& carver, const Model& model) {
    for (const Layer& layer : model.layers) {
        const auto* a = layer.find<Attention>();
        const int64_t folded = state_sizes(layer).folded;
        squares_[PI_INPUT_ATTENTION].push_back({a || folded ? n_embd_ : 0});
        squares_[PI_INPUT_ATTENTION_OUTPUT].push_back({a ? a->out_dim() : folded});
    }
    for (const FeedForward* f : model.ffns) {
        if (f->layer >= model.config.n_layer) continue;
        squares_[PI_INPUT_FFN].push_back({f->columns(n_embd_), f->n_blocks()});
        squares_[PI_INPUT_FFN_DOWN].push_back({f->n_ff, f->n_blocks()});
    }
    squares_[PI_INPUT_HEAD].push_back({n_embd_});
    for (std::vector<Squares>& input : squares_) {
        for (Squares& at : input) {
            carver.take(at.sums, {at.blocks, at.width});
            carver.take(at.rows, {at.blocks});
        }
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
    if (!mixes_) return;
    if (bits_) std::fill_n(bits_, n * bits_size(), uint8_t(0));
    for (const Part& part : parts_) {
        if (fired_) std::fill_n(fired_of(part), n * part.n_blocks * part.n_ff, false);
    }
}

// A row sets the flags of the experts that it chose.
void Recorder::clear_needs() {
    if (!proposed_) return;
    std::fill_n(proposed_, n_neurons(), false);
    std::fill_n(computed_, n_neurons(), false);
}

void Recorder::advance(int64_t n) {
    done_ += n;
    if (done_ < n_rows_) clear_needs();
}

void Recorder::fired(ggml::Context& context, int64_t part, int64_t expert, const int32_t* rows,
                     int64_t n, const bool* flags) {
    if (!notes_neurons()) return;
    const Part& of = parts_[size_t(part)];
    const int64_t n_ff = of.n_ff;
    if (bits_) {
        context.threads.run(n, 16, [&](int64_t begin, int64_t end, int) {
            for (int64_t t = begin; t < end; t++) {
                const int64_t row = done_ + (rows ? rows[t] : t);
                pack(flags + t * n_ff, n_ff, bits_of(row, part, expert));
            }
        });
        return;
    }
    ggml::count_flags(context, flags, n, n_ff, counts_ + of.first + expert * n_ff);
    for (int64_t t = 0; fired_ && t < n; t++) {
        const int64_t row = done_ + (rows ? rows[t] : t);
        std::copy_n(flags + t * n_ff, n_ff, fired_of(of) + (row * of.n_blocks + expert) * n_ff);
    }
}

void Recorder::inputs(int64_t part, const float* x, int64_t n) {
    if (!inputs_ || !on_) return;
    const int64_t width = parts_[size_t(part)].width;
    std::copy_n(x, n * width, inputs_ + part * n_batch_ * n_embd_ + done_ * width);
}

void Recorder::add_squares(ggml::Context& context, int32_t input, int64_t at, int64_t expert,
                           const float* x, int64_t n) {
    const Squares& to = squares_[input][size_t(at)];
    ggml::add_squares(context, x, n, to.width, to.sums + expert * to.width);
    to.rows[expert] += uint64_t(n);
}

const double* Recorder::sums(int32_t input, int64_t at) const {
    const std::vector<Squares>& from = squares_[input];
    return from.empty() ? nullptr : from[size_t(at)].sums;
}

const uint64_t* Recorder::summed_rows(int32_t input, int64_t at) const {
    const std::vector<Squares>& from = squares_[input];
    return from.empty() ? nullptr : from[size_t(at)].rows;
}

bool* Recorder::needs(int64_t part, int64_t expert, const ggml::Candidates& proposed) {
    if (!proposed_ || !on_) return nullptr;
    const Part& of = parts_[size_t(part)];
    const int64_t first = of.first + expert * of.n_ff;
    for (int64_t s = 0; s < ggml::kSegments; s++) {
        const int32_t* ids = proposed.ids + ggml::segment_of(of.n_ff, s).begin;
        for (int32_t i = 0; i < proposed.count[s]; i++) proposed_[first + ids[i]] = true;
    }
    return computed_ + first;
}

uint8_t* Recorder::bits_of(int64_t row, int64_t part, int64_t expert) const {
    const Part& of = parts_[size_t(part)];
    return bits_ + row * bits_size() + of.bits + expert * of.block_bits();
}

const uint8_t* Recorder::bits(int64_t row, int64_t part) const {
    return bits_ && row >= 0 && row < n_rows_ ? bits_of(row, part, 0) : nullptr;
}

uint64_t* Recorder::counts(int64_t part) const {
    return counts_ ? counts_ + parts_[size_t(part)].first : nullptr;
}

const bool* Recorder::fired(int64_t part) const {
    return fired_ && n_rows_ ? fired_of(parts_[size_t(part)]) : nullptr;
}

const float* Recorder::input(int64_t part) const {
    return inputs_ && n_rows_ ? inputs_ + part * n_batch_ * n_embd_ : nullptr;
}

const bool* Recorder::proposed(int64_t part) const {
    return proposed_ && n_rows_ ? proposed_ + parts_[size_t(part)].first : nullptr;
}

const bool* Recorder::computed(int64_t part) const {
    return computed_ && n_rows_ ? computed_ + parts_[size_t(part)].first : nullptr;
}

}  // namespace powerinfer
