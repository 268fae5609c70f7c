#include "weight_plan.h"

#include "bundle.h"
#include "ggml/sizes.h"

namespace powerinfer {

namespace {

constexpr uint64_t kLine = 64;  // packed and plain weights start at a cache line

void add(std::vector<PlanPart>& parts, Part part, int32_t layer, uint64_t bytes) {
    // From the end: the weights of a layer are adjacent.
    for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
        if (p->part != part || p->layer != layer) continue;
        p->bytes = ggml::size_sum(p->bytes, bytes);
        return;
    }
    parts.push_back({Tier::ram, part, layer, bytes});
}

}  // namespace

uint64_t total(const std::vector<PlanPart>& parts) {
    uint64_t sum = 0;
    for (const PlanPart& p : parts) sum = ggml::size_sum(sum, p.bytes);
    return sum;
}

WeightPlan plan_weights(std::vector<WeightSpec>& weights, bool use_mmap) {
    using Memory = Place::Memory;
    WeightPlan plan;
    uint64_t bundle = 0;  // where the current bundle begins
    for (WeightSpec& w : weights) {
        const int32_t layer = int32_t(layer_of(w.name));
        const auto* neurons = std::get_if<NeuronPart>(&w.target);
        w.place.memory = neurons || w.strips() ? Memory::packed
                         : use_mmap            ? Memory::mapped
                                               : Memory::plain;
        if (w.place.memory == Memory::mapped) {
            add(plan.parts, w.part, layer, w.bytes());
            continue;
        }
        uint64_t& end = w.place.memory == Memory::packed ? plan.packed : plan.plain;
        const uint64_t begin = end;
        end = ggml::size_sum(begin, w.bytes());
        if (neurons && neurons->part == 0) bundle = begin;
        w.place.offset = neurons ? bundle : begin;
        // Only the last part of a bundle is followed by a gap.
        if (!neurons || neurons->part + 1 == neurons->to->rows.size()) {
            end = ggml::size_rounded_up(end, kLine);
        }
        add(plan.parts, w.part, layer, end - begin);
    }
    return plan;
}

}  // namespace powerinfer
