#include "plan/expected_uses.h"

#include <algorithm>

#include "ggml/math.h"

namespace powerinfer {

namespace {

// Of as many proposed neurons one fires, where nothing is known about a predictor.
constexpr float kProposed = 2;
// Without a profile the neurons of a model that skips some fire with rates that fall like this from
// the hottest to the coldest, a tenth of them on average.
constexpr double kHottest = 0.6, kFall = 6.2;

// Are there neurons that do not fire?
bool skips(const Model& m, const Ffn& f, int32_t sparse) {
    return relu_family(m.config.activation) ||
           (sparse == PI_SPARSE_EXACT && f.neurons.threshold > 0);
}

}  // namespace

ExpectedUses::ExpectedUses(const Model& model, int32_t sparse, bool predicted)
    : model_(model), sparse_(sparse), predicted_(predicted) {
    for (const WeightSpec& w : model.weights) {
        const auto* vector = std::get_if<Vector>(&w.target);
        if (vector && w.tensor && w.name.find(".ffn_rate") != std::string::npos) {
            rates_[vector->to] = &w;
        }
    }
}

std::vector<float> ExpectedUses::profile_of(const Ffn& f) const {
    std::vector<float> rates(size_t(f.neurons.n));
    if (f.rate) {
        std::copy_n(f.rate, rates.size(), rates.data());
    } else {
        const WeightSpec& w = *rates_.at(&f.rate);
        model_.file.files[size_t(w.tensor->file)]->read(w.file_offset(), rates.data(),
                                                        rates.size() * sizeof(float));
    }
    for (float& r : rates) r = r > 0 ? std::min(r, 1.0f) : 0;  // also of NaN
    return rates;
}

BlockUses ExpectedUses::of(const FeedForward& part, const Ffn& f,
                           const std::vector<int32_t>& rows) const {
    const size_t n = rows.size();
    BlockUses uses{std::vector<float>(n), std::vector<float>(n), 1};
    if (part.routed()) uses.chosen = double(part.n_used) / double(part.n_blocks());
    if (profiled(f)) {
        const std::vector<float> rate = profile_of(f);
        // An expert whose neuron fires is computed.
        if (part.routed()) uses.chosen = double(*std::max_element(rate.begin(), rate.end()));
        for (size_t i = 0; i < n; i++) uses.up_down[i] = rate[size_t(rows[i])];
    } else {
        const bool some = skips(model_, f, sparse_);
        for (size_t i = 0; i < n; i++) {
            const double place = (double(i) + 0.5) / double(n);
            uses.up_down[i] =
                float(uses.chosen * (some ? kHottest * ggml::exp_f64(-kFall * place) : 1));
        }
    }
    for (size_t i = 0; i < n; i++) {
        uses.gate[i] = predicted_ ? std::min(float(uses.chosen), kProposed * uses.up_down[i])
                                  : float(uses.chosen);
    }
    return uses;
}

}  // namespace powerinfer
