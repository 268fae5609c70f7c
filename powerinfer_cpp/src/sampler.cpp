#include "sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "ggml/math.h"
#include "ggml/status.h"

namespace powerinfer {
namespace {

void check(const char* name, float value, float lo, float hi) {
    if (!std::isfinite(value))
        throw ggml::Error(ggml::Code::argument, ggml::format("%s must be a finite number", name));
    if (value < lo || value > hi)
        throw ggml::Error(ggml::Code::argument,
                          ggml::format("%s must be between %g and %g, not %g", name, double(lo),
                                       double(hi), double(value)));
}

bool can_be_chosen(float logit) {
    return logit > -std::numeric_limits<float>::infinity();  // false for NaN
}

}  // namespace

Sampler::Sampler(const pi_sampler_params& params)
    : params_(params), random_(params.seed), mirostat_mu_(2 * double(params.mirostat_tau)) {
    check("temperature", params.temperature, -FLT_MAX, FLT_MAX);
    check("top_p", params.top_p, 0, 1);
    check("min_p", params.min_p, 0, 1);
    check("typical_p", params.typical_p, 0, 1);
    check("repeat_penalty", params.repeat_penalty, -FLT_MAX, FLT_MAX);
    check("frequency_penalty", params.frequency_penalty, -FLT_MAX, FLT_MAX);
    check("presence_penalty", params.presence_penalty, -FLT_MAX, FLT_MAX);
    check("top_n_sigma", params.top_n_sigma, -FLT_MAX, FLT_MAX);
    check("xtc_probability", params.xtc_probability, 0, 1);
    check("xtc_threshold", params.xtc_threshold, 0, 1);
    check("dynatemp_range", params.dynatemp_range, 0, FLT_MAX);
    check("dynatemp_exponent", params.dynatemp_exponent, 0, FLT_MAX);
    check("mirostat_tau", params.mirostat_tau, 0, FLT_MAX);
    check("mirostat_eta", params.mirostat_eta, 0, FLT_MAX);
    if (params.mirostat_mode < 0 || params.mirostat_mode > 2)
        throw ggml::Error(
            ggml::Code::argument,
            ggml::format("mirostat_mode must be 0, 1 or 2, not %d", int(params.mirostat_mode)));
    if (params.repeat_penalty <= 0)  // positive logits are divided by it
        throw ggml::Error(
            ggml::Code::argument,
            ggml::format("repeat_penalty must be above 0, not %g", double(params.repeat_penalty)));
    if (params.repeat_last_n < -1)
        throw ggml::Error(
            ggml::Code::argument,
            ggml::format("repeat_last_n must be -1 or more, not %d", int(params.repeat_last_n)));
}

void Sampler::require_choice(const float* logits, int32_t n_vocab) {
    if (std::any_of(logits, logits + n_vocab, can_be_chosen)) return;
    const bool nan =
        std::any_of(logits, logits + n_vocab, [](float logit) { return std::isnan(logit); });
    throw ggml::Error(ggml::Code::argument,
                      nan ? "no token can be chosen: the logits are NaN, since weights are damaged "
                            "or numbers grew too large in the model"
                          : "no token can be chosen: every logit is minus infinity");
}

int32_t Sampler::sample(const float* logits, int32_t n_vocab) {
    require_choice(logits, n_vocab);
    const bool greedy = params_.temperature <= 0;
    const bool needs_all = !greedy && (params_.mirostat_mode || params_.top_n_sigma > 0);
    const size_t most = greedy ? 1 : size_t(std::max(params_.top_k, 0));
    if (needs_all || !find_best(logits, n_vocab, most)) {
        candidates_.clear();
        candidates_.reserve(size_t(n_vocab));
        sorted_ = 0;
        for (int32_t id = 0; id < n_vocab; id++) {
            if (can_be_chosen(logits[id]))
                candidates_.push_back({id, std::min(logits[id], FLT_MAX), 0});
        }
        penalise();
        if (!greedy && params_.mirostat_mode) return mirostat(n_vocab);
        if (!greedy) {
            keep_top_n_sigma();
            keep_top_k();
        }
    }
    if (greedy) return best();
    keep_typical();
    keep_top_p();
    keep_min_p();
    exclude_top_choices();
    return draw(weigh(temperature())).id;
}

// Most vocabularies have far more tokens than top-k leaves. A block in which no logit is above the
// n-th best so far is skipped after one comparison per logit, which the compiler does for several
// at once: 32,000 tokens take a tenth of the time of a list of all of them.
bool Sampler::find_best(const float* logits, int32_t n_vocab, size_t n) {
    constexpr int32_t kBlock = 64;
    constexpr size_t kMost = 1024;
    if (n == 0 || n > kMost) return false;
    // A penalty may take a token out of the best n or bring it there, so tokens with one are looked
    // at apart. One more than needed shows that there is something to leave out: otherwise top-k
    // does nothing, and candidates stay in the order of their ids.
    const size_t looked_at = n + (penalises() ? counts_.size() : 0) + 1;
    if (looked_at > kMost) return false;
    const auto cut = [&] {
        const auto last = candidates_.begin() + ptrdiff_t(looked_at - 1);
        std::nth_element(candidates_.begin(), last, candidates_.end(), before);
        candidates_.resize(looked_at);
        return candidates_.back().logit;
    };
    candidates_.clear();
    float least = -std::numeric_limits<float>::infinity();
    for (int32_t begin = 0; begin < n_vocab; begin += kBlock) {
        const int32_t end = std::min(begin + kBlock, n_vocab);
        int32_t above = 0;
        for (int32_t id = begin; id < end; id++) above |= logits[id] > least;
        if (!above) continue;
        for (int32_t id = begin; id < end; id++) {
            if (logits[id] > least) candidates_.push_back({id, std::min(logits[id], FLT_MAX), 0});
        }
        // Later tokens of the same logit have higher ids and come after it.
        if (candidates_.size() > 2 * looked_at + kBlock) least = cut();
    }
    if (candidates_.size() < looked_at) return false;
    cut();
    if (penalises()) {
        const auto end =
            std::remove_if(candidates_.begin(), candidates_.end(),
                           [&](const Candidate& c) { return counts_.count(c.id) > 0; });
        candidates_.erase(end, candidates_.end());
        for (const auto& [id, count] : counts_) {
            if (id < 0 || id >= n_vocab || !can_be_chosen(logits[id])) continue;
            candidates_.push_back({id, penalised(std::min(logits[id], FLT_MAX), count), 0});
        }
    }
    sorted_ = 0;
    sort_first(n);
    candidates_.resize(n);
    return true;
}

bool Sampler::penalises() const {
    return params_.repeat_penalty != 1 || params_.frequency_penalty != 0 ||
           params_.presence_penalty != 0;
}

float Sampler::penalised(float logit, int32_t count) const {
    const float repeat = params_.repeat_penalty;
    logit = logit <= 0 ? logit * repeat : logit / repeat;
    logit -= float(count) * params_.frequency_penalty + params_.presence_penalty;
    // A penalty can overflow; infinite logits would make the weights NaN.
    return std::isnan(logit) ? -FLT_MAX : std::clamp(logit, -FLT_MAX, FLT_MAX);
}

void Sampler::penalise() {
    if (!penalises()) return;
    for (const auto& [id, count] : counts_) {
        const auto found = std::lower_bound(candidates_.begin(), candidates_.end(), id,
                                            [](const Candidate& c, int32_t i) { return c.id < i; });
        if (found == candidates_.end() || found->id != id) continue;
        found->logit = penalised(found->logit, count);
    }
}

int32_t Sampler::best() const {
    return std::min_element(candidates_.begin(), candidates_.end(), before)->id;
}

// Ensures that the first n candidates are the best n, in order.
void Sampler::sort_first(size_t n) {
    n = std::min(n, candidates_.size());
    if (n <= sorted_) return;
    const auto from = candidates_.begin() + ptrdiff_t(sorted_);
    std::partial_sort(from, candidates_.begin() + ptrdiff_t(n), candidates_.end(), before);
    sorted_ = n;
}

double Sampler::weigh(double temperature) {
    float top = candidates_[0].logit;
    if (sorted_ == 0)
        for (const Candidate& c : candidates_) top = std::max(top, c.logit);
    double sum = 0;
    for (Candidate& c : candidates_) {
        c.weight = ggml::exp_f64((double(c.logit) - double(top)) / temperature);
        sum += c.weight;
    }
    return sum;
}

void Sampler::keep_top_k() {
    if (params_.top_k <= 0 || size_t(params_.top_k) >= candidates_.size()) return;
    sort_first(size_t(params_.top_k));
    candidates_.resize(sorted_);
}

// Keeps the tokens whose information is closest to the expected one, until their probabilities
// exceed p (locally typical sampling, arXiv 2202.00666).
void Sampler::keep_typical() {
    const double p = params_.typical_p;
    if (p >= 1) return;
    const double sum = weigh(1);
    double entropy = 0;
    for (const Candidate& c : candidates_)
        if (c.weight > 0) entropy -= c.weight / sum * ggml::log_f64(c.weight / sum);
    distances_.clear();
    for (size_t i = 0; i < candidates_.size(); i++) {
        const double w = candidates_[i].weight;
        // A weight of 0 (underflow) has infinite information and would make the sums NaN.
        if (w > 0)
            distances_.push_back({std::abs(-ggml::log_f64(w / sum) - entropy), candidates_[i]});
    }
    std::sort(distances_.begin(), distances_.end(), [](const Distance& a, const Distance& b) {
        return a.value != b.value ? a.value < b.value : before(a.candidate, b.candidate);
    });
    candidates_.clear();
    double covered = 0;
    for (const Distance& d : distances_) {
        candidates_.push_back(d.candidate);
        covered += d.candidate.weight / sum;
        if (covered > p) break;
    }
    sorted_ = 0;
    sort_first(candidates_.size());
}

// Keeps the best tokens until the sum of their probabilities reaches p (nucleus sampling, arXiv
// 1904.09751).
void Sampler::keep_top_p() {
    const double p = params_.top_p;
    if (p >= 1) return;
    const double enough = p * weigh(1);
    double covered = 0;
    size_t kept = 0;
    do {
        // A few candidates have most of the weight. Sorting a large vocabulary would cost more than
        // the rest of the sampler.
        if (kept == sorted_) sort_first(std::max<size_t>(64, 4 * sorted_));
        covered += candidates_[kept++].weight;
    } while (kept < candidates_.size() && covered < enough);
    candidates_.resize(kept);
    sorted_ = kept;
}

// Keeps tokens that are at least min_p times as probable as the best one (arXiv 2407.01082).
void Sampler::keep_min_p() {
    if (params_.min_p <= 0) return;
    weigh(1);
    const double least = params_.min_p;
    const auto end = std::remove_if(candidates_.begin(), candidates_.end(),
                                    [=](const Candidate& c) { return c.weight < least; });
    candidates_.erase(end, candidates_.end());
    sorted_ = std::min(sorted_, candidates_.size());
}

// Keeps logits that are at most n standard deviations below the best one (arXiv 2411.07641).
void Sampler::keep_top_n_sigma() {
    if (params_.top_n_sigma <= 0 || candidates_.size() < 2) return;
    double top = candidates_[0].logit, mean = 0, square = 0;
    for (const Candidate& c : candidates_) {
        top = std::max(top, double(c.logit));
        mean += c.logit;
    }
    const double n = double(candidates_.size());
    mean /= n;
    for (const Candidate& c : candidates_) square += (c.logit - mean) * (c.logit - mean);
    const double least = top - double(params_.top_n_sigma) * std::sqrt(square / n);
    const auto end = std::remove_if(candidates_.begin(), candidates_.end(),
                                    [=](const Candidate& c) { return double(c.logit) < least; });
    candidates_.erase(end, candidates_.end());
}

// Excludes top choices (XTC), for less predictable texts: sometimes, of the tokens that reach the
// threshold, only the least likely remains.
void Sampler::exclude_top_choices() {
    if (params_.xtc_probability <= 0 || params_.xtc_threshold > 0.5f || candidates_.size() < 2)
        return;
    if (random() >= params_.xtc_probability) return;
    const double least = double(params_.xtc_threshold) * weigh(1);
    const auto reaches = [=](const Candidate& c) { return c.weight >= least; };
    const auto n = std::count_if(candidates_.begin(), candidates_.end(), reaches);
    if (n < 2) return;
    sort_first(size_t(n));
    candidates_.erase(candidates_.begin(), candidates_.begin() + (n - 1));
    sorted_ -= size_t(n - 1);
}

// Between temperature - range and temperature + range: the lower, the surer the model is, by the
// entropy relative to the largest possible one (dynamic temperature).
double Sampler::temperature() {
    const double given = params_.temperature, range = params_.dynatemp_range;
    if (range <= 0 || candidates_.size() < 2) return given;
    const double sum = weigh(1);
    double entropy = 0;
    for (const Candidate& c : candidates_)
        if (c.weight > 0) entropy -= c.weight / sum * ggml::log_f64(c.weight / sum);
    const double unsure = entropy / ggml::log_f64(double(candidates_.size()));
    const double share =
        unsure > 0 ? ggml::exp_f64(params_.dynatemp_exponent * ggml::log_f64(unsure)) : 0;
    const double low = std::max(given - range, 0.0), high = given + range;
    return std::max(low + (high - low) * share, 1e-6);  // not 0, by which logits are divided
}

// How many tokens mirostat 1 keeps, by an estimate of the exponent of Zipf's law from the most
// likely 100, which are sorted.
double Sampler::mirostat_width(int32_t n_vocab) const {
    double products = 0, squares = 0;
    const size_t n = std::min<size_t>(100, candidates_.size());
    for (size_t i = 0; i + 1 < n && candidates_[i + 1].weight > 0; i++) {
        const double step = ggml::log_f64(double(i + 2) / double(i + 1));
        products += step * ggml::log_f64(candidates_[i].weight / candidates_[i + 1].weight);
        squares += step * step;
    }
    if (products <= 0) return double(n);  // all weights are equal, or there is one
    const double exponent = products / squares, excess = exponent - 1;
    const double log_n = ggml::log_f64(double(n_vocab)), two = ggml::log_f64(2);
    // excess / (1 - n_vocab^-excess), which approaches 1 / log_n
    const double scale =
        std::abs(excess) < 1e-9 ? 1 / log_n : excess / (1 - ggml::exp_f64(-excess * log_n));
    return ggml::exp_f64((ggml::log_f64(scale) + mirostat_mu_ * two) / exponent);
}

// Leaves out tokens that would surprise more than mu, and moves mu so that the surprise of a text
// stays near tau.
int32_t Sampler::mirostat(int32_t n_vocab) {
    double sum = weigh(params_.temperature);
    if (params_.mirostat_mode == 1) {
        sort_first(100);
        const double width = std::clamp(mirostat_width(n_vocab), 1.0, double(candidates_.size()));
        sort_first(size_t(width));
        candidates_.resize(size_t(width));
    } else {
        sort_first(1);
        const double least = sum * ggml::exp_f64(-mirostat_mu_ * ggml::log_f64(2));
        const auto end = std::remove_if(candidates_.begin() + 1, candidates_.end(),
                                        [=](const Candidate& c) { return c.weight < least; });
        candidates_.erase(end, candidates_.end());
    }
    sum = 0;
    for (const Candidate& c : candidates_) sum += c.weight;
    const Candidate& chosen = draw(sum);
    const double surprise = -ggml::log_f64(chosen.weight / sum) / ggml::log_f64(2);
    mirostat_mu_ -= double(params_.mirostat_eta) * (surprise - double(params_.mirostat_tau));
    return chosen.id;
}

// 53 random bits.
double Sampler::random() {
    return double(random_() >> 11) * 0x1p-53;
}

const Sampler::Candidate& Sampler::draw(double sum) {
    const double target = random() * sum;
    double covered = 0;
    const Candidate* chosen = nullptr;
    for (const Candidate& c : candidates_) {
        if (c.weight <= 0) continue;
        chosen = &c;
        covered += c.weight;
        if (target < covered) break;
    }
    return *chosen;
}

void Sampler::accept(int32_t token) {
    const int32_t window = params_.repeat_last_n;
    if (window == 0) return;
    counts_[token]++;
    if (window < 0) return;  // all tokens count, so none is removed
    last_.push_back(token);
    if (last_.size() <= size_t(window)) return;
    const auto oldest = counts_.find(last_.front());
    if (--oldest->second == 0) counts_.erase(oldest);
    last_.pop_front();
}

void Sampler::reset() {
    last_.clear();
    counts_.clear();
    mirostat_mu_ = 2 * double(params_.mirostat_tau);
}

}  // namespace powerinfer
