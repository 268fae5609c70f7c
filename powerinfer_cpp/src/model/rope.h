// RoPE (arXiv 2104.09864): the frequencies for ggml::rope_table, scaled as the model requires.
#pragma once

#include <vector>

#include "model/model.h"

namespace powerinfer {

struct RopeTable {
    std::vector<double> frequency;  // [n_rot / 2], radians per position
    double magnitude = 1;           // factor of cosine and sine

    RopeTable() = default;
    // A table of the model for a session with these parameters, which are resolved: all of its
    // positions have these frequencies, also the first ones. What is computed does not depend on
    // how long a text becomes.
    RopeTable(const Model& model, const Rope& rope, const pi_session_params& params);
    // A number that differs for sessions of a model whose tables differ because of their n_ctx.
    static uint32_t variant(const Config& config, const pi_session_params& params);
};

// Those of Config::ropes, in order.
std::vector<RopeTable> rope_tables(const Model& model, const pi_session_params& params);

// Throws Error(argument) naming the parameter of RoPE that is out of range, or for a model without
// RoPE.
void check_rope(const Config& config, const pi_session_params& params);

}  // namespace powerinfer
