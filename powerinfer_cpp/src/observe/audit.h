// Checks whether predictors find the neurons that fire. An audit only reports. It never changes a
// mask: then results would depend on which rows were audited.
#pragma once

#include <string>
#include <vector>

#include "ggml/neurons.h"
#include "model/model.h"

namespace powerinfer {

// Share of the firings that a predictor must find. If the file gives a lower recall
// (powerinfer.predictor.recall), `auto` computes the layer exactly. If only an audit measures less,
// the session warns.
constexpr float kRecallFloor = 0.7f;

// Does a block have a predictor that this mode (pi_sparse) uses?
bool is_predicted(const FeedForward& part, const Ffn& block, int32_t sparse);
// The same for any block of the model.
bool is_predicted(const Model& model, int32_t sparse);

// For every masked generated token, one segment of one feed-forward part (1/32 of its neurons) is
// also computed in full and compared with the mask. This costs about 1/32 of reading its gate rows.
// Where neurons stay on the disk, one token of four is audited: its segment may have to be read.
class Audit {
 public:
    Audit() = default;
    explicit Audit(size_t n_ffns) : parts_(n_ffns) {}

    // The segment of a part (FeedForward::index) that a generated token at this position audits; -1
    // if it audits another part, or none. Positions go through the parts first, then through the
    // segments; one of `every` rounds audits a part.
    int segment(int64_t part, int64_t position, int64_t every = 1) const {
        const int64_t n = int64_t(parts_.size()), round = position / n;
        if (position % n != part || round % every != part % every) return -1;
        return int(round / every % ggml::kSegments);
    }
    void add(int64_t part, const ggml::AuditCounts& counts);
    // Counts since the session began.
    const ggml::AuditCounts& part(int64_t i) const { return parts_[size_t(i)]; }
    // A warning, at most once per session; "" if there is no reason for one.
    std::string warning(const Model& model);

 private:
    std::vector<ggml::AuditCounts> parts_;
    bool changed_ = false, told_ = false;
};

}  // namespace powerinfer
