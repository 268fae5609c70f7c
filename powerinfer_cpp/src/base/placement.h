// A placement: the tier for each neuron, solved for a model and a machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/names.h"

namespace powerinfer {

// Tiers of the neurons of a layer, or of one expert.
struct NeuronHomes {
    std::vector<Tier> tier;  // [n_ff]

    int64_t count(Tier home) const;
    std::vector<int32_t> ids(Tier home) const;  // ascending
};

// Why a device does not have all of a model: sentences on the layer before its first one, and on
// the head. "": it has them.
struct LeftToCpu {
    std::string layer, head;
    bool needs_operator = false;  // one that the device does not have
};

// What a device holds of a model: the layers from `first_layer` on, perhaps the head, and of each
// layer's neurons some or all.
struct DeviceSplit {
    int64_t first_layer = 0;
    bool head = false;
    // [n_layer][n_ff]: the row of a neuron on the device, or -1 - its row in RAM; rows of both are
    // in the order of the neurons. Empty for layers whose neurons are not split: RAM holds those
    // before first_layer, the device the others.
    std::vector<std::vector<int32_t>> slot;
    // Bytes of a piece in which rows of prompts get the neurons of RAM (PromptUpload); 0: the CPU
    // computes these.
    uint64_t piece = 0;
    // Bytes for experts (FrameShape).
    uint64_t expert_bytes = 0;
    LeftToCpu left;

    bool has(int64_t layer) const { return layer >= first_layer; }
    bool splits(int64_t layer) const { return has(layer) && !slot[size_t(layer)].empty(); }
};

struct Placement {
    std::string path;   // of the file that has it
    std::string stale;  // why it does not apply to this model; "" if it does
    // What it was solved for; 0 and "" if unknown.
    int64_t vram_budget = 0, ram_budget = 0;  // bytes
    std::string device;
    std::vector<std::vector<NeuronHomes>> layers;  // [n_layer][max(1, n_expert)]

    int64_t count(Tier home) const;  // over all layers
    // Does it say what a device with so many bytes gets? If it was solved for another budget, the
    // statistics that it was solved from are a better answer.
    bool applies(uint64_t vram) const { return !vram_budget || uint64_t(vram_budget) == vram; }
};

}  // namespace powerinfer
