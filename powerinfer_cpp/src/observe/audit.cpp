#include "observe/audit.h"

#include <algorithm>

#include "ggml/status.h"

namespace powerinfer {

namespace {

// Number of firings needed for a judgement. With 512 the standard error of a share is 2 points.
constexpr int64_t kEnough = 512;
// Share of the recall in the file that is still acceptable: texts differ from the training texts.
constexpr double kOfTrained = 0.8;

}  // namespace

bool is_predicted(const Layer& l, const Ffn& f, int32_t sparse) {
    if (!f.fc1 && !f.signs) return false;
    if (sparse == PI_SPARSE_PREDICTOR) return true;
    return sparse == PI_SPARSE_AUTO && (l.recall == 0 || l.recall >= kRecallFloor);
}

bool is_predicted(const Model& model, int32_t sparse) {
    return std::any_of(model.layers.begin(), model.layers.end(), [&](const Layer& l) {
        // Either all experts of a layer have predictors or none has.
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
    // One bad layer is reported after it has enough firings; if all predictors are bad, their sum
    // reaches that sooner.
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
            "%s: %s %.0f%% of the neurons that fire, less than %.0f%%: the text can differ "
            "from that of the whole model; --sparse exact computes every neuron that fires",
            model.file.gguf.path().c_str(), who.c_str(), 100 * share,
            100 * (bad ? least : expected / n));
    }
    return "";
}

}  // namespace powerinfer
