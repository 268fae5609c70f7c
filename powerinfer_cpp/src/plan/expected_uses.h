// How often a token is expected to need each part of a neuron, before any token was computed: by
// the model's profile (ffn_rate), or by a law where it has none. Plans divide memory by it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "model/model.h"

namespace powerinfer {

// Of one block (a layer, or an expert of it).
struct BlockUses {
    std::vector<float> gate, up_down;  // [n]: per token
    double chosen = 1;                 // the share of tokens that compute the block
};

class ExpectedUses {
 public:
    // sparse: a pi_sparse. predicted: neurons are computed if a predictor proposes them, else all
    // of them. Weights need not be loaded.
    ExpectedUses(const Model& model, int32_t sparse, bool predicted);

    bool profiled(const Ffn& f) const { return f.rate || rates_.count(&f.rate); }
    // Of these rows of a block. Those of a block without a profile have the rates of the law in
    // falling order, whatever their numbers.
    BlockUses of(const FeedForward& part, const Ffn& f, const std::vector<int32_t>& rows) const;

 private:
    std::vector<float> profile_of(const Ffn& f) const;

    const Model& model_;
    const int32_t sparse_;
    const bool predicted_;
    std::map<const void*, const WeightSpec*> rates_;  // by the address of Ffn::rate
};

}  // namespace powerinfer
