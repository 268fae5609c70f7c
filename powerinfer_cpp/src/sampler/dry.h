// DRY: a penalty for tokens that would continue a repetition, which grows with its length. As in
// llama.cpp, where the sampler is called "dry".
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "powerinfer.h"
#include "sampler/breakers.h"

namespace powerinfer {

class Dry {
 public:
    // Uses the parameters dry_*, except the breakers, which come apart; null: there are none.
    Dry(const pi_sampler_params& params, std::shared_ptr<const Breakers> breakers);
    bool on() const { return on_; }
    void accept(int32_t token);
    void reset();
    // What to subtract from logits, by token, after the tokens that were accepted. Takes time in
    // proportion to their number. Valid until the next call.
    const std::unordered_map<int32_t, float>& penalties();

 private:
    int32_t latest(size_t i) const { return tokens_[tokens_.size() - 1 - i]; }
    void note_breakers(int32_t token);
    size_t since_breaker(size_t n) const;
    bool is_breaker(int32_t token) const;
    void measure(size_t n);
    float penalty(size_t length) const;

    bool on_;
    double multiplier_, base_;
    size_t allowed_, window_, most_exponent_ = 0;
    std::shared_ptr<const Breakers> breakers_;
    std::vector<int32_t> tokens_;  // the window's, and some before it
    // Of the last tokens, the latest one first: tails of breakers that began there and that may
    // still follow.
    std::deque<std::vector<const Breakers::Tail*>> begun_;
    // The last token with which a breaker began that is complete: it is the i-th last one, and so
    // many tokens of the breaker follow it. Nothing: no breaker has occurred.
    struct Broken {
        size_t age, tail;
    };
    std::optional<Broken> broken_;
    // [n]: how many of the last tokens also stand before the i-th last one, with it
    std::vector<size_t> repeated_;
    std::unordered_map<int32_t, float> penalties_;
};

}  // namespace powerinfer
