#include "sampler/dry.h"

#include <algorithm>
#include <iterator>
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
    note_breakers(token);
    // Old tokens are removed many at a time, so that removing costs nothing on average.
    if (tokens_.size() / 2 > window_) tokens_.erase(tokens_.begin(), tokens_.end() - window_);
}

void Dry::reset() {
    tokens_.clear();
    begun_.clear();
    broken_.reset();
}

// Looks for breakers that a token begins or completes.
void Dry::note_breakers(int32_t token) {
    if (!breakers_) return;
    if (broken_) broken_->age++;
    begun_.push_front(breakers_->find(token));
    // Heads of later tokens count, and of one head the longest tail.
    const size_t most = broken_ ? broken_->age : begun_.size();
    bool found = false;
    for (size_t age = 0; age < begun_.size(); age++) {
        std::vector<const Breakers::Tail*>& tails = begun_[age];
        const auto ended = [&](const Breakers::Tail* tail) { return tail->size() <= age; };
        const auto fails = [&](const Breakers::Tail* tail) {
            return age > 0 && (tail->size() < age || (*tail)[age - 1] != token);
        };
        tails.erase(std::remove_if(tails.begin(), tails.end(), fails), tails.end());
        if (found || age > most || std::none_of(tails.begin(), tails.end(), ended)) continue;
        found = true;
        broken_ = Broken{age, age};
    }
    while (!begun_.empty() && begun_.back().empty()) begun_.pop_back();
}

// How many tokens follow the last breaker among n tokens: no repetition is longer.
size_t Dry::since_breaker(size_t n) const {
    return broken_ && broken_->age < n ? broken_->age - broken_->tail : n;
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

bool Dry::is_breaker(int32_t token) const {
    const std::vector<const Breakers::Tail*> tails = breakers_->find(token);
    return std::any_of(tails.begin(), tails.end(), [](const auto* tail) { return tail->empty(); });
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
        float& most = penalties_[latest(i - 1)];
        most = std::max(most, penalty(length));
    }
    // What is a breaker by itself may always come.
    for (auto each = penalties_.begin(); each != penalties_.end();) {
        each = breakers_ && is_breaker(each->first) ? penalties_.erase(each) : std::next(each);
    }
    return penalties_;
}

}  // namespace powerinfer
