// Whether predictors find the neurons that fire. What an audit finds is reported and changes
// nothing: a mask that followed from a measurement would depend on who was measured.
#pragma once

#include <string>
#include <vector>

#include "ggml/neurons.h"
#include "model.h"

namespace powerinfer {

// Share of the firings that a predictor must find. Below it `auto` computes a layer exactly, where
// the file says so (powerinfer.predictor.recall), and warns where only an audit does.
constexpr float kRecallFloor = 0.7f;

// Has a block of this layer a predictor that a mode (pi_sparse) listens to?
bool is_predicted(const Layer& layer, const Ffn& block, int32_t sparse);
// Has any block of the model?
bool is_predicted(const Model& model, int32_t sparse);

// For every generated token that is masked, one segment of one layer, 1/32 of its neurons, is also
// computed in full and compared with the mask. That costs a thirtieth of one layer's first rows.
class Audit {
 public:
    Audit() = default;
    explicit Audit(const Config& config) : layers_(size_t(config.n_layer)) {}

    // The segment that a generated token at a position looks at in a layer; -1: another layer.
    // Layers take turns first, then segments.
    int segment(int64_t layer, int64_t position) const {
        const int64_t n = int64_t(layers_.size());
        return position % n == layer ? int(position / n % ggml::kSegments) : -1;
    }
    void add(int64_t layer, const ggml::AuditCounts& counts);
    // Since the session began.
    const ggml::AuditCounts& layer(int64_t i) const { return layers_[size_t(i)]; }
    // A sentence, when there is reason for one and for the first time; else "".
    std::string warning(const Model& model);

 private:
    std::vector<ggml::AuditCounts> layers_;
    bool changed_ = false, told_ = false;
};

}  // namespace powerinfer
