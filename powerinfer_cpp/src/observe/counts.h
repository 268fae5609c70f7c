// The work of a session: neurons, and bytes of weights and cache.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/batch.h"
#include "memory/kv_pages.h"
#include "model/model.h"
#include "storage/store_counts.h"

namespace powerinfer {

// Sums over all rows since the session began.
struct Counts {
    int64_t rows = 0, kept = 0;                  // kept: with logits or an embedding
    uint64_t kv_bytes = 0, device_kv_bytes = 0;  // keys, values and states that were read
    uint64_t transferred = 0;                    // bytes to and from a device
    int64_t answers = 0;                         // halves of layers that the CPU gave to a device
    // Nanoseconds that the CPU waited for the device's part of a shared layer, and the device for
    // the CPU's.
    uint64_t waited_for_device = 0, waited_for_cpu = 0;

    // Of each feed-forward part (FeedForward::index).
    std::vector<ggml::NeuronCounts> neurons;
    std::vector<ggml::NeuronCounts> on_device;  // of these, those that a device computed
    // Of these, computed ones of which the disk had to bring a part, or all.
    std::vector<int64_t> from_disk;
    std::vector<int64_t> predicted;   // rows given to a predictor; once per chosen expert
    std::vector<StoreCounts> stored;  // what the disk brought, in this session's calls

    Counts() = default;
    explicit Counts(size_t n_ffns)
        : neurons(n_ffns),
          on_device(n_ffns),
          from_disk(n_ffns),
          predicted(n_ffns),
          stored(n_ffns) {}
    void add(const Model& model, const Batch& batch, const KvPages& kv);
};

// Bytes by part of the model, counted as if each row had been computed alone. Does not include
// audits.
struct Traffic {
    uint64_t attention = 0, predictor = 0, ffn = 0, head = 0, kv = 0;
};

// embedding: kept rows have embeddings instead of logits and do not read the head.
Traffic traffic(const Model& model, const Counts& counts, bool embedding);
// Of that, what a device read.
Traffic device_traffic(const Model& model, const Counts& counts, bool embedding);

}  // namespace powerinfer
