// The work of a session: neurons, and bytes of weights and cache.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/batch.h"
#include "model/model.h"
#include "storage/store.h"

namespace powerinfer {

// Sums over all rows since the session began.
struct Counts {
    int64_t rows = 0, kept = 0;                  // kept: with logits or an embedding
    uint64_t kv_bytes = 0, device_kv_bytes = 0;  // keys and values that attention read
    uint64_t transferred = 0;                    // bytes to and from a device
    int64_t answers = 0;                         // halves of layers that the CPU gave to a device
    // Nanoseconds that the CPU waited for the device's part of a shared layer, and the device for
    // the CPU's.
    uint64_t waited_for_device = 0, waited_for_cpu = 0;
    std::vector<ggml::NeuronCounts> neurons;    // [n_layer]
    std::vector<ggml::NeuronCounts> on_device;  // [n_layer]: of these, those that a device computed
    // [n_layer]: of these, computed ones of which the disk had to bring a part.
    std::vector<int64_t> from_disk;
    StoreCounts stored;  // what the disk brought, in this session's calls
    // [n_layer]: rows given to a predictor; in mixtures once per chosen expert.
    std::vector<int64_t> predicted;
    void add(const Model& model, const Batch& batch, int64_t position_bytes);
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
