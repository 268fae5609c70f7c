// How the bytes of the cache are divided between its two pools (residency.h), and what its misses
// cost: when a model is planned, and again when it is known what tokens need.
#pragma once

#include <cstdint>
#include <vector>

#include "storage/cache/residency.h"

namespace powerinfer {

// Seconds that reading takes: max(least, fixed + bytes * per_byte). A disk that is limited in reads
// and in bandwidth has {1 / reads a second, 0, 1 / bandwidth}; time of the processor adds to both.
struct DiskCost {
    double least = 0, fixed = 0, per_byte = 0;
    double seconds(double bytes) const {
        const double all = fixed + bytes * per_byte;
        return all > least ? all : least;
    }
    // Of these bytes as a part of a long read.
    double joined(double bytes) const { return bytes * seconds(kLong) / kLong; }
    static constexpr double kLong = 256 << 10;
};

// The disk that caches are divided for: cold random reads of an NVMe disk behind virtio
// (docs/storage.md).
constexpr DiskCost kDisk{0, 12.5e-6, 0.98e-9};

struct PartBytes {
    uint64_t gate = 0, up_down = 0;
};

struct PoolSlots {
    int64_t gate = 0, up_down = 0;
    double seconds = 0;  // of reading, per token, if the best parts are resident
};

// The way from an empty cache to a complete one, in falling order of the seconds that a byte saves.
// A larger cache goes farther on the same way, so it is never expected to read for longer.
class CacheSteps {
 public:
    CacheSteps(const PartBytes& part, const DiskCost& disk) : part_(part), disk_(disk) {}

    // Adds n neurons. gate_rate, up_down_rate [n]: how often a token needs each one's gate (it is
    // proposed) and its up and down rows (it fires). each: how many neurons an entry stands for.
    // chosen: the share of tokens that compute their block at all. If these need nearly all of its
    // neurons, or of its gates, what is missing is read in long runs.
    void add(const float* gate_rate, const float* up_down_rate, int64_t n, double each = 1,
             double chosen = 1);
    // After the last add().
    void sort();
    // The slots that fit `bytes`.
    PoolSlots split(uint64_t bytes) const;
    int64_t steps() const { return int64_t(steps_.size()); }

 private:
    // One step of neurons towards being resident; sorted, its slots and seconds are sums.
    struct Step {
        float worth;         // seconds per byte
        bool has[2];         // parts that become resident
        double each, saved;  // neurons; seconds of all of them
    };
    // What the steps before each, and all of them, take and save.
    struct Sum {
        double bytes, slots[2], saved;
    };
    PartBytes part_;
    DiskCost disk_;
    double none_ = 0;  // seconds without a cache
    std::vector<Step> steps_;
    std::vector<Sum> sums_;
};

// CacheSteps of n neurons, in one call.
PoolSlots split_pools(uint64_t bytes, const PartBytes& part, const float* gate_rate,
                      const float* up_down_rate, int64_t n, const DiskCost& disk, double each = 1,
                      double chosen = 1);

}  // namespace powerinfer
