// Layouts of the rows of neurons: in memory and in bundled files. Rows of block formats are folded
// if possible (ggml/neurons.h). No other file knows these layouts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ggml/neurons.h"

namespace powerinfer {

// powerinfer.bundle.version in files. 1: two tensors a layer, which lie in the file as in memory
// (BundleLayout). 2: one tensor, from which single neurons can be read (StoreLayout).
constexpr int64_t kMemoryVersion = 1, kStoreVersion = 2;

// In memory a bundle holds, neuron after neuron, one row of each of its parts in order; or part
// after part, those in tiles (ggml::NeuronRows::Tiles) of which tokens need all neurons.
struct BundleLayout {
    std::vector<ggml::DType> parts;  // gate; or up and down
    int64_t cols = 0;
    // The neurons of a bundle of which part lies after part, a multiple of kStrip; 0: neuron after
    // neuron.
    int64_t apart = 0;
    bool needs_all = false;  // of such a bundle: are all neurons' down rows needed, too?

    int64_t stride() const { return offset(parts.size()); }  // bytes of one neuron
    int64_t offset(size_t part) const;                       // of a part's row, within its neuron
    // The rows of a part in bundles at `data`; null data gives rows without data.
    ggml::NeuronRows rows(size_t part, const uint8_t* data) const;
    // Moves the rows of n neurons from stored order (one after the other) to their places, and
    // back.
    void put(size_t part, const uint8_t* stored, int64_t n, uint8_t* bundles) const;
    void take(size_t part, const uint8_t* bundles, int64_t n, uint8_t* stored) const;
    bool can_tile() const;
    // put() of neurons [first, first + n), multiples of kStrip, into a bundle of which part lies
    // after part. packed: the rows are as put() leaves them.
    void put_apart(size_t part, const uint8_t* stored, int64_t first, int64_t n, uint8_t* bundle,
                   bool packed = false) const;

 private:
    ggml::NeuronRows::Tiles tiles_of(size_t part) const;
};

// In a file of version 2 a neuron has two ranges, each of which a disk reads with one command: the
// gate's has the row that says whether the neuron fires (up where there is no gate), the other one
// the other rows. A range begins at a multiple of `align`, a row at a multiple of 64 bytes; what
// lies between is zero.
struct StoreLayout {
    struct Row {
        ggml::DType type = ggml::DType::F32;
        int64_t offset = 0, bytes = 0;  // within the neuron
    };
    struct Range {
        int64_t offset = 0, bytes = 0;  // within the neuron; multiples of align
        int64_t end() const { return offset + bytes; }
    };
    int64_t cols = 0;
    int64_t align = 0;
    std::vector<Row> rows;  // gate (if there is one), up, down
    Range gate_range, up_down_range;
    int64_t stride = 0;  // bytes of one neuron

    // types: of the rows, 2 or 3 of them.
    static StoreLayout of(const std::vector<ggml::DType>& types, int64_t cols, int64_t align);
    static bool valid_align(int64_t align);  // 512, 1024, 2048 or 4096

    bool gated() const { return rows.size() == 3; }
    const Row& gate() const { return rows[0]; }  // only if gated
    const Row& up() const { return rows[rows.size() - 2]; }
    const Row& down() const { return rows.back(); }
    // As in BundleLayout. put() leaves the bytes between the rows as they are.
    void put(size_t row, const uint8_t* stored, int64_t n, uint8_t* bundles) const;
    void take(size_t row, const uint8_t* bundles, int64_t n, uint8_t* stored) const;
    // CRC-32C of the two ranges of a neuron.
    std::array<uint32_t, 2> checksums(const uint8_t* neuron) const;
};
constexpr int64_t kStoreAlign = 512;        // the default
constexpr uint32_t kStoreFileAlign = 4096;  // general.alignment of the file

// Where a file of version 2 has the neurons of a layer, or of one of its experts.
struct StoredNeurons {
    StoreLayout layout;
    int32_t file = 0, crc_file = 0;  // indices of ModelFile::files
    uint64_t offset = 0;             // of neuron 0, in its file
    // Of neuron 0's two checksums (u32), one of each range. Neuron i's are 8 i bytes further on.
    uint64_t crc_offset = 0;
    int32_t part = 0;  // its feed-forward part (FeedForward::index), for counts

    explicit operator bool() const { return layout.stride > 0; }  // false: other kinds of files
    uint64_t offset_of(int64_t neuron) const {
        return offset + uint64_t(neuron) * uint64_t(layout.stride);
    }
};

// Bundles, and the NeuronRows that point into them.
struct Bundle {
    BundleLayout layout;
    std::vector<ggml::NeuronRows*> rows;  // one per part

    void set_addresses(const uint8_t* data) const {
        for (size_t i = 0; i < rows.size(); i++) *rows[i] = layout.rows(i, data);
    }
};

}  // namespace powerinfer
