#include "memory/pooled.h"

#include <algorithm>
#include <utility>

#include "ggml/status.h"

namespace powerinfer {

namespace {

const std::deque<TextStep>& steps_of(const Model& model, const pi_session_params& params) {
    return params.pooling == PI_POOLING_RANK ? model.ranker : model.dense;
}

}  // namespace

PooledTexts::PooledTexts(ggml::Carver& carver, const Model& model, const pi_session_params& params)
    : kind_(params.pooling == PI_POOLING_RANK ? model.config.rank_pooling
                                              : Pooling(params.pooling)),
      steps_(&steps_of(model, params)),
      n_embd_(model.config.n_embd),
      n_ubatch_(params.n_ubatch),
      place_(size_t(params.n_seq), -1) {
    int64_t widest = n_embd_;
    for (const TextStep& step : *steps_) widest = std::max(widest, step.w.rows);
    for (float** to : {&x_, &next_}) carver.take(*to, {params.n_seq, widest});
}

int64_t PooledTexts::width(const Model& model, const pi_session_params& params) {
    const auto& steps = steps_of(model, params);
    return steps.empty() ? model.config.n_embd : steps.back().w.rows;
}

void PooledTexts::begin(const std::vector<int64_t>& added) {
    rows_.clear();
    width_ = n_embd_;
    for (size_t i = 0; i < place_.size(); i++) {
        place_[i] = added[i] ? int32_t(rows_.size()) : -1;
        if (added[i]) rows_.push_back(0);
    }
    std::fill_n(x_, int64_t(rows_.size()) * n_embd_, 0.0f);
}

void PooledTexts::add(const Batch& batch) {
    for (int64_t t = 0; t < batch.n; t++) {
        const auto place = size_t(place_[size_t(batch.seq[t])]);
        const float* const row = batch.result[t];
        float* const x = x_ + int64_t(place) * n_embd_;
        const bool first = rows_[place]++ == 0;
        if (kind_ == Pooling::mean) {
            for (int64_t i = 0; i < n_embd_; i++) x[i] += row[i];
        } else if (kind_ == Pooling::last || first) {
            std::copy_n(row, n_embd_, x);
        }
    }
}

void PooledTexts::end(ggml::Context& context, ggml::InputBuffer& input) {
    for (size_t place = 0; kind_ == Pooling::mean && place < rows_.size(); place++) {
        float* const x = x_ + int64_t(place) * n_embd_;
        for (int64_t i = 0; i < n_embd_; i++) x[i] /= float(rows_[place]);
    }
    for (const TextStep& step : *steps_) apply(context, input, step);
}

void PooledTexts::apply(ggml::Context& context, ggml::InputBuffer& input, const TextStep& step) {
    const int64_t n = int64_t(rows_.size()), width = step.w.rows;
    for (int64_t t = 0; t < n; t += n_ubatch_) {  // as many as the buffer has room for
        const int64_t some = std::min(n_ubatch_, n - t);
        const ggml::Input x =
            input.prepare(context, x_ + t * width_, some, width_, step.w.quantised());
        ggml::matmul(context, x, {{step.w, next_ + t * width, step.bias}});
    }
    if (step.act == TextStep::Act::tanh) ggml::softcap(context, next_, 1, n * width);
    if (step.act == TextStep::Act::gelu) {
        ggml::activation(context, ggml::Activation::gelu, next_, n * width);
    }
    if (const auto& norm = step.norm; norm && norm->kind == Norm::layer) {
        ggml::layer_norm(context, next_, norm->weight, norm->bias, norm->eps, n, width, next_);
    } else if (norm) {
        ggml::rms_norm(context, next_, norm->weight, norm->eps, n, width, next_);
    }
    std::swap(x_, next_);
    width_ = width;
}

const float* PooledTexts::of(int32_t seq) const {
    const int32_t place = place_[size_t(seq)];
    return place < 0 ? nullptr : x_ + place * width_;
}

}  // namespace powerinfer
