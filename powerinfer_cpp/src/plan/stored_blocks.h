// The blocks of a model whose neurons stay on the disk, for the plan and for the store.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/reader.h"
#include "model/model.h"
#include "storage/experts/expert_pages.h"

namespace powerinfer {

// use(block, the part that has it), in the order of their numbers.
template <typename F>
void for_blocks(const Model& m, const F& use) {
    for (const FeedForward* part : m.ffns) {
        for (const Ffn& block : part->blocks) use(block, *part);
    }
}

// The neurons of a block of `part` that the device does not have, ascending: those that the store
// has.
std::vector<int32_t> stored_rows(const Model& model, const Ffn& block, const FeedForward& part);

// Where the file has the predictors of experts.
std::vector<StoredPage> stored_predictors(const Model& model);

// How a file with such a layout is read; and one with experts anywhere, or blocks, by at most
// kPageReads reads at a time.
constexpr int kPageReads = 64;
ggml::ReaderOptions reader_options(const StoreLayout& layout);
ggml::ReaderOptions expert_reader_options();

}  // namespace powerinfer
