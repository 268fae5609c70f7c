#include "weights/weight_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "ggml/sizes.h"
#include "weights/neuron_layout.h"

namespace powerinfer {

namespace {

// Sums of bytes by tier, part and layer.
class Sums {
 public:
    explicit Sums(std::vector<PlanPart>& parts) : parts_(parts) {}

    void add(Tier tier, Part part, int32_t layer, uint64_t bytes) {
        if (bytes == 0) return;
        const auto [found, is_new] = at_.try_emplace({tier, part, layer}, parts_.size());
        if (is_new) parts_.push_back({tier, part, layer, 0});
        uint64_t& sum = parts_[found->second].bytes;
        sum = ggml::size_sum(sum, bytes);
    }

 private:
    std::vector<PlanPart>& parts_;
    std::map<std::tuple<Tier, Part, int32_t>, size_t> at_;  // of parts_
};

bool wanted_on_device(const WeightSpec& w, const DeviceSplit& split) {
    // Experts come and go (device/expert_frames.h).
    if (w.chosen || w.expert_rows() || w.expert_bias) return false;
    const int64_t layer = layer_of(w.name);
    if (layer >= 0) return split.has(layer) && !w.stays_in_ram();
    return split.head && w.of_head();
}

// Divides the rows of a weight between RAM and device.
void divide_rows(WeightSpec& w, const DeviceSplit* split) {
    w.location.rows = w.rows;
    w.location.device_rows = 0;
    if (!split || !wanted_on_device(w, *split)) return;
    const int64_t layer = layer_of(w.name);
    if (layer >= 0 && split->splits(layer) && w.by_neuron()) {
        const std::vector<int32_t>& slot = split->slot[size_t(layer)];
        w.location.device_rows =
            std::count_if(slot.begin(), slot.end(), [](int32_t s) { return s >= 0; });
        // Rows that lie in the file as in memory stay there.
        if (!w.is<WholeBundle>()) w.location.rows -= w.location.device_rows;
        return;
    }
    w.location.device_rows = w.rows;
    // Neurons in RAM need their biases there, and experts their scales.
    const bool of_split = layer >= 0 && split->splits(layer) && w.part == Part::ffn;
    if (!w.stays_in_ram() && !of_split && !w.expert_scales) w.location.rows = 0;
}

}  // namespace

uint64_t total(const std::vector<PlanPart>& parts, Tier tier) {
    uint64_t sum = 0;
    for (const PlanPart& p : parts) {
        if (p.tier == tier) sum = ggml::size_sum(sum, p.bytes);
    }
    return sum;
}

WeightPlan plan_weights(std::vector<WeightSpec>& weights, bool use_mmap, const DeviceSplit* split,
                        OnDisk stored) {
    using Memory = Location::Memory;
    WeightPlan plan;
    Sums sums(plan.parts);
    uint64_t bundle = 0;  // where the current bundle begins
    for (WeightSpec& w : weights) {
        divide_rows(w, split);
        const int32_t layer = int32_t(layer_of(w.name));
        if (w.location.device_rows) {
            const uint64_t bytes = w.device_bytes(w.location.device_rows);
            w.location.device_offset = plan.device;
            plan.device = ggml::size_sum(plan.device, bytes);
            sums.add(Tier::gpu, w.part, layer, bytes);
        }
        if (w.stays_on_disk(stored)) {
            w.location.memory = Memory::disk;
            w.location.rows = 0;
            continue;
        }
        const auto* neurons = std::get_if<NeuronPart>(&w.target);
        const bool packed = neurons || w.is<StoredBundle>() || w.in_floats() || w.strips();
        w.location.memory = packed ? Memory::packed : use_mmap ? Memory::mapped : Memory::plain;
        const uint64_t bytes = w.bytes(w.location.rows);
        if (w.location.memory == Memory::mapped) {
            sums.add(Tier::ram, w.part, layer, bytes);
            continue;
        }
        uint64_t& end = w.location.memory == Memory::packed ? plan.packed : plan.plain;
        const uint64_t begin = end;
        end = ggml::size_sum(begin, bytes);
        if (neurons && neurons->part == 0) bundle = begin;
        w.location.offset = neurons ? bundle : begin;
        // Only the last part of a bundle is followed by a gap.
        if (!neurons || neurons->part + 1 == neurons->to->rows.size()) {
            end = ggml::size_rounded_up(end, kWeightLine);
        }
        sums.add(Tier::ram, w.part, layer, end - begin);
    }
    return plan;
}

}  // namespace powerinfer
