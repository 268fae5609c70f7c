#include "plan/stored_blocks.h"

namespace powerinfer {

std::vector<int32_t> stored_rows(const Model& m, const Ffn& f, const FeedForward& part) {
    std::vector<int32_t> rows;
    // The rows of experts are not shared out: whole experts are copied to a device.
    const int64_t layer = part.layer;
    const bool shared = m.device && m.device->split.has(layer) && !part.routed();
    if (shared && !m.device->split.splits(layer)) return rows;
    for (int32_t i = 0; i < int32_t(f.neurons.n); i++) {
        if (!shared || m.device->split.slot[size_t(layer)][size_t(i)] < 0) rows.push_back(i);
    }
    return rows;
}

std::vector<StoredPage> stored_predictors(const Model& m) {
    std::vector<StoredPage> blocks(size_t(m.n_blocks()));
    for (const WeightSpec& w : m.weights) {
        if (!w.by_expert()) continue;
        const int64_t block = w.of->first_block + w.row0 / w.rows;
        const auto layout = w.strips() ? ggml::Layout::strips : ggml::Layout::rows;
        blocks[size_t(block)].push_back(
            {0, w.file_offset(), {w.tensor->type, layout, w.rows, w.cols, nullptr}});
    }
    return blocks;
}

ggml::ReaderOptions reader_options(const StoreLayout& layout) {
    ggml::ReaderOptions options;
    options.align = uint32_t(layout.align);
    options.depth = 256;  // in flight
    return options;
}

ggml::ReaderOptions expert_reader_options() {
    ggml::ReaderOptions options;
    options.align = 4096;  // what any disk takes
    options.depth = kPageReads;
    return options;
}

}  // namespace powerinfer
