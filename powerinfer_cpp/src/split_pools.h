// How the bytes of the cache are divided between its two pools (residency.h), once, when a model is
// planned.
#pragma once

#include <cstdint>

#include "residency.h"

namespace powerinfer {

// Seconds that reading takes: max(least, fixed + bytes * per_byte). A disk that is limited in reads
// and in bandwidth has {1 / reads a second, 0, 1 / bandwidth}; time of the processor adds to both.
struct DiskCost {
    double least = 0, fixed = 0, per_byte = 0;
    double seconds(double bytes) const {
        const double all = fixed + bytes * per_byte;
        return all > least ? all : least;
    }
};

// The disk that caches are divided for: cold random reads of an NVMe disk behind virtio
// (docs/storage.md).
constexpr DiskCost kDisk{0, 12.5e-6, 0.98e-9};

struct PartBytes {
    uint64_t first = 0, rest = 0;
};

struct PoolSlots {
    int64_t first = 0, rest = 0;
    double seconds = 0;  // of reading, per token, if the best parts are resident
};

// The slots that fit `bytes` and leave the least time of reading per token. first_rate, rest_rate
// [n]: how often a token needs each neuron's first part (it is proposed) and its rest (it fires).
// each: how many neurons an entry stands for.
PoolSlots split_pools(uint64_t bytes, const PartBytes& part, const float* first_rate,
                      const float* rest_rate, int64_t n, const DiskCost& disk, double each = 1);

// Exact mode: every first part is needed for every token, so all of them are resident.
// Returns no first slots if they do not fit.
PoolSlots exact_pools(uint64_t bytes, const PartBytes& part, int64_t n);

}  // namespace powerinfer
