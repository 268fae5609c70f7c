#include "storage/split_pools.h"

#include <algorithm>
#include <numeric>

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

// The same where the neighbours are read, too: a neuron costs its share of a run, in which the part
// that is resident is read along.
Times times_in_runs(const DiskCost& disk, const PartBytes& b, double p) {
    const double run = p * disk.joined(double(b.first + b.rest));
    return {run, run, run};
}

}  // namespace

void CacheSteps::add(const float* first_rate, const float* rest_rate, int64_t n, double each,
                     double chosen) {
    constexpr double kNearlyAll = 0.5;
    const double fired = std::accumulate(rest_rate, rest_rate + n, 0.0);
    const bool in_runs = fired >= kNearlyAll * chosen * double(n);
    for (int64_t i = 0; i < n; i++) {
        // A neuron that fires was proposed. One that never did is still worth something.
        const double f = std::max(double(rest_rate[i]), 1e-9);
        const double p = std::max(double(first_rate[i]), f);
        const Times t = in_runs ? times_in_runs(disk_, part_, p) : times_of(disk_, part_, p, f);
        none_ += t.none * each;
        const auto step = [&](double saved, bool first, bool rest) {
            const double bytes = double(first ? part_.first : 0) + double(rest ? part_.rest : 0);
            if (bytes > 0) {
                steps_.push_back({float(saved / bytes), {first, rest}, each, saved * each});
            }
        };
        // The upper hull of what its states save: a part that saves time only together with the
        // other one comes with it.
        const double whole = t.none / double(part_.first + part_.rest);
        const double first = (t.none - t.first) / double(std::max<uint64_t>(part_.first, 1));
        const double rest = (t.none - t.rest) / double(std::max<uint64_t>(part_.rest, 1));
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
}

void CacheSteps::sort() {
    std::stable_sort(steps_.begin(), steps_.end(),
                     [](const Step& a, const Step& b) { return a.worth > b.worth; });
    Sum sum{};
    sums_.assign(1, sum);
    sums_.reserve(steps_.size() + 1);
    for (const Step& s : steps_) {
        sum.bytes += double(s.has[0] * part_.first + s.has[1] * part_.rest) * s.each;
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
    double first = a.slots[0], rest = a.slots[1], saved = a.saved;
    if (after != sums_.end()) {  // of this step, what fits
        const double share = (double(bytes) - a.bytes) / (after->bytes - a.bytes);
        first += share * (after->slots[0] - a.slots[0]);
        rest += share * (after->slots[1] - a.slots[1]);
        saved += share * (after->saved - a.saved);
    }
    return {int64_t(first + 1e-6), int64_t(rest + 1e-6), std::max(0.0, none_ - saved)};
}

PoolSlots split_pools(uint64_t bytes, const PartBytes& part, const float* first_rate,
                      const float* rest_rate, int64_t n, const DiskCost& disk, double each,
                      double chosen) {
    CacheSteps steps(part, disk);
    steps.add(first_rate, rest_rate, n, each, chosen);
    steps.sort();
    return steps.split(bytes);
}

}  // namespace powerinfer
