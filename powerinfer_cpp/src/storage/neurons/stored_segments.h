// The neurons of a block of which many are needed, for many rows: segment after segment (see
// ggml/neurons.h), while the disk brings those that follow.
#pragma once

#include <functional>

#include "storage/neurons/store.h"

namespace powerinfer {

class StoredSegments {
 public:
    // Opens the block. needed(id): may any row need the neuron? next: the block whose segments
    // follow, which is then brought in the same way, all of it; or -1. parts: scratch for as many
    // as a segment has neurons, and one.
    StoredSegments(ggml::Threads& threads, NeuronStore& store, int32_t block, int32_t next,
                   std::function<bool(int32_t)> needed, NeuronParts* parts);

    // Waits for the needed neurons of segments [begin, end), and those before these. Ends the use
    // of segments before `begin`: the cache may keep some of them.
    void bring(int64_t begin, int64_t end);
    // Ends the use of all, and closes the block.
    void end() {
        bring(ggml::kSegments, ggml::kSegments);
        store_.close();
    }

 private:
    bool request(int lane, int64_t s);
    void request_next(int lane, int64_t s);
    int await(int64_t s);
    static int64_t tag(int32_t block, int64_t s) { return int64_t(block) * ggml::kSegments + s; }

    ggml::Threads& threads_;
    NeuronStore& store_;
    const int32_t block_, next_;
    const std::function<bool(int32_t)> needed_;
    NeuronParts* const parts_;
    int64_t begin_ = 0, end_ = 0;         // segments in use
    int lanes_[StoreShape::kLanes] = {};  // of these: the lane that has what was missing
};

}  // namespace powerinfer
