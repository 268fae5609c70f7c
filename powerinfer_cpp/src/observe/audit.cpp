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

bool is_predicted(const FeedForward& part, const Ffn& f, int32_t sparse) {
    if (!f.fc1 && !f.signs) return false;
    if (sparse == PI_SPARSE_PREDICTOR) return true;
    return sparse == PI_SPARSE_AUTO && (part.recall == 0 || part.recall >= kRecallFloor);
}

bool is_predicted(const Model& model, int32_t sparse) {
    return std::any_of(model.ffns.begin(), model.ffns.end(), [&](const FeedForward* part) {
        // Either all experts of a layer have predictors or none has.
        return is_predicted(*part, part->blocks[0], sparse);
    });
}

void Audit::add(int64_t part, const ggml::AuditCounts& counts) {
    parts_[size_t(part)].fired += counts.fired;
    parts_[size_t(part)].found += counts.found;
    changed_ = true;
}

std::string Audit::warning(const Model& model) {
    if (told_ || !changed_) return "";
    changed_ = false;
    // One bad layer is reported after it has enough firings; if all predictors are bad, their sum
    // reaches that sooner.
    int64_t fired = 0, found = 0;
    double expected = 0;
    for (size_t i = 0; i < parts_.size(); i++) {
        const float trained = model.ffns[i]->recall;
        const double least = trained > 0 ? kOfTrained * double(trained) : double(kRecallFloor);
        const ggml::AuditCounts& c = parts_[i];
        fired += c.fired, found += c.found, expected += least * double(c.fired);
        const bool bad = c.fired >= kEnough && double(c.found) < least * double(c.fired);
        const bool all_bad = i + 1 == parts_.size() && fired >= kEnough && double(found) < expected;
        if (!bad && !all_bad) continue;
        told_ = true;
        const std::string who =
            bad ? ggml::format("the predictor of layer %lld finds", (long long)model.ffns[i]->layer)
                : "the predictors find";
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
