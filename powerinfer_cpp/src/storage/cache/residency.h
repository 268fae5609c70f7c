// Which parts of neurons stay in memory when the model is larger than that. It does no I/O, starts
// no threads and reads no clock: it counts what was needed and decides what has a slot.
//
// A neuron has two parts, each with a pool of slots: its gate, which every proposed neuron needs,
// and its up and down rows, which the neurons that fire need. A part is worth its expected uses per
// token: a count that decays, so that the set follows the text, and the average over the profile
// and all tokens so far, so that it keeps what is often needed; less while the other part is
// missing, since then a read remains. A part that was read replaces the least worthy of 16 random
// slots, or gets no slot if it is worth less (bypass). LRU would keep nothing: a token proposes
// more than the cache holds.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/carver.h"

namespace powerinfer {

// The two parts of a neuron. Without a gate, its up row decides whether it fires: then that row is
// meant by "gate", and up_down is its down row alone.
enum class Half { gate = 0, up_down = 1 };

struct ResidencyShape {
    // Layers (or layers times experts); neurons in each, or in the largest one.
    int32_t n_blocks = 0, n = 0;
    // From 0 to parts(). With all of them each part has the slot of its number, and there is
    // nothing to decide.
    int64_t gate_slots = 0, up_down_slots = 0;
    // The most slots that resize() may be asked for; 0: the numbers of slots never change.
    int64_t most_gate = 0, most_up_down = 0;
    // [n_blocks + 1]: neurons in the blocks before each; empty: all blocks have n.
    std::vector<int64_t> before = {};

    // Parts of a half are numbered through: this is the number of a block's neuron 0.
    int64_t first(int32_t block) const {
        return before.empty() ? int64_t(block) * n : before[size_t(block)];
    }
    int32_t size(int32_t block) const { return int32_t(first(block + 1) - first(block)); }
    int64_t parts() const { return first(n_blocks); }  // of each half
    int32_t block_of(int64_t part) const;
    int64_t slots(Half half) const { return half == Half::gate ? gate_slots : up_down_slots; }
    int64_t most(Half half) const { return half == Half::gate ? most_gate : most_up_down; }
};

// Of parts that are whole experts, in tokens. In traces of stated routers (docs/storage.md) hits
// are at most 1.4 points below the better of LRU and the most popular experts; with what is best
// for neurons up to 11 points.
constexpr float kExpertHalfLife = 3;

struct ResidencyOptions {
    uint64_t seed = 1;
    float half_life = 12;  // tokens
    // Share of the average in the worth; the rest is the decayed count's. With `fit` only at first:
    // then it is fitted to what tokens need, so that the cache follows a text that changes and is
    // at rest where nothing does.
    float long_run = 0.4;
    bool fit = true;
    // As many tokens as the profile weighs in the average: few enough that another text is learnt.
    float profile_tokens = 1000;
};

// A part, and how often it is expected to be needed per token.
struct RankedPart {
    Half half;
    int32_t block, id;
    float worth;
};

class Residency {
 public:
    Residency() = default;
    Residency(ggml::Carver& carver, const ResidencyShape& shape,
              const ResidencyOptions& options = {});

    // Expected uses per token of a block's parts, [size] each, before any token. Null: not known.
    void profile(int32_t block, const float* gate, const float* up_down);
    // The same from a list that an earlier session saved (`resident`).
    void profile(const std::vector<RankedPart>& parts);

    // [size]: the slot of each part of a block, or -1. Valid as long as this; changed by admit and
    // resize.
    const int32_t* slots(Half half, int32_t block) const {
        const Pool& p = pool(half);
        return p.all ? p.slot + shape_.first(block) : p.slot;
    }
    int64_t used(Half half) const { return pool(half).used; }

    // n tokens begin: one, the rows of several sequences, or a prompt.
    void begin(int32_t n);
    // These parts were needed, each by `tokens` of the tokens that begin() announced. Constant time
    // per id: counts are not decayed; the unit that is added grows.
    void count(Half half, int32_t block, const int32_t* ids, int64_t n, float tokens = 1);
    // The slot for a part that is being read: a free one, or that of a victim, which is lost. -1 if
    // it is not worth a slot. A part that has a slot keeps it.
    int32_t admit(Half half, int32_t block, int32_t id);
    // Slots of this block are no victims until unpin.
    void pin(Half half, int32_t block) { pool(half).pinned = block; }
    void unpin(Half half) { pool(half).pinned = -1; }

    // Changes the number of slots of a pool that has `most` of them. Parts in slots beyond the new
    // end lose these, except for those that are worth more than others, whose slots they get:
    // `moves` says from which to which slot.
    struct Move {
        int32_t from, to;
    };
    void resize(Half half, int64_t slots, std::vector<Move>& moves);
    // The same where there were so many slots before; takes no memory.
    void grow(Half half, int64_t slots) noexcept;
    double tokens() const { return tokens_; }  // behind the averages, with the profile's
    // Expected uses per token of every step-th part, [parts / step].
    std::vector<float> rates(Half half, int64_t step) const;

    // The most valuable parts that have slots; or that the slots have room for, of those that are
    // worth anything. By falling worth, then ascending. Not for pools that hold all parts. For
    // saving, and to fill memory.
    std::vector<RankedPart> resident() const { return ranked(true); }
    std::vector<RankedPart> wanted() const { return ranked(false); }

    const ResidencyShape& shape() const { return shape_; }

 private:
    // Both counts of a part lie together, since its worth needs both.
    struct Uses {
        float recent;  // in units: see unit_
        float all;     // including the profile's
    };
    // A part by which the share of the average is fitted: both rates before the last token.
    struct Probe {
        float recent, average;
        float all;  // of Uses
    };
    struct Pool {
        int64_t capacity = 0;  // slots
        bool all = false;      // `slot` has all parts
        int64_t used = 0;      // slots with an owner, the first ones
        int32_t pinned = -1;   // block
        int32_t n_probes = 0;
        Probe* probes = nullptr;        // [n_probes], of parts at even distances
        double agree = 0, differ = 0;   // sums of the fit: see fit()
        float recent = 0, average = 0;  // factors that make a worth of Uses
        bool decides = false;           // neither empty nor complete, or it may be resized
        Uses* uses = nullptr;           // [parts]; null unless it decides
        int32_t* slot = nullptr;   // [parts], or [n] with -1 for all blocks of a pool without slots
        int32_t* owner = nullptr;  // [capacity]: part
    };

    const Pool& pool(Half half) const { return pools_[int(half)]; }
    Pool& pool(Half half) { return pools_[int(half)]; }
    void carve(ggml::Carver& carver, Pool& pool, int64_t capacity, int64_t most);
    static float worth(const Pool& pool, const Uses& uses) {
        return pool.recent * uses.recent + pool.average * uses.all;
    }
    float saves(const Pool& pool, int64_t part) const;
    void fit(Pool& pool);
    void probe(Pool& pool);
    void weigh();
    void rescale(int32_t n);
    uint64_t random();
    int32_t victim(const Pool& pool);
    std::vector<RankedPart> ranked(bool resident) const;

    ResidencyShape shape_;
    ResidencyOptions options_;
    Pool pools_[2];
    uint64_t state_ = 0;
    double growth_ = 1;            // of the unit per token
    double unit_ = 1, added_ = 1;  // one use now, in units; what count() adds for one token
    double tokens_ = 0;            // behind Uses::all, with the profile's
    int32_t begun_ = 0;            // tokens of the last begin()
};

}  // namespace powerinfer
