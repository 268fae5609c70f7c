#include "base/placement.h"

#include <algorithm>

namespace powerinfer {

int64_t NeuronHomes::count(Tier home) const {
    return std::count(tier.begin(), tier.end(), home);
}

std::vector<int32_t> NeuronHomes::ids(Tier home) const {
    std::vector<int32_t> found;
    for (size_t i = 0; i < tier.size(); i++) {
        if (tier[i] == home) found.push_back(int32_t(i));
    }
    return found;
}

int64_t Placement::count(Tier home) const {
    int64_t n = 0;
    for (const auto& blocks : layers) {
        for (const NeuronHomes& block : blocks) n += block.count(home);
    }
    return n;
}

}  // namespace powerinfer
