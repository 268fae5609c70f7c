#include "record.h"

#include <algorithm>

#include "ggml/sizes.h"

namespace powerinfer {

namespace {

// Elements of each part.
struct Sizes {
    Sizes(const Config& c, const pi_session_params& p) {
        if (p.record == PI_RECORD_OFF) return;
        const int64_t neurons = std::max<int64_t>(1, c.n_expert) * c.n_ff;
        counts = ggml::size_product(c.n_layer, neurons);
        flags = ggml::size_product(p.n_ubatch, c.n_ff);
        const uint64_t rows = ggml::size_product(c.n_layer, p.n_batch);
        if (p.record >= PI_RECORD_FIRED) fired = ggml::size_product(rows, neurons);
        if (p.record >= PI_RECORD_INPUTS) inputs = ggml::size_product(rows, c.n_embd);
    }
    uint64_t bytes() const {
        return ggml::size_sum(ggml::size_product(counts, sizeof(uint64_t)),
                              ggml::size_product(inputs, sizeof(float)), flags, fired);
    }
    uint64_t counts = 0, inputs = 0, flags = 0, fired = 0;
};

}  // namespace

uint64_t Recorder::bytes(const Config& config, const pi_session_params& params) {
    return Sizes(config, params).bytes();
}

Recorder::Recorder(const Config& c, const pi_session_params& params)
    : n_embd_(c.n_embd),
      n_ff_(c.n_ff),
      n_blocks_(std::max<int64_t>(1, c.n_expert)),
      n_layer_(c.n_layer),
      n_batch_(params.n_batch) {
    const Sizes sizes(c, params);
    if (!sizes.flags) return;
    memory_ = ggml::Memory(sizes.bytes(), "record");
    uint8_t* at = memory_.data();
    const auto take = [&](auto& pointer, uint64_t count) {
        using T = std::remove_reference_t<decltype(*pointer)>;
        if (count) pointer = reinterpret_cast<T*>(at);
        at += count * sizeof(T);
    };
    take(counts_, sizes.counts);
    take(inputs_, sizes.inputs);
    take(flags_, sizes.flags);
    take(fired_, sizes.fired);
    std::fill_n(counts_, sizes.counts, 0);
}

void Recorder::begin(int64_t n) {
    n_rows_ = n;
    done_ = 0;
    if (!fired_ || n_blocks_ == 1) return;
    for (int64_t i = 0; i < n_layer_; i++) {
        std::fill_n(fired_ + i * n_batch_ * n_blocks_ * n_ff_, n * n_blocks_ * n_ff_, false);
    }
}

void Recorder::fired(int64_t layer, int64_t expert, int64_t row, const bool* flags) {
    uint64_t* counts = counts_ + (layer * n_blocks_ + expert) * n_ff_;
    for (int64_t i = 0; i < n_ff_; i++) counts[i] += flags[i];
    if (!fired_) return;
    const int64_t at = (layer * n_batch_ + done_ + row) * n_blocks_ + expert;
    std::copy_n(flags, n_ff_, fired_ + at * n_ff_);
}

void Recorder::input(int64_t layer, int64_t row, const float* x) {
    if (inputs_) std::copy_n(x, n_embd_, inputs_ + (layer * n_batch_ + done_ + row) * n_embd_);
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

}  // namespace powerinfer
