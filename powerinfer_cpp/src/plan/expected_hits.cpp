#include "plan/expected_hits.h"

#include <algorithm>
#include <iterator>

#include "storage/cache/split_pools.h"

namespace powerinfer {

namespace {

constexpr double kMemory = 30e9;  // bytes a second

struct Point {
    double share, hits;
};
constexpr Point kMeasured[] = {{0, 0},       {0.06, 0.37}, {0.19, 0.74},
                               {0.38, 0.89}, {0.64, 0.96}, {1, 1}};

}  // namespace

double expected_hits(double share) {
    const Point* const after =
        std::upper_bound(std::begin(kMeasured) + 1, std::end(kMeasured) - 1, share,
                         [](double value, const Point& point) { return value < point.share; });
    const Point &a = after[-1], &b = after[0];
    const double part = std::clamp((share - a.share) / (b.share - a.share), 0.0, 1.0);
    return a.hits + part * (b.hits - a.hits);
}

double memory_seconds(const Model& m) {
    double bytes = 0;
    for (const WeightSpec& w : m.weights) {
        if (!w.is<Product>()) continue;
        double share = 1;
        if (w.chosen) {
            share = double(w.of->n_used) / double(w.of->n_blocks());
        }
        bytes += share * double(w.bytes());
    }
    return bytes / kMemory;
}

double expected_read_seconds(const Model& m, const PageShape& experts) {
    double seconds = 0;
    for (const FeedForward* part : m.ffns) {
        const int32_t of_class = experts.class_of[size_t(part->index)];
        if (of_class < 0) continue;
        const PageShape::Class& c = experts.classes[size_t(of_class)];
        const double share = double(c.slots) / double(experts.blocks_of(of_class));
        seconds += (1 - expected_hits(share)) * part->n_used * kDisk.joined(double(c.page));
    }
    return seconds;
}

}  // namespace powerinfer
