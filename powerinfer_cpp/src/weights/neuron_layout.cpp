#include "weights/neuron_layout.h"

#include <algorithm>
#include <cstring>

#include "ggml/crc32c.h"
#include "ggml/sizes.h"

namespace powerinfer {

namespace {

// Moves n rows from stored order to places `step` bytes apart, and back.
void put_rows(ggml::DType type, int64_t cols, const uint8_t* stored, int64_t n, uint8_t* to,
              int64_t step) {
    const int64_t row = ggml::info(type).size(cols);
    const bool folded = ggml::can_fold(type, cols);
    for (int64_t i = 0; i < n; i++, stored += row, to += step) {
        if (folded) {
            ggml::fold_row(type, stored, cols, to);
        } else {
            std::memcpy(to, stored, size_t(row));
        }
    }
}

void take_rows(ggml::DType type, int64_t cols, const uint8_t* from, int64_t n, uint8_t* stored,
               int64_t step) {
    const int64_t row = ggml::info(type).size(cols);
    const bool folded = ggml::can_fold(type, cols);
    for (int64_t i = 0; i < n; i++, stored += row, from += step) {
        if (folded) {
            ggml::unfold_row(type, from, cols, stored);
        } else {
            std::memcpy(stored, from, size_t(row));
        }
    }
}

int64_t rounded_up(int64_t bytes, int64_t unit) {
    return int64_t(ggml::size_rounded_up(uint64_t(bytes), uint64_t(unit)));
}

}  // namespace

int64_t BundleLayout::offset(size_t part) const {
    int64_t bytes = 0;
    for (size_t i = 0; i < part; i++) bytes += ggml::info(parts[i]).size(cols);
    return bytes;
}

ggml::NeuronRows BundleLayout::rows(size_t part, const uint8_t* data) const {
    const ggml::DType type = parts[part];
    if (apart) {
        const ggml::NeuronRows::Tiles tiles = tiles_of(part);
        return {type,
                tiles == ggml::NeuronRows::Tiles::none && ggml::can_fold(type, cols),
                data ? data + apart * offset(part) : nullptr,
                ggml::info(type).size(cols),
                nullptr,
                tiles};
    }
    return {type, ggml::can_fold(type, cols), data ? data + offset(part) : nullptr, stride()};
}

bool BundleLayout::can_tile() const {
    return std::all_of(parts.begin(), parts.end(),
                       [&](ggml::DType type) { return ggml::can_tile(type, cols); });
}

// Down rows are summed, the others multiplied.
ggml::NeuronRows::Tiles BundleLayout::tiles_of(size_t part) const {
    using Tiles = ggml::NeuronRows::Tiles;
    if (!ggml::can_tile(parts[part], cols)) return Tiles::none;
    if (part == 0) return Tiles::strips;
    return needs_all ? Tiles::blocks : Tiles::none;
}

void BundleLayout::put_apart(size_t part, const uint8_t* stored, int64_t first, int64_t n,
                             uint8_t* bundle, bool packed) const {
    const int64_t row = ggml::info(parts[part]).size(cols);
    uint8_t* const to = bundle + apart * offset(part) + first * row;
    const ggml::NeuronRows::Tiles tiles = tiles_of(part);
    if (tiles == ggml::NeuronRows::Tiles::none) {
        if (packed) {
            std::memcpy(to, stored, size_t(n * row));
        } else {
            put_rows(parts[part], cols, stored, n, to, row);
        }
        return;
    }
    for (int64_t i = 0; i < n; i += ggml::kStrip) {
        ggml::pack_tile(parts[part], tiles, stored + i * row, cols, to + i * row);
    }
}

void BundleLayout::put(size_t part, const uint8_t* stored, int64_t n, uint8_t* bundles) const {
    put_rows(parts[part], cols, stored, n, bundles + offset(part), stride());
}

void BundleLayout::take(size_t part, const uint8_t* bundles, int64_t n, uint8_t* stored) const {
    take_rows(parts[part], cols, bundles + offset(part), n, stored, stride());
}

bool StoreLayout::valid_align(int64_t align) {
    return align >= 512 && align <= kStoreFileAlign && (align & (align - 1)) == 0;
}

StoreLayout StoreLayout::of(const std::vector<ggml::DType>& types, int64_t cols, int64_t align) {
    constexpr int64_t kLine = 64;  // kernels read whole cache lines
    StoreLayout l;
    l.cols = cols;
    l.align = align;
    int64_t end = 0;
    for (size_t i = 0; i < types.size(); i++) {
        const int64_t bytes = ggml::info(types[i]).size(cols);
        l.rows.push_back({types[i], rounded_up(end, i == 1 ? align : kLine), bytes});
        end = l.rows.back().offset + bytes;
    }
    l.gate_range.bytes = l.up_down_range.offset = l.rows[1].offset;
    l.stride = rounded_up(end, align);
    l.up_down_range.bytes = l.stride - l.up_down_range.offset;
    return l;
}

void StoreLayout::put(size_t row, const uint8_t* stored, int64_t n, uint8_t* bundles) const {
    put_rows(rows[row].type, cols, stored, n, bundles + rows[row].offset, stride);
}

void StoreLayout::take(size_t row, const uint8_t* bundles, int64_t n, uint8_t* stored) const {
    take_rows(rows[row].type, cols, bundles + rows[row].offset, n, stored, stride);
}

std::array<uint32_t, 2> StoreLayout::checksums(const uint8_t* neuron) const {
    return {ggml::crc32c(neuron + gate_range.offset, size_t(gate_range.bytes)),
            ggml::crc32c(neuron + up_down_range.offset, size_t(up_down_range.bytes))};
}

}  // namespace powerinfer
