// What stores of neurons and experts have done.
#pragma once

#include <cstdint>
#include <vector>

namespace powerinfer {

// For a feed-forward part, since the store was opened. Arrays are indexed by Half; of experts,
// which are whole or not there, the first number counts.
struct StoreCounts {
    // Parts of neurons that rows needed, and those of them that were not in memory. Where many rows
    // are computed together, only the parts of neurons that fired count. Of experts: each once for
    // all rows that are computed together.
    uint64_t needed[2] = {0, 0}, missed[2] = {0, 0};
    uint64_t reads = 0, bytes = 0;    // from the disk, with the gaps between neighbours
    uint64_t predictors = 0;          // predictors of experts that were read
    uint64_t guessed = 0, right = 0;  // experts that were read early, and those that were chosen
    uint64_t admitted = 0;            // parts that got a slot after a read
    double waited_s = 0;              // seconds in which there was nothing left to compute

    // Adds what was done between two states of the counts.
    void add(const StoreCounts& begin, const StoreCounts& end);
};

// Seconds of a clock that never goes back, to measure waiting.
double now_s();

// Those of all parts.
StoreCounts sum(const std::vector<StoreCounts>& parts);

}  // namespace powerinfer
