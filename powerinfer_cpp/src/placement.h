// Where neurons are to live, as a placement says that was solved for a model and a machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "names.h"

namespace powerinfer {

// Homes of the neurons of a layer, or of one expert.
struct NeuronHomes {
    std::vector<Tier> tier;  // [n_ff]

    int64_t count(Tier home) const;
    std::vector<int32_t> ids(Tier home) const;  // ascending
};

struct Placement {
    std::string path;   // of the file that says so
    std::string stale;  // why it does not count: it is one for something else; "" where it does
    // What it was solved for; 0 and "" where it does not say.
    int64_t vram_budget = 0, ram_budget = 0;  // bytes
    std::string device;
    std::vector<std::vector<NeuronHomes>> layers;  // [n_layer][max(1, n_expert)]

    int64_t count(Tier home) const;  // of all layers
};

}  // namespace powerinfer
