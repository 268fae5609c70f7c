#include "storage/cache/residency.h"

#include <algorithm>

#include "ggml/math.h"

namespace powerinfer {

namespace {

// Of the slots for a victim. On the default model's firings with half of the neurons resident, 8
// find 79.7% in memory, 16 80.0%, 64 80.3%.
constexpr int kSampled = 16;
// The same for prompts, which need most neurons: of a 7B's prompt of 512 tokens that misses 700,000
// parts, 16 took some 0.5 s in a profile.
constexpr int kSampledForMany = 4, kManyBegun = 64;
// How much of the uses of both parts a part does not save while the other one is missing. With all
// of it, no part would be the first to come. On a model with an exact predictor and half of the
// neurons resident, 0 reads 71.9 neurons a token, 0.5 67.8 (static: 66.1); on one whose predictor
// proposes twice the firings, with 15% resident, 1265 and 1239 (static: 2235).
constexpr float kPaired = 0.5f;
// The unit grows up to this power of two; then all counts are divided by it, which is exact.
constexpr double kMostUnit = 1ull << 60;
// Tokens behind the average: beyond them it becomes a slow decay, and floats count on.
constexpr double kMostTokens = 1 << 20;
// The share of the average is fitted to the uses of this many parts, in about 200 tokens.
constexpr int64_t kProbes = 512;
constexpr double kFitDecay = 0.995, kPrior = 1;
constexpr double kLeastShare = 0.1, kMostShare = 0.95;

}  // namespace

int32_t ResidencyShape::block_of(int64_t part) const {
    if (before.empty()) return int32_t(part / n);
    return int32_t(std::upper_bound(before.begin(), before.end(), part) - before.begin()) - 1;
}

Residency::Residency(ggml::Carver& carver, const ResidencyShape& shape,
                     const ResidencyOptions& options)
    : shape_(shape), options_(options), state_(options.seed) {
    if (shape.n_blocks < 0 || shape.n < 0 || shape.parts() > INT32_MAX) {
        throw ggml::Error(ggml::Code::unsupported, "more neurons than a cache can number");
    }
    for (Half half : {Half::gate, Half::up_down}) {
        if (shape.slots(half) < 0 || shape.slots(half) > shape.parts()) {
            throw ggml::Error(ggml::Code::internal, "a cache has more slots than neurons");
        }
        carve(carver, pool(half), shape.slots(half), shape.most(half));
    }
    growth_ = ggml::exp_f64(0.693147180559945309 / options.half_life);
    weigh();
}

void Residency::carve(ggml::Carver& carver, Pool& pool, int64_t capacity, int64_t most) {
    const int64_t parts = shape_.parts();
    pool.capacity = capacity;
    pool.decides = most > 0 || (capacity > 0 && capacity < parts);
    pool.all = pool.decides || capacity > 0;
    carver.take(pool.slot, {pool.all ? parts : shape_.n});
    if (pool.decides) {
        carver.take(pool.uses, {parts});
        carver.take(pool.owner, {std::max(capacity, most)});
        pool.n_probes = int32_t(std::min(parts, kProbes));
        carver.take(pool.probes, {pool.n_probes});
        pool.differ = kPrior;
        pool.agree = kPrior * double(options_.long_run);
    }
    if (!pool.slot) return;  // only counted
    if (pool.decides || capacity == 0) {
        std::fill_n(pool.slot, pool.all ? parts : shape_.n, -1);
        std::fill_n(pool.uses, pool.decides ? parts : 0, Uses{0, 0});
    } else {
        for (int64_t i = 0; i < parts; i++) pool.slot[i] = int32_t(i);
        pool.used = parts;
    }
}

void Residency::profile(int32_t block, const float* gate, const float* up_down) {
    for (Half half : {Half::gate, Half::up_down}) {
        const float* rate = half == Half::gate ? gate : up_down;
        const Pool& p = pool(half);
        if (!p.decides || !rate) continue;
        Uses* uses = p.uses + shape_.first(block);
        for (int32_t i = 0; i < shape_.size(block); i++)
            uses[i].all = rate[i] * options_.profile_tokens;
    }
    tokens_ = options_.profile_tokens;
    weigh();
}

void Residency::profile(const std::vector<RankedPart>& parts) {
    if (parts.empty()) return;
    for (const RankedPart& part : parts) {
        const Pool& p = pool(part.half);
        const bool known = part.block >= 0 && part.block < shape_.n_blocks && part.id >= 0 &&
                           part.id < shape_.size(part.block) && part.worth >= 0;
        if (!p.decides || !known) continue;
        p.uses[shape_.first(part.block) + part.id].all = part.worth * options_.profile_tokens;
    }
    tokens_ = options_.profile_tokens;
    weigh();
}

void Residency::begin(int32_t n) {
    double passed = 1, power = growth_;  // growth_ to the n
    for (int32_t left = n; left > 0; left /= 2, power *= power) {
        if (left % 2) passed *= power;
        // A prompt that is so long leaves nothing of what was before it.
        passed = std::min(passed, kMostUnit);
        power = std::min(power, kMostUnit);
    }
    for (Pool& p : pools_) {
        if (p.decides && begun_) fit(p);
    }
    unit_ *= passed;
    if (unit_ >= kMostUnit || tokens_ + n >= kMostTokens) rescale(n);
    for (Pool& p : pools_) {
        if (p.decides) probe(p);
    }
    begun_ = n;
    tokens_ += n;
    // The uses by several tokens count as if they were spread over them evenly.
    added_ = n > 1 ? unit_ * (1 - 1 / passed) / ((1 - 1 / growth_) * n) : unit_;
    weigh();
}

// Least squares: the share s with which recent + s * (average - recent) would have predicted best
// what the last tokens needed.
void Residency::fit(Pool& p) {
    const int64_t parts = shape_.parts();
    double agree = 0, differ = 0;
    for (int64_t i = 0; i < p.n_probes; i++) {
        const Probe& probe = p.probes[i];
        const double needed = double(p.uses[i * parts / p.n_probes].all - probe.all) / begun_;
        const double apart = double(probe.average) - double(probe.recent);
        agree += (needed - double(probe.recent)) * apart;
        differ += apart * apart;
    }
    p.agree = kFitDecay * p.agree + agree;
    p.differ = kFitDecay * p.differ + differ;
}

void Residency::probe(Pool& p) {
    const int64_t parts = shape_.parts();
    const float recent = float((1 - 1 / growth_) / unit_);
    const float average = tokens_ > 0 ? float(1 / tokens_) : 0;
    for (int64_t i = 0; i < p.n_probes; i++) {
        const Uses& uses = p.uses[i * parts / p.n_probes];
        p.probes[i] = {uses.recent * recent, uses.all * average, uses.all};
    }
}

void Residency::weigh() {
    for (Pool& p : pools_) {
        if (!p.decides) continue;
        const double fitted = std::clamp(p.agree / p.differ, kLeastShare, kMostShare);
        const double share = options_.fit ? fitted : double(options_.long_run);
        p.recent = float((1 - share) * (1 - 1 / growth_) / unit_);
        p.average = tokens_ > 0 ? float(share / tokens_) : 0;
    }
}

void Residency::rescale(int32_t n) {
    float recent = 1, all = 1;
    while (unit_ >= kMostUnit) {
        unit_ /= kMostUnit;
        recent /= float(kMostUnit);
    }
    while (tokens_ >= 1 && tokens_ + n >= kMostTokens) {
        tokens_ /= 2;
        all /= 2;
    }
    for (Pool& p : pools_) {
        for (int64_t i = 0; p.decides && i < shape_.parts(); i++) {
            // What is all but forgotten becomes 0 before it is slow to compute with.
            const float left = p.uses[i].recent * recent;
            p.uses[i] = {left < 1e-30f ? 0 : left, p.uses[i].all * all};
        }
    }
}

void Residency::count(Half half, int32_t block, const int32_t* ids, int64_t n, float tokens) {
    const Pool& p = pool(half);
    if (!p.decides) return;
    Uses* uses = p.uses + shape_.first(block);
    const float added = float(added_ * tokens);
    for (int64_t i = 0; i < n; i++) {
        uses[ids[i]].recent += added;
        uses[ids[i]].all += tokens;
    }
}

// splitmix64.
uint64_t Residency::random() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// What a part is worth beside the other part of its neuron. Where that one is not resident, a use
// of both costs a read in any case.
float Residency::saves(const Pool& p, int64_t part) const {
    const bool is_gate = &p == &pool(Half::gate);
    const Pool& other = pool(is_gate ? Half::up_down : Half::gate);
    const float own = worth(p, p.uses[part]);
    if (!other.decides || other.slot[part] >= 0) return own;
    return own - kPaired * (is_gate ? worth(other, other.uses[part]) : own);
}

// The slot that is worth least among those sampled, or -1 if all of them are pinned. No slot is
// free. The owners are found first, so that the processor waits for all their counts at once.
int32_t Residency::victim(const Pool& p) {
    const int n = begun_ < kManyBegun ? kSampled : kSampledForMany;
    int32_t slots[kSampled], owners[kSampled];
    for (int i = 0; i < n; i++) {
        slots[i] = int32_t(((random() >> 32) * uint64_t(p.capacity)) >> 32);
        owners[i] = p.owner[slots[i]];
    }
    const int64_t begin = p.pinned < 0 ? 0 : shape_.first(p.pinned);
    const int64_t end = p.pinned < 0 ? 0 : shape_.first(p.pinned + 1);
    int32_t found = -1;
    float least = 0;
    for (int i = 0; i < n; i++) {
        if (owners[i] >= begin && owners[i] < end) continue;
        const float value = saves(p, owners[i]);
        if (found >= 0 && value >= least) continue;
        found = slots[i];
        least = value;
    }
    return found;
}

int32_t Residency::admit(Half half, int32_t block, int32_t id) {
    Pool& p = pool(half);
    const int64_t part = shape_.first(block) + id;
    if (!p.decides) return p.capacity ? p.slot[part] : -1;
    if (p.slot[part] >= 0) return p.slot[part];
    int32_t slot;
    if (p.used < p.capacity) {
        slot = int32_t(p.used++);
    } else {
        if (p.capacity == 0) return -1;
        slot = victim(p);
        if (slot < 0 || saves(p, p.owner[slot]) >= saves(p, part)) return -1;
        p.slot[p.owner[slot]] = -1;
    }
    p.owner[slot] = int32_t(part);
    return p.slot[part] = slot;
}

void Residency::resize(Half half, int64_t slots, std::vector<Move>& moves) {
    Pool& p = pool(half);
    moves.clear();
    if (shape_.most(half) == 0 || slots > shape_.most(half)) {
        throw ggml::Error(ggml::Code::internal, "a cache is resized beyond its tables");
    }
    std::vector<Move> lost;  // `to`: the part
    for (int64_t slot = slots; slot < p.used; slot++) {
        const int32_t part = p.owner[slot];
        p.slot[part] = -1;
        lost.push_back({int32_t(slot), part});
    }
    p.capacity = slots;
    p.used = std::min(p.used, slots);
    for (const Move& m : lost) {
        const int32_t block = shape_.block_of(m.to);
        const int32_t to = admit(half, block, int32_t(m.to - shape_.first(block)));
        if (to >= 0) moves.push_back({m.from, to});
    }
    (half == Half::gate ? shape_.gate_slots : shape_.up_down_slots) = slots;
}

void Residency::grow(Half half, int64_t slots) noexcept {
    pool(half).capacity = slots;
    (half == Half::gate ? shape_.gate_slots : shape_.up_down_slots) = slots;
}

std::vector<float> Residency::rates(Half half, int64_t step) const {
    const Pool& p = pool(half);
    std::vector<float> rates;
    for (int64_t i = 0; i + step <= shape_.parts(); i += step) {
        rates.push_back(p.decides ? worth(p, p.uses[i]) : 1.0f);
    }
    return rates;
}

std::vector<RankedPart> Residency::ranked(bool resident) const {
    std::vector<RankedPart> found;
    for (Half half : {Half::gate, Half::up_down}) {
        const Pool& p = pool(half);
        const auto begun = std::ptrdiff_t(found.size());
        for (int64_t i = 0; p.decides && i < shape_.parts(); i++) {
            const float value = worth(p, p.uses[i]);
            // A free slot takes whatever is read first, which is worth more than nothing.
            if (resident ? p.slot[i] < 0 : value == 0) continue;
            const int32_t block = shape_.block_of(i);
            found.push_back({half, block, int32_t(i - shape_.first(block)), value});
        }
        std::stable_sort(
            found.begin() + begun, found.end(),
            [](const RankedPart& a, const RankedPart& b) { return a.worth > b.worth; });
        const auto room = size_t(begun) + size_t(p.decides ? p.capacity : 0);
        if (found.size() > room) found.erase(found.begin() + std::ptrdiff_t(room), found.end());
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const RankedPart& a, const RankedPart& b) { return a.worth > b.worth; });
    return found;
}

}  // namespace powerinfer
