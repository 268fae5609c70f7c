#include "audit.h"

#include <algorithm>

#include "ggml/status.h"
#include "session.h"

namespace powerinfer {

namespace {

// One row of 64, another one for each layer. The row's block costs what it would in exact mode, two
// to four times as much as predicted: under 3% of a token.
constexpr int64_t kEvery = 64, kApart = 5;
// Enough firings to judge by: chance moves a share of 512 by 2 points.
constexpr int64_t kEnough = 512;
// Share of the firings that must be found, where the file does not say what its predictors found
// when they were trained (powerinfer.predictor.recall); four fifths of that where it does.
constexpr double kRecall = 0.7, kOfTrained = 0.8;

bool audits(const Config& c, const pi_session_params& p) {
    return p.sparse == PI_SPARSE_AUTO && c.has_predictors;
}

}  // namespace

uint64_t Audit::bytes(const Config& c, const pi_session_params& p) {
    return audits(c, p) ? uint64_t(p.n_ubatch * c.n_ff) : 0;
}

Audit::Audit(const Config& c, const pi_session_params& p) {
    if (!audits(c, p)) return;
    memory_ = ggml::Memory(bytes(c, p), "audit");
    flags_ = memory_.as<bool>();
    layers_.resize(size_t(c.n_layer));
}

Masking Audit::masking(int64_t layer, int64_t position) const {
    if (layers_.empty()) return Masking::predicted;
    if (!layers_[size_t(layer)].trusted) return Masking::none;
    return (position + kApart * layer) % kEvery ? Masking::predicted : Masking::audited;
}

void Audit::count(const Session& session, int64_t layer, int64_t n, int64_t found) {
    Layer& l = layers_[size_t(layer)];
    l.fired += n;
    l.found += found;
    if (!l.trusted || l.fired < kEnough) return;
    const float trained = session.model->layers[size_t(layer)].recall;
    const double limit = trained > 0 ? kOfTrained * double(trained) : kRecall;
    const double recall = double(l.found) / double(l.fired);
    l.trusted = recall >= limit;
    if (l.trusted || told_) return;
    told_ = true;
    session.log(2, ggml::format("%s: the predictor of layer %lld finds %.0f%% of the neurons that "
                                "fire, less than %.0f%%: this layer is computed exactly from now "
                                "on, and so is every other of which this turns out to be true",
                                session.model->file.gguf.path().c_str(), (long long)layer,
                                100 * recall, 100 * limit));
}

}  // namespace powerinfer
