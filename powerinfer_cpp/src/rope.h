// RoPE (arXiv 2104.09864): the frequencies for ggml::rope_table, scaled as the model requires.
#pragma once

#include <vector>

#include "model.h"

namespace powerinfer {

struct RopeTable {
    std::vector<double> frequency;  // [n_rot / 2], radians per position
    double magnitude = 1;           // factor of cosine and sine

    RopeTable() = default;
    explicit RopeTable(const Model& model);
};

}  // namespace powerinfer
