// The layout of bundles in memory and in bundled files. A bundle holds, neuron after neuron, one
// row of each of its parts in order. Rows of block formats are folded if possible (ggml/neurons.h).
// No other file knows this layout.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/neurons.h"

namespace powerinfer {

// powerinfer.bundle.version in files. Increase it if the layout changes.
constexpr int64_t kBundleVersion = 1;

struct BundleLayout {
    std::vector<ggml::DType> parts;
    int64_t cols = 0;

    int64_t stride() const { return offset(parts.size()); }  // bytes of one neuron
    int64_t offset(size_t part) const;                       // of a part's row, within its neuron
    // The rows of a part in bundles at `data`; null data gives rows without data.
    ggml::NeuronRows rows(size_t part, const uint8_t* data) const;
    // Moves the rows of n neurons from stored order (one after the other) to their places, and
    // back.
    void put(size_t part, const uint8_t* stored, int64_t n, uint8_t* bundles) const;
    void take(size_t part, const uint8_t* bundles, int64_t n, uint8_t* stored) const;
};

// Bundles, and the NeuronRows that point into them.
struct Bundle {
    BundleLayout layout;
    std::vector<ggml::NeuronRows*> rows;  // one per part

    void place(const uint8_t* data) const {
        for (size_t i = 0; i < rows.size(); i++) *rows[i] = layout.rows(i, data);
    }
};

}  // namespace powerinfer
