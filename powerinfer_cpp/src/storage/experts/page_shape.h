// The sizes of a cache of pages of experts or blocks (expert_pages.h), as memory plans know them.
#pragma once

#include <cstdint>
#include <vector>

#include "storage/cache/residency.h"

namespace powerinfer {

// Of experts, their predictors or the blocks of a dense model that stay on the disk: one page for
// each block.
struct PageShape {
    static constexpr uint64_t kTables = 384;  // bytes for each block, at most
    // Pages of a size. Frames that are not in the cache take in what is in use.
    struct Class {
        uint64_t page = 0;  // bytes
        int64_t slots = 0;  // pages in the cache
    };
    // [parts + 1]: blocks of the feed-forward parts before each. A part is what a row chooses
    // experts of.
    std::vector<int64_t> before = {};
    std::vector<Class> classes = {};     // none: there are no pages
    std::vector<int32_t> class_of = {};  // [parts]; -1: it has no pages
    int64_t in_use = 0;                  // frames of each class that are not in the cache, least 1
    int64_t landings = 0;                // pages on their way, at least one
    uint64_t landing = 0;                // bytes of each, a multiple of what a disk reads at least
    uint64_t read = 256 << 10;           // bytes of a read, at most: a multiple of the same
    // Every token uses all blocks in their order. So pages stay in the cache for ever, since any
    // other set would be as good, and the next ones are read while a block is computed.
    bool in_order = false;

    explicit operator bool() const { return !classes.empty(); }
    int64_t n_blocks() const { return before.empty() ? 0 : before.back(); }
    int32_t n_parts() const { return int32_t(class_of.size()); }
    int32_t part_of(int64_t block) const;
    int64_t blocks_of(int32_t of_class) const;
    int64_t slots() const;     // of all classes
    uint64_t missing() const;  // bytes of the pages that the cache has no room for
    uint64_t cached() const;   // and of those that it has
    // The blocks that have pages, in such an order that the first of them, however many, are spread
    // evenly over the model: then the disk has time for a missing one while others are computed.
    std::vector<int32_t> spread() const;
    // Gives every class room for the same share of its pages, at least.
    void set_share(double share);
    // Blocks of the residency are the parts, and its neurons the pages; those of other classes have
    // none.
    ResidencyShape residency(int32_t of_class) const;
    uint64_t bytes() const;  // of all frames, landings and tables
};

}  // namespace powerinfer
