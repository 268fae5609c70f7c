// How the rows of neurons lie side by side, in memory and in bundled files: the one place that
// knows. A bundle holds, neuron after neuron, one row of each of its parts in order; rows of block
// formats are folded where they can be (ggml/neurons.h).
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/neurons.h"

namespace powerinfer {

// powerinfer.bundle.version of files; counts up when what this file describes changes.
constexpr int64_t kBundleVersion = 1;

struct BundleLayout {
    std::vector<ggml::DType> parts;
    int64_t cols = 0;

    int64_t stride() const { return offset(parts.size()); }  // bytes of a neuron
    int64_t offset(size_t part) const;                       // of a part's row, from its neuron's
    // The rows of a part in bundles at `data`, which may still be null.
    ggml::NeuronRows rows(size_t part, const uint8_t* data) const;
    // Moves the rows of n neurons between their stored form, one after the other, and their places.
    void put(size_t part, const uint8_t* stored, int64_t n, uint8_t* bundles) const;
    void take(size_t part, const uint8_t* bundles, int64_t n, uint8_t* stored) const;
};

// Neuron rows that lie side by side, and who finds them there.
struct Bundle {
    BundleLayout layout;
    std::vector<ggml::NeuronRows*> rows;  // of each part

    void place(const uint8_t* data) const {
        for (size_t i = 0; i < rows.size(); i++) *rows[i] = layout.rows(i, data);
    }
};

}  // namespace powerinfer
