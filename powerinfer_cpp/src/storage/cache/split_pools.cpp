#include "storage/cache/split_pools.h"

#include <algorithm>
#include <numeric>

namespace powerinfer {

namespace {

// Seconds per token that a neuron's reads take, by what of it is resident.
struct Times {
    double none, gate, up_down;  // with both: 0
};

Times times_of(const DiskCost& disk, const PartBytes& b, double p, double f) {
    const double up_down = f * disk.seconds(double(b.up_down));
    const double alone = p * disk.seconds(double(b.gate));
    const double both = p * disk.seconds(double(b.gate + b.up_down));
    return {std::min(both, alone + up_down), up_down, alone};
}

// The same where the neighbours are read, too: a neuron costs its share of a run, in which the part
// that is resident is read along.
Times times_in_runs(const DiskCost& disk, const PartBytes& b, double p) {
    const double run = p * disk.joined(double(b.gate + b.up_down));
    return {run, run, run};
}

// The same where all gates are needed, and few neurons fire: what lacks its gate is read in runs,
// and what has it alone.
Times times_of_fired(const DiskCost& disk, const PartBytes& b, double p, double f) {
    const double run = p * disk.joined(double(b.gate + b.up_down));
    return {run, f * disk.seconds(double(b.up_down)), run};
}

}  // namespace

void CacheSteps::add(const float* gate_rate, const float* up_down_rate, int64_t n, double each,
                     double chosen) {
    constexpr double kNearlyAll = 0.5;
    const double most = kNearlyAll * chosen * double(n);
    const bool in_runs = std::accumulate(up_down_rate, up_down_rate + n, 0.0) >= most;
    const bool all_gates = std::accumulate(gate_rate, gate_rate + n, 0.0) >= most;
    for (int64_t i = 0; i < n; i++) {
        // A neuron that fires was proposed. One that never did is still worth something.
        const double f = std::max(double(up_down_rate[i]), 1e-9);
        const double p = std::max(double(gate_rate[i]), f);
        const Times t = in_runs     ? times_in_runs(disk_, part_, p)
                        : all_gates ? times_of_fired(disk_, part_, p, f)
                                    : times_of(disk_, part_, p, f);
        none_ += t.none * each;
        const auto step = [&](double saved, bool gate, bool up_down) {
            const double bytes =
                double(gate ? part_.gate : 0) + double(up_down ? part_.up_down : 0);
            if (bytes > 0) {
                steps_.push_back({float(saved / bytes), {gate, up_down}, each, saved * each});
            }
        };
        // The upper hull of what its states save: a part that saves time only together with the
        // other one comes with it.
        const double whole = t.none / double(part_.gate + part_.up_down);
        const double gate = (t.none - t.gate) / double(std::max<uint64_t>(part_.gate, 1));
        const double up_down = (t.none - t.up_down) / double(std::max<uint64_t>(part_.up_down, 1));
        if (gate > whole && gate >= up_down) {
            step(t.none - t.gate, true, false);
            step(t.gate, false, true);
        } else if (up_down > whole) {
            step(t.none - t.up_down, false, true);
            step(t.up_down, true, false);
        } else {
            step(t.none, true, true);
        }
    }
}

void CacheSteps::sort() {
    std::stable_sort(steps_.begin(), steps_.end(),
                     [](const Step& a, const Step& b) { return a.worth > b.worth; });
    Sum sum{};
    sums_.assign(1, sum);
    sums_.reserve(steps_.size() + 1);
    for (const Step& s : steps_) {
        sum.bytes += double(s.has[0] * part_.gate + s.has[1] * part_.up_down) * s.each;
        for (int half = 0; half < 2; half++) sum.slots[half] += s.has[half] * s.each;
        sum.saved += s.saved;
        sums_.push_back(sum);
    }
}

PoolSlots CacheSteps::split(uint64_t bytes) const {
    const auto after =
        std::upper_bound(sums_.begin(), sums_.end(), double(bytes),
                         [](double room, const Sum& sum) { return room < sum.bytes; });
    const Sum& a = *(after - 1);
    double gate = a.slots[0], up_down = a.slots[1], saved = a.saved;
    if (after != sums_.end()) {  // of this step, what fits
        const double share = (double(bytes) - a.bytes) / (after->bytes - a.bytes);
        gate += share * (after->slots[0] - a.slots[0]);
        up_down += share * (after->slots[1] - a.slots[1]);
        saved += share * (after->saved - a.saved);
    }
    return {int64_t(gate + 1e-6), int64_t(up_down + 1e-6), std::max(0.0, none_ - saved)};
}

PoolSlots split_pools(uint64_t bytes, const PartBytes& part, const float* gate_rate,
                      const float* up_down_rate, int64_t n, const DiskCost& disk, double each,
                      double chosen) {
    CacheSteps steps(part, disk);
    steps.add(gate_rate, up_down_rate, n, each, chosen);
    steps.sort();
    return steps.split(bytes);
}

}  // namespace powerinfer
