// Rotary positions: the frequencies that ggml::rope_table turns into angles, stretched as the model
// says.
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
