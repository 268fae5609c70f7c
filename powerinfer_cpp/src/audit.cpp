#include "audit.h"

#include <algorithm>

#include "ggml/status.h"

namespace powerinfer {

namespace {

// Enough firings to judge by: chance moves a share of 512 by 2 points.
constexpr int64_t kEnough = 512;
// Of the recall that the file promises; texts differ from those of the training.
constexpr double kOfTrained = 0.8;

}  // namespace

bool is_predicted(const Layer& l, const Ffn& f, int32_t sparse) {
    if (!f.fc1 && !f.signs) return false;
    if (sparse == PI_SPARSE_PREDICTOR) return true;
    return sparse == PI_SPARSE_AUTO && (l.recall == 0 || l.recall >= kRecallFloor);
}

bool is_predicted(const Model& model, int32_t sparse) {
    return std::any_of(model.layers.begin(), model.layers.end(), [&](const Layer& l) {
        // Experts of a layer have predictors together.
        return is_predicted(l, l.experts.empty() ? l.ffn : l.experts[0], sparse);
    });
}

void Audit::add(int64_t layer, const ggml::AuditCounts& counts) {
    layers_[size_t(layer)].fired += counts.fired;
    layers_[size_t(layer)].found += counts.found;
    changed_ = true;
}

std::string Audit::warning(const Model& model) {
    if (told_ || !changed_) return "";
    changed_ = false;
    // A bad layer shows when it has been seen often enough, bad predictors everywhere sooner.
    int64_t fired = 0, found = 0;
    double expected = 0;
    for (size_t i = 0; i < layers_.size(); i++) {
        const float trained = model.layers[i].recall;
        const double least = trained > 0 ? kOfTrained * double(trained) : double(kRecallFloor);
        const ggml::AuditCounts& c = layers_[i];
        fired += c.fired, found += c.found, expected += least * double(c.fired);
        const bool bad = c.fired >= kEnough && double(c.found) < least * double(c.fired);
        const bool all_bad =
            i + 1 == layers_.size() && fired >= kEnough && double(found) < expected;
        if (!bad && !all_bad) continue;
        told_ = true;
        const std::string who =
            bad ? ggml::format("the predictor of layer %zu finds", i) : "the predictors find";
        const double n = double(bad ? c.fired : fired), share = double(bad ? c.found : found) / n;
        return ggml::format(
            "%s: %s %.0f%% of the neurons that fire, less than %.0f%%: the text is "
            "not what the whole model would write; --sparse exact computes every "
            "neuron that fires",
            model.file.gguf.path().c_str(), who.c_str(), 100 * share,
            100 * (bad ? least : expected / n));
    }
    return "";
}

}  // namespace powerinfer
