// Rotary positions: the angle of every frequency at every position, stretched as the model says.
#pragma once

#include <vector>

#include "model.h"

namespace powerinfer {

struct RopeTable {
    std::vector<double> frequency;  // [n_rot / 2], radians per position
    double magnitude = 1;           // factor of cosine and sine

    RopeTable() = default;
    explicit RopeTable(const Model& model);
    // Cosine and sine, [n_rot / 2, 2], of one position.
    void fill(int64_t position, float* cos_sin) const;
};

}  // namespace powerinfer
