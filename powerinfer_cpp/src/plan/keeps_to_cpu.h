// What a device cannot compute.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "model/model.h"

namespace powerinfer {

// Asks about the layers of a model one after the other. It keeps a reference to the model.
class KeptToCpu {
 public:
    explicit KeptToCpu(const Model& model);
    // Why a layer's operators cannot run on a device; "" if they can.
    std::string layer(int64_t layer) const;
    // The same of the head.
    const std::string& head() const { return head_; }

 private:
    // Does the model have this vector or matrix? They are not read yet.
    bool has(const float* const& vector) const { return given_.count(&vector) > 0; }
    bool has(const ggml::Matrix& matrix) const { return given_.count(&matrix) > 0; }
    std::string reason(const Attention& attention) const;
    std::string reason(const Router& router) const;
    std::string reason(const FeedForward& ffn) const;
    std::string reason(const ShortConvolution& convolution) const;
    std::string reason(const Mamba2& mamba) const;
    std::string reason(const DeltaNet& net) const;
    std::string reason(const LayerEmbedding& embedding) const;
    std::string reason(const NGrams& grams) const;
    std::string reason(const LayerPart& part) const;

    const Model& model_;
    std::unordered_set<const void*> given_;  // where weights go
    // The first tensor of a layer that has no operator on a device.
    std::unordered_map<int64_t, std::string> unsuited_;
    std::string head_;
};

// The same of one layer.
std::string keeps_to_cpu(const Model& model, int64_t layer);

}  // namespace powerinfer
