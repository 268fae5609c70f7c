#include "split_pools.h"

#include <algorithm>
#include <vector>

namespace powerinfer {

namespace {

// Seconds per token that a neuron's reads take, by what of it is resident.
struct Times {
    double none, first, rest;  // with both: 0
};

Times times_of(const DiskCost& disk, const PartBytes& b, double p, double f) {
    const double rest = f * disk.seconds(double(b.rest));
    const double alone = p * disk.seconds(double(b.first));
    const double both = p * disk.seconds(double(b.first + b.rest));
    return {std::min(both, alone + rest), rest, alone};
}

// One step of a neuron towards being resident.
struct Step {
    float worth;    // seconds per byte
    uint8_t first;  // parts that become resident
    uint8_t rest;
    float saved;  // seconds
};

// The steps of a neuron in falling worth per byte: the upper hull of what its states save. So a
// part that saves time only together with the other one comes with it.
void add_steps(std::vector<Step>& steps, const PartBytes& b, const Times& t) {
    const auto step = [&](double saved, bool first, bool rest) {
        const double bytes = double(first ? b.first : 0) + double(rest ? b.rest : 0);
        if (saved > 0 && bytes > 0) {
            steps.push_back({float(saved / bytes), first, rest, float(saved)});
        }
    };
    const double whole = t.none / double(b.first + b.rest);
    const double first = (t.none - t.first) / double(std::max<uint64_t>(b.first, 1));
    const double rest = (t.none - t.rest) / double(std::max<uint64_t>(b.rest, 1));
    if (first > whole && first >= rest) {
        step(t.none - t.first, true, false);
        step(t.first, false, true);
    } else if (rest > whole) {
        step(t.none - t.rest, false, true);
        step(t.rest, true, false);
    } else {
        step(t.none, true, true);
    }
}

}  // namespace

PoolSlots split_pools(uint64_t bytes, const PartBytes& part, const float* first_rate,
                      const float* rest_rate, int64_t n, const DiskCost& disk, double each) {
    std::vector<Step> steps;
    steps.reserve(size_t(n) * 2);
    PoolSlots slots;
    for (int64_t i = 0; i < n; i++) {
        // A neuron that fires was proposed. One that never did is still worth something.
        const double f = std::max(double(rest_rate[i]), 1e-9);
        const double p = std::max(double(first_rate[i]), f);
        const Times t = times_of(disk, part, p, f);
        slots.seconds += t.none * each;
        add_steps(steps, part, t);
    }
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.worth > b.worth; });
    double left = double(bytes), first = 0, rest = 0;
    for (const Step& s : steps) {
        const double size = double(s.first * part.first + s.rest * part.rest) * each;
        const double share = size > left ? left / size : 1;  // of the last step, what fits
        first += s.first * share * each;
        rest += s.rest * share * each;
        slots.seconds -= double(s.saved) * share * each;
        left -= size * share;
        if (share < 1) break;
    }
    slots.first = int64_t(first + 1e-6);
    slots.rest = int64_t(rest + 1e-6);
    slots.seconds = std::max(0.0, slots.seconds);
    return slots;
}

PoolSlots exact_pools(uint64_t bytes, const PartBytes& part, int64_t n) {
    PoolSlots slots;
    const uint64_t first = ggml::size_product(part.first, uint64_t(n));
    if (first > bytes) return slots;
    slots.first = n;
    slots.rest = part.rest ? std::min(n, int64_t((bytes - first) / part.rest)) : n;
    return slots;
}

}  // namespace powerinfer
