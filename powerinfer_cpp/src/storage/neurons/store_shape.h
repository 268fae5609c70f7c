// The sizes of a store of neurons (store.h), as memory plans know them.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/neurons.h"
#include "storage/cache/residency.h"

namespace powerinfer {

struct StoreShape {
    // Layers (times experts); neurons in each, or in the largest one.
    int32_t n_blocks = 0, n = 0;
    // [n_blocks + 1]: neurons in the blocks before each, if a device has some of them; or empty.
    std::vector<int64_t> before = {};
    int64_t gate_sectors = 0, up_down_sectors = 0;  // of a part, in the block where it is largest
    int64_t cache_sectors = 0;                      // of all slots
    int64_t gate_slots = 0, up_down_slots = 0;      // at first, if `adapts`
    bool adapts = false;                            // what is needed decides how many of each
    // Expected uses per token of a neuron's gate and of its up and down rows, over all neurons,
    // until tokens have shown them; and the share of tokens that compute a block (split_pools.h).
    float gate_rate = 1, up_down_rate = 1, chosen = 1;
    int64_t lanes = 0;  // bytes of each of kLanes parts of the staging area

    static constexpr int64_t kSector = 512;
    // Segments that are computed together, and as many that are read.
    static constexpr int kLanes = 2 * ggml::kTogether;
    // A lane that takes all neurons of a segment, the least.
    int64_t least_lane() const;
    // Bytes of slots.
    uint64_t slot_bytes(int64_t gates, int64_t up_downs) const {
        return uint64_t(gates * gate_sectors + up_downs * up_down_sectors) * kSector;
    }
    uint64_t arena_bytes() const;
    // What the cache lends to prompts, at most (NeuronStore::lend).
    uint64_t lendable() const;
    ResidencyShape residency() const;
};

}  // namespace powerinfer
