// The candidates of a sampler: their order and their weights.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "ggml/math.h"
#include "sampler/sampler.h"

namespace powerinfer {

namespace {

// A number that rises as logits fall.
uint32_t falling(float logit) {
    const auto bits = ggml::math::bits_as<uint32_t>(logit == 0 ? 0.0f : logit);  // -0 is 0
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

// Byte by byte, the lowest one first; what is equal there keeps its order.
void sort_by_upper_half(std::vector<uint64_t>& values, std::vector<uint64_t>& spare) {
    constexpr int kBytes = 4;
    std::array<std::array<uint32_t, 256>, kBytes> counts{};
    const auto byte = [](uint64_t value, int k) { return value >> (32 + 8 * k) & 255; };
    for (const uint64_t value : values)
        for (int k = 0; k < kBytes; k++) counts[size_t(k)][byte(value, k)]++;
    spare.resize(values.size());
    for (int k = 0; k < kBytes; k++) {
        std::array<uint32_t, 256>& count = counts[size_t(k)];
        if (count[byte(values[0], k)] == values.size()) continue;  // all have the same
        uint32_t begin = 0;
        for (uint32_t& each : count) begin += std::exchange(each, begin);
        for (const uint64_t value : values) spare[count[byte(value, k)]++] = value;
        values.swap(spare);
    }
}

}  // namespace

// Ensures that the first n candidates are the best n, in order. Of many, all are sorted.
void Sampler::sort_first(size_t n) {
    constexpr size_t kMany = 4096;
    n = std::min(n, candidates_.size());
    if (n <= sorted_) return;
    if (n > kMany) return sort_up_to(candidates_.size());
    const auto from = candidates_.begin() + ptrdiff_t(sorted_);
    std::partial_sort(from, candidates_.begin() + ptrdiff_t(n), candidates_.end(), before);
    sorted_ = n;
}

// Sorts candidates [sorted_, n), which are better than all behind them. A sort by comparisons takes
// ten times as long for a whole vocabulary.
void Sampler::sort_up_to(size_t n) {
    Candidate* const from = candidates_.data() + sorted_;
    n -= sorted_;
    if (n == 0) return;
    // In the upper half what to sort by, in the lower half where it is.
    order_.resize(n);
    for (size_t i = 0; i < n; i++) order_[i] = uint64_t(uint32_t(from[i].id)) << 32 | i;
    if (!std::is_sorted(order_.begin(), order_.end())) sort_by_upper_half(order_, spare_);
    for (uint64_t& each : order_)
        each = uint64_t(falling(from[uint32_t(each)].logit)) << 32 | uint32_t(each);
    sort_by_upper_half(order_, spare_);
    sorting_.assign(from, from + n);
    for (size_t i = 0; i < n; i++) from[i] = sorting_[uint32_t(order_[i])];
    sorted_ += n;
}

// Sorts the best of those from sorted_ on, as many as weigh about as much as this.
void Sampler::sort_heaviest(double weight) {
    constexpr int kShift = 16;
    heights_.assign(size_t(1) << (32 - kShift), 0);
    const auto from = candidates_.begin() + ptrdiff_t(sorted_);
    for (auto c = from; c != candidates_.end(); c++)
        heights_[falling(c->logit) >> kShift] += c->weight;
    uint32_t last = 0;  // what begins with this belongs to them
    for (double sum = heights_[0]; sum < weight && last + 1 < heights_.size();)
        sum += heights_[++last];
    const auto end = std::stable_partition(from, candidates_.end(), [=](const Candidate& c) {
        return falling(c.logit) >> kShift <= last;
    });
    sort_up_to(size_t(end - candidates_.begin()));
}

double Sampler::weigh() {
    // Candidates whose weights a compiler computes several at a time.
    constexpr size_t kTogether = 64;
    float top = candidates_[0].logit;
    if (sorted_ == 0)
        for (const Candidate& c : candidates_) top = std::max(top, c.logit);
    // A step that leaves candidates out leaves the weights of the others as they are.
    const std::pair now{top, temperature_};
    const bool known = weighed_ == now;
    for (size_t i = 0; !known && i < candidates_.size(); i += kTogether) {
        const size_t n = std::min(kTogether, candidates_.size() - i);
        double x[kTogether] = {};
        for (size_t k = 0; k < n; k++) x[k] = double(candidates_[i + k].logit);
        for (double& each : x) each = ggml::exp_f64((each - double(top)) / temperature_);
        for (size_t k = 0; k < n; k++) candidates_[i + k].weight = x[k];
    }
    weighed_ = now;
    double sum = 0;
    for (const Candidate& c : candidates_) sum += c.weight;
    return sum;
}

// The entropy of the candidates, whose weights have this sum. logs_ become the logarithms of their
// probabilities.
double Sampler::entropy(double sum) {
    constexpr size_t kTogether = 64;
    constexpr double kLeast = std::numeric_limits<double>::min();
    logs_.resize(candidates_.size());
    double entropy = 0;
    for (size_t i = 0; i < candidates_.size(); i += kTogether) {
        const size_t n = std::min(kTogether, candidates_.size() - i);
        double p[kTogether], log[kTogether];
        std::fill_n(p, kTogether, 1.0);
        for (size_t k = 0; k < n; k++) p[k] = candidates_[i + k].weight / sum;
        bool normal = true;
        for (const double each : p) normal &= each >= kLeast;
        if (normal) {
            for (size_t k = 0; k < kTogether; k++) log[k] = ggml::log_of_normal(p[k]);
        } else {
            for (size_t k = 0; k < n; k++)
                log[k] = candidates_[i + k].weight > 0 ? ggml::log_f64(p[k]) : 0;
        }
        for (size_t k = 0; k < n; k++) {
            logs_[i + k] = log[k];
            if (candidates_[i + k].weight > 0) entropy -= p[k] * log[k];
        }
    }
    return entropy;
}

}  // namespace powerinfer
