#include "storage/cache/simulate_cache.h"

#include <algorithm>
#include <memory>
#include <numeric>

namespace powerinfer {

namespace {

constexpr Half kHalves[] = {Half::gate, Half::up_down};

// What one token needs of one block.
struct Needs {
    int64_t time;  // token * n_blocks + block
    int32_t block;
    std::vector<int32_t> ids[2];  // by Half, ascending
    std::vector<uint8_t> hit[2];  // 1 where the part is resident: what policies find out
};

class Replay {
 public:
    Replay(const ResidencyShape& shape, const CacheTrace& trace) : shape_(shape), trace_(trace) {}
    int64_t times() const { return int64_t(trace_.n_tokens) * shape_.n_blocks; }
    void read(int64_t time, Needs& out) const {
        out.time = time;
        out.block = int32_t(time % shape_.n_blocks);
        list(trace_.gate, time, out.ids[0]);
        list(trace_.up_down, time, out.ids[1]);
        for (int h = 0; h < 2; h++) out.hit[h].assign(out.ids[h].size(), 0);
    }

 private:
    void list(const uint8_t* bits, int64_t time, std::vector<int32_t>& out) const {
        const int64_t bytes = (shape_.n + 7) / 8;
        out.clear();
        for (int32_t i = 0; i < shape_.n; i++) {
            if (!bits || bits[time * bytes + i / 8] >> i % 8 & 1) out.push_back(i);
        }
    }
    const ResidencyShape& shape_;
    const CacheTrace& trace_;
};

class Policy {
 public:
    virtual ~Policy() = default;
    virtual void use(Needs& needs) = 0;
};

class Ours : public Policy {
 public:
    Ours(const ResidencyShape& shape, const ResidencyOptions& options, const CacheStart& start)
        : cache_("the cache", shape, options) {
        for (int32_t b = 0; b < shape.n_blocks && start.up_down_rate; b++) {
            const int64_t at = int64_t(b) * shape.n;
            cache_->profile(b, start.gate_rate ? start.gate_rate + at : nullptr,
                            start.up_down_rate ? start.up_down_rate + at : nullptr);
        }
        if (!start.up_down_rate) return;
        for (const RankedPart& part : cache_->wanted())
            cache_->admit(part.half, part.block, part.id);
    }
    void use(Needs& needs) override {
        if (needs.block == 0) cache_->begin(1);
        for (Half half : kHalves) {
            const std::vector<int32_t>& ids = needs.ids[int(half)];
            const int32_t* slots = cache_->slots(half, needs.block);
            cache_->count(half, needs.block, ids.data(), int64_t(ids.size()));
            cache_->pin(half, needs.block);
            for (size_t i = 0; i < ids.size(); i++) needs.hit[int(half)][i] = slots[ids[i]] >= 0;
            for (size_t i = 0; i < ids.size(); i++) {
                if (!needs.hit[int(half)][i]) cache_->admit(half, needs.block, ids[i]);
            }
            cache_->unpin(half);
        }
    }

 private:
    ggml::Carved<Residency> cache_;
};

// The slots * parts with the highest rates, by falling rate, then ascending.
std::vector<int32_t> best(const float* rate, int64_t parts, int64_t slots) {
    std::vector<int32_t> order(static_cast<size_t>(parts));
    std::iota(order.begin(), order.end(), 0);
    if (rate) {
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return rate[a] > rate[b]; });
    }
    order.resize(rate || slots == parts ? size_t(slots) : 0);
    return order;
}

// Resident parts of a pool, each with a key; the one with the smallest key goes first, and among
// equal keys the one that got its own first. Every step
// takes constant time but the search for the smallest key, which goes over empty keys.
class Keyed {
 public:
    Keyed(int64_t parts, int64_t keys)
        : at_(size_t(parts), -1), links_(size_t(parts)), ends_(size_t(keys)) {}
    bool has(int32_t part) const { return at_[size_t(part)] >= 0; }
    int64_t size() const { return size_; }
    int64_t key(int32_t part) const { return at_[size_t(part)]; }
    void put(int32_t part, int64_t key) {
        if (has(part)) take(part);
        Links& ends = ends_[size_t(key)];
        links_[size_t(part)] = {ends.before, -1};
        (ends.before >= 0 ? links_[size_t(ends.before)].after : ends.after) = part;
        ends.before = part;
        at_[size_t(part)] = key;
        least_ = std::min(least_, key);
        size_++;
    }
    void take(int32_t part) {
        const Links l = links_[size_t(part)];
        Links& ends = ends_[size_t(key(part))];
        (l.before >= 0 ? links_[size_t(l.before)].after : ends.after) = l.after;
        (l.after >= 0 ? links_[size_t(l.after)].before : ends.before) = l.before;
        at_[size_t(part)] = -1;
        size_--;
    }
    int32_t least() {  // there is one
        while (ends_[size_t(least_)].after < 0) least_++;
        return ends_[size_t(least_)].after;
    }

 private:
    struct Links {
        int32_t before = -1, after = -1;
    };
    std::vector<int64_t> at_;  // key, or -1
    std::vector<Links> links_;
    std::vector<Links> ends_;  // by key: before is the last part, after the first one
    int64_t least_ = 0, size_ = 0;
};

// LRU: the key is the time of the last use. Belady: the later the next use, the smaller the key.
class ByTime : public Policy {
 public:
    ByTime(const ResidencyShape& shape, const Replay& replay, const CacheStart& start, bool future)
        : n_(shape.n), times_(replay.times()), future_(future) {
        if (future) look_ahead(shape, replay);
        for (Half half : kHalves) {
            const int h = int(half);
            pools_.emplace_back(shape.parts(), times_ + 1);
            slots_[h] = shape.slots(half);
            const float* rate = h ? start.up_down_rate : start.gate_rate;
            const std::vector<int32_t> order = best(rate, shape.parts(), slots_[h]);
            for (size_t i = order.size(); i-- > 0;) {  // the least needed goes first
                const int64_t soonest = future ? soonest_[h][size_t(order[i])] : times_;
                pools_[size_t(h)].put(order[i], times_ - soonest);
            }
        }
    }
    void use(Needs& needs) override {
        for (int h = 0; h < 2; h++) {
            Keyed& pool = pools_[size_t(h)];
            for (size_t i = 0; i < needs.ids[h].size(); i++) {
                const int32_t part = needs.block * n_ + needs.ids[h][i];
                const int64_t key = future_ ? times_ - next_[h][done_[h]++] : needs.time;
                needs.hit[h][i] = pool.has(part);
                if (!pool.has(part) && pool.size() == slots_[h]) {
                    if (slots_[h] == 0) continue;
                    const int32_t victim = pool.least();
                    if (future_ && pool.key(victim) >= key) continue;
                    pool.take(victim);
                }
                pool.put(part, key);
            }
        }
    }

 private:
    // For each use the time of the next one of that part; times() if there is none.
    void look_ahead(const ResidencyShape& shape, const Replay& replay) {
        Needs needs;
        for (auto& soonest : soonest_) soonest.assign(size_t(shape.parts()), times_);
        for (int64_t time = times_ - 1; time >= 0; time--) {
            replay.read(time, needs);
            for (int h = 0; h < 2; h++) {
                for (size_t i = needs.ids[h].size(); i-- > 0;) {
                    int64_t& soonest = soonest_[h][size_t(needs.block * n_ + needs.ids[h][i])];
                    next_[h].push_back(int32_t(soonest));
                    soonest = time;
                }
            }
        }
        for (auto& next : next_) std::reverse(next.begin(), next.end());
    }

    int32_t n_;
    int64_t times_;
    bool future_;
    int64_t slots_[2];
    std::vector<Keyed> pools_;
    std::vector<int32_t> next_[2];     // per use
    std::vector<int64_t> soonest_[2];  // per part, before the trace
    size_t done_[2] = {0, 0};          // uses so far
};

class Fixed : public Policy {
 public:
    Fixed(const ResidencyShape& shape, const CacheStart& start) : n_(shape.n) {
        for (Half half : kHalves) {
            std::vector<bool>& resident = resident_[int(half)];
            resident.resize(size_t(shape.parts()));
            const float* rate = half == Half::up_down ? start.up_down_rate : start.gate_rate;
            for (int32_t part : best(rate, shape.parts(), shape.slots(half))) {
                resident[size_t(part)] = true;
            }
        }
    }
    void use(Needs& needs) override {
        for (int h = 0; h < 2; h++) {
            for (size_t i = 0; i < needs.ids[h].size(); i++) {
                needs.hit[h][i] = resident_[h][size_t(needs.block * n_ + needs.ids[h][i])];
            }
        }
    }

 private:
    int32_t n_;
    std::vector<bool> resident_[2];
};

std::unique_ptr<Policy> make(const ResidencyShape& shape, const ResidencyOptions& options,
                             CachePolicy policy, const Replay& replay, const CacheStart& start) {
    if (policy == CachePolicy::residency) return std::make_unique<Ours>(shape, options, start);
    if (policy == CachePolicy::fixed) return std::make_unique<Fixed>(shape, start);
    return std::make_unique<ByTime>(shape, replay, start, policy == CachePolicy::belady);
}

// Neurons of which a part was missed. Whoever is computed was also proposed.
int64_t reads(const Needs& needs) {
    int64_t found = std::count(needs.hit[0].begin(), needs.hit[0].end(), 0);
    size_t at = 0;
    for (size_t i = 0; i < needs.ids[1].size(); i++) {
        while (at < needs.ids[0].size() && needs.ids[0][at] < needs.ids[1][i]) at++;
        const bool same = at < needs.ids[0].size() && needs.ids[0][at] == needs.ids[1][i];
        found += !needs.hit[1][i] && !(same && !needs.hit[0][at]);
    }
    return found;
}

}  // namespace

CacheCounts simulate_cache(const ResidencyShape& shape, const ResidencyOptions& options,
                           CachePolicy policy, const CacheTrace& trace, const CacheStart& start) {
    const Replay replay(shape, trace);
    const std::unique_ptr<Policy> cache = make(shape, options, policy, replay, start);
    CacheCounts counts;
    Needs needs;
    for (int64_t time = 0; time < replay.times(); time++) {
        replay.read(time, needs);
        cache->use(needs);
        if (time < int64_t(start.warm_up) * shape.n_blocks) continue;
        for (int h = 0; h < 2; h++) {
            counts.needed[h] += int64_t(needs.ids[h].size());
            counts.missed[h] += std::count(needs.hit[h].begin(), needs.hit[h].end(), 0);
        }
        counts.reads += reads(needs);
    }
    return counts;
}

}  // namespace powerinfer
