// Random neuron rows, for tests of their kernels and operators.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "ggml/check.h"
#include "ggml/neurons.h"
#include "ggml/random_blocks.h"

namespace ggml {

using Floats = std::vector<float>;
inline std::mt19937 rng(7);

inline Floats normal(int64_t n, float scale = 1, float mean = 0) {
    std::normal_distribution<float> d(mean, scale);
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = d(rng);
    return v;
}

// Neuron rows of one format, and their decoded values.
struct Rows {
    Rows(DType type, int64_t n, int64_t cols, float scale, bool fold = true)
        : values(size_t(n * cols)) {
        const DTypeInfo& format = info(type);
        const int64_t bytes = format.size(cols);
        const std::vector<uint8_t> stored = random_blocks(type, normal(n * cols, scale));
        format.decode(stored.data(), values.data(), n * cols);
        packed = stored;
        view = {type, fold && can_fold(type, cols), nullptr, bytes};
        if (view.folded) {
            std::vector<uint8_t> back(static_cast<size_t>(bytes));
            for (int64_t i = 0; i < n; i++) {
                fold_row(type, stored.data() + i * bytes, cols, packed.data() + i * bytes);
                unfold_row(type, packed.data() + i * bytes, cols, back.data());
                CHECK(!std::memcmp(back.data(), stored.data() + i * bytes, size_t(bytes)));
            }
        }
        view.data = packed.data();
    }
    std::vector<uint8_t> packed;
    Floats values;
    NeuronRows view;
};

// The rows with this number, made once: every instruction set is tested with the same ones, and
// encoding takes longer than computing.
inline const Rows& rows_made_once(int number, DType type, int64_t n, int64_t cols) {
    static std::map<std::tuple<int, DType, int64_t, int64_t>, Rows> made;
    return made.try_emplace({number, type, n, cols}, type, n, cols, 1.0f).first->second;
}

// The same rows in tiles: written independently.
struct Tiled {
    Tiled(const Rows& rows, int64_t cols, NeuronRows::Tiles tiles)
        : data(rows.packed.size()), view(rows.view) {
        const int64_t row = rows.view.stride, size = info(rows.view.type).bytes;
        const auto n = int64_t(rows.packed.size()) / row;
        for (int64_t i = 0; i < n; i += kStrip) {
            const uint8_t* const stored = rows.packed.data() + i * row;
            uint8_t* const tile = data.data() + i * row;
            pack_tile(rows.view.type, tiles, stored, cols, tile);
            for (int64_t r = 0; r < kStrip && tiles == NeuronRows::Tiles::blocks; r++) {
                for (int64_t b = 0; b < row / size; b++) {
                    CHECK(!std::memcmp(tile + (b * kStrip + r) * size, stored + r * row + b * size,
                                       size_t(size)));
                }
            }
        }
        view.data = data.data();
        view.tiles = tiles;
    }
    std::vector<uint8_t> data;
    NeuronRows view;
};

}  // namespace ggml
