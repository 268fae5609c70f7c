// RoPE (arXiv 2104.09864): the frequencies for ggml::rope_table, scaled as the model requires.
#pragma once

#include <vector>

#include "model.h"

namespace powerinfer {

struct RopeTable {
    std::vector<double> frequency;  // [n_rot / 2], radians per position
    double magnitude = 1;           // factor of cosine and sine

    RopeTable() = default;
    // For a session of n_ctx positions. All of its positions have these frequencies, also the first
    // ones: what is computed does not depend on how long a text becomes.
    RopeTable(const Model& model, int64_t n_ctx);
    // A number that differs for sessions of a model whose tables differ.
    static uint32_t variant(const Config& config, int64_t n_ctx);
};

}  // namespace powerinfer
