#include "sampler/dry.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ggml/math.h"

namespace powerinfer {

Dry::Dry(const pi_sampler_params& params, std::shared_ptr<const Breakers> breakers)
    : on_(params.dry_multiplier > 0 && params.dry_base >= 1 && params.dry_penalty_last_n != 0),
      multiplier_(params.dry_multiplier),
      base_(params.dry_base),
      allowed_(size_t(params.dry_allowed_length)),
      window_(params.dry_penalty_last_n < 0 ? std::numeric_limits<size_t>::max()
                                            : size_t(params.dry_penalty_last_n)),
      breakers_(std::move(breakers)) {
    // The largest power of the base that is a float; llama.cpp's limits.
    if (on_ && params.dry_base > 1.000001f)
        most_exponent_ = size_t(88.7228391 / ggml::log_f64(base_));
}

void Dry::accept(int32_t token) {
    if (!on_) return;
    tokens_.push_back(token);
    // Old tokens are removed many at a time, so that removing costs nothing on average.
    if (tokens_.size() / 2 > window_) tokens_.erase(tokens_.begin(), tokens_.end() - window_);
}

// Do the tokens of a tail follow the i-th last token?
bool Dry::follows(const Breakers::Tail& tail, size_t i) const {
    if (tail.size() > i) return false;
    for (size_t k = 0; k < tail.size(); k++)
        if (tail[k] != latest(i - 1 - k)) return false;
    return true;
}

// How many tokens follow the last breaker among n tokens: no repetition is longer.
size_t Dry::since_breaker(size_t n) const {
    for (size_t i = 0; breakers_ && i < n; i++) {
        const std::vector<Breakers::Tail>* tails = breakers_->find(latest(i));
        if (!tails) continue;
        bool found = false;
        size_t longest = 0;
        for (const Breakers::Tail& tail : *tails) {
            if (!follows(tail, i)) continue;
            found = true;
            longest = std::max(longest, tail.size());
        }
        if (found) return i - longest;
    }
    return n;
}

// Fills repeated_ for n tokens, in linear time: the Z-function of the text read backwards. [left,
// right) is the repetition that reaches farthest back; inside it the lengths are known from before,
// up to its end.
void Dry::measure(size_t n) {
    repeated_.assign(n, 0);
    size_t left = 0, right = 0;
    for (size_t i = 1; i < n; i++) {
        size_t length = i < right ? std::min(repeated_[i - left], right - i) : 0;
        while (i + length < n && latest(length) == latest(i + length)) length++;
        repeated_[i] = length;
        if (i + length > right) {
            left = i;
            right = i + length;
        }
    }
}

float Dry::penalty(size_t length) const {
    size_t exponent = length - allowed_;
    if (most_exponent_) exponent = std::min(exponent, most_exponent_);
    double power = 1, factor = base_;
    for (; exponent; exponent /= 2, factor *= factor)
        if (exponent % 2) power *= factor;
    return float(std::min(multiplier_ * power, double(std::numeric_limits<float>::max())));
}

const std::unordered_map<int32_t, float>& Dry::penalties() {
    penalties_.clear();
    const size_t n = std::min(tokens_.size(), window_);
    if (!on_ || n <= allowed_) return penalties_;
    const size_t limit = since_breaker(n);
    if (limit < allowed_) return penalties_;
    measure(n);
    for (size_t i = 1; i < n; i++) {
        const size_t length = std::min(repeated_[i], limit);
        if (length < allowed_) continue;
        // The token that came next there would make the repetition longer.
        const int32_t next = latest(i - 1);
        if (breakers_ && breakers_->is_one(next)) continue;
        float& most = penalties_[next];
        most = std::max(most, penalty(length));
    }
    return penalties_;
}

}  // namespace powerinfer
