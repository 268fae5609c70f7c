// Which experts of a mixture a card holds. It does no I/O, starts no threads, reads no clock and
// draws nothing at random: it counts what tokens used and says which experts to copy to the card,
// in the place of which others. An expert has the same bits wherever it is computed, so this
// changes the time of a token, never its result.
//
// It is not a Residency. There a part was read anyway and only asks for a slot, so any victim that
// is worth less will do, 16 random slots are enough, and a part has its slot at once. Here the CPU
// has computed the miss where it lay, and a copy is a decision of its own: it costs reads of RAM
// and the bus, so there is a budget and a threshold, the best of all missing experts replace the
// worst of all frames, and the copy ends some time later.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ggml/carver.h"

namespace powerinfer {

struct CardShape {
    // Frames of a size.
    struct Class {
        uint64_t bytes = 0;  // of a frame
        int64_t frames = 0;  // at most as many as there are blocks of the class
    };
    // As in PageShape: [parts + 1], blocks of the feed-forward parts before each; a block is an
    // expert.
    std::vector<int64_t> before = {};
    std::vector<int32_t> class_of = {};  // [parts]; -1: its experts never are on the card
    std::vector<Class> classes = {};

    int64_t n_blocks() const { return before.empty() ? 0 : before.back(); }
    int64_t frames() const;  // of all classes
};

enum class CardPolicy {
    follow = 0,  // experts move with the text
    fixed = 1,   // those of the profile stay
};

// Defaults are from replays of stated routers (scripts/card_experts.py; docs/gpu.md). They take at
// most 6% longer than the best of a grid in each case, and no longer than a profile's fixed set,
// which they keep where popularity is all that there is: so a profile is no reason not to follow.
// With a share of the average that is not fitted the best ones take up to 12% longer.
struct CardOptions {
    CardPolicy policy = CardPolicy::follow;
    float half_life = 12;  // tokens; 6 to 25 are as good
    // Share of the average over the profile and all tokens in the worth; the rest is the decayed
    // count's. With `fit` only at first: then it is fitted to what tokens use, as in Residency.
    float long_run = 0.4f;
    bool fit = true;
    // So many more uses than its victim an expert must be worth. A copy reads RAM once more, and so
    // does a use that it saves.
    float threshold = 0.75f;
    // Of copies, for each step of generated rows; 0: none are made. What is not used is not saved
    // for later.
    double bytes_per_step = 0;
    float profile_tokens = 1000;  // that the profile weighs in the average
    // A prompt's rows count as so many tokens together, at most: a long one must not replace
    // everything that is known, and nothing is copied for it.
    int32_t prompt_tokens = 4;
};

// A budget of bytes per step, so that copies take half of the bus beside a step of such a length.
// In replays fewer pay where nothing limits them: at most 45 experts of Qwen3-30B-A3B a token.
constexpr double copies_per_step(double bus_bytes_per_s, double step_s) {
    return 0.5 * bus_bytes_per_s * step_s;
}

class CardExperts {
 public:
    // A copy to make. `evicted` had the frame (-1: nothing) and has none any more.
    struct Move {
        int32_t block, frame, evicted;
    };

    CardExperts() = default;
    CardExperts(ggml::Carver& carver, const CardShape& shape, const CardOptions& options = {});

    // Expected uses per token of every block, [blocks], before any token; empty: not known. Fills
    // the frames with the best ones; those of equal rates by their number within a part, so that
    // they are spread evenly over the parts. They count as arrived.
    void profile(const std::vector<float>& rate);

    // Where a block is, within its class, or -1. A block on its way has none yet.
    int32_t frame(int32_t block) const {
        const int32_t at = blocks_[block].frame;
        return at >= 0 ? at : -1;
    }
    // The block that has a frame, or is on its way there; -1: none.
    int32_t owner(int32_t of_class, int64_t frame) const {
        return owners_[first_frame_[of_class] + frame];
    }

    // A step begins: n generated rows, of one sequence or several.
    void begin(int32_t n);
    // A step of n rows of a prompt.
    void begin_prompt(int32_t n);
    // These blocks were used, each by `rows` of the rows that the step has. Constant time per id.
    void used(const int32_t* blocks, int64_t n, float rows = 1);
    // The copies that pay, in the order of what they save per byte; nothing after prompts. Once per
    // step, after what it used. Goes over all blocks: some 40 us for 6,000 of them.
    // most: copies; can: may this block be copied now? Null: each of them.
    void choose(std::vector<Move>& moves, int64_t most = INT64_MAX,
                const std::function<bool(int32_t)>& can = nullptr);

    // A copy has ended: from here on the block has its frame.
    void arrived(int32_t block);
    // A copy failed, or was not made, or the expert is not to be there: its frame is free.
    void dropped(int32_t block);
    void drop();  // all that are on their way
    int64_t pending() const { return pending_; }

    // For a bus or a step's time that became known later.
    void set_bytes_per_step(double bytes) { options_.bytes_per_step = bytes; }
    // Expected uses per token.
    float rate(int32_t block) const { return worth(blocks_[block]) / horizon_; }

    const CardShape& shape() const { return shape_; }
    const CardOptions& options() const { return options_; }

 private:
    struct Block {
        float recent = 0, all = 0;  // uses, in units (see unit_) and since the profile
        int32_t frame = -1;         // -2 - f: on its way to f
        int32_t step = -1;          // of generated tokens that used it last
    };
    struct Ranked {
        float worth;
        int32_t id;  // of a block or a frame
    };
    // A block by which the share of the average is fitted: both rates before the last step.
    struct Probe {
        float recent, average;
        float all;  // of Block
    };
    struct Pair {
        float gain;  // per byte
        int32_t of_class;
        Move move;
    };

    // Uses that are expected in the next tokens, as many as the decayed count looks back.
    float worth(const Block& b) const { return recent_ * b.recent + average_ * b.all; }
    bool decides(int32_t of_class) const { return decides_[size_t(of_class)]; }
    int64_t rank_missing(int32_t of_class, int64_t most, const std::function<bool(int32_t)>& can);
    int64_t rank_frames(int32_t of_class, int64_t most);
    void pass(int32_t n, double tokens);
    void fit();
    void probe();
    void weigh();
    void rescale(double tokens);

    CardShape shape_;
    CardOptions options_;
    std::vector<int64_t> first_frame_;
    std::vector<bool> decides_;  // by class: some blocks have frames, and some have none
    std::vector<Pair> pairs_;
    Block* blocks_ = nullptr;
    int32_t* owners_ = nullptr;   // by frame, of all classes
    Ranked* missing_ = nullptr;   // room for what rank_missing() finds
    Ranked* resident_ = nullptr;  // and rank_frames()
    Probe* probes_ = nullptr;
    int64_t n_probes_ = 0;
    double agree_ = 0, differ_ = 0;  // sums of the fit
    double begun_ = 0;               // tokens of the last step, as they count
    int64_t pending_ = 0;
    int32_t step_ = 0;
    bool prompt_ = false;
    double growth_ = 1;               // of the unit per token
    double unit_ = 1;                 // one use now
    double added_ = 1;                // what used() adds for a row, in units
    float counted_ = 1;               // and to the average
    double tokens_ = 0;               // behind the averages
    double credit_ = 0;               // bytes that may be copied
    float horizon_ = 1;               // tokens
    float recent_ = 0, average_ = 0;  // factors that make a worth of a Block
};

}  // namespace powerinfer
