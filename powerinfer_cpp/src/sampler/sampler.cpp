#include "sampler/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

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

float finite(double logit) {
    return float(std::clamp(logit, -double(FLT_MAX), double(FLT_MAX)));
}

using Step = Sampler::Step;

// llama.cpp's names, in the default order.
constexpr std::pair<const char*, Step> kSteps[] = {
    {"penalties", Step::penalties}, {"dry", Step::dry},       {"top_n_sigma", Step::top_n_sigma},
    {"top_k", Step::top_k},         {"typ_p", Step::typical}, {"top_p", Step::top_p},
    {"min_p", Step::min_p},         {"xtc", Step::xtc},       {"temperature", Step::temperature},
};
// Its other ones, with an underscore for a hyphen.
constexpr std::pair<const char*, Step> kOtherNames[] = {
    {"typical", Step::typical},
    {"typical_p", Step::typical},
    {"nucleus", Step::top_p},
    {"temp", Step::temperature},
};
// Of one name: a second time may make sense, behind another step.
constexpr auto kMostOfAName = 2;

Step step_of(std::string_view given) {
    std::string name(given), known;
    std::replace(name.begin(), name.end(), '-', '_');
    for (const auto& [other, step] : kOtherNames)
        if (name == other) return step;
    for (const auto& [own, step] : kSteps) {
        if (name == own) return step;
        known += known.empty() ? own : std::string(", ") + own;
    }
    throw ggml::Error(ggml::Code::argument, "samplers: '" + std::string(given.substr(0, 40)) +
                                                "' is unknown: known are " + known);
}

// The steps of names separated by semicolons; null: the default.
std::vector<Step> steps_of(const char* names) {
    std::vector<Step> steps;
    if (!names) {
        for (const auto& [name, step] : kSteps) steps.push_back(step);
        return steps;
    }
    std::string_view rest = names;
    while (!rest.empty()) {
        const size_t end = std::min(rest.find(';'), rest.size());
        const std::string_view name = rest.substr(0, end);
        steps.push_back(step_of(name));
        if (std::count(steps.begin(), steps.end(), steps.back()) > kMostOfAName)
            throw ggml::Error(ggml::Code::argument,
                              ggml::format("samplers: '%s' stands there more than %d times",
                                           std::string(name).c_str(), kMostOfAName));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return steps;
}

bool is_penalty(Step step) {
    return step == Step::penalties || step == Step::dry;
}

}  // namespace

Sampler::Sampler(const pi_sampler_params& params, std::shared_ptr<const Breakers> breakers)
    : params_(params),
      dry_(params, std::move(breakers)),
      random_(params.seed),
      mirostat_mu_(2 * double(params.mirostat_tau)) {
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
    check("dry_multiplier", params.dry_multiplier, 0, FLT_MAX);
    check("dry_base", params.dry_base, 0, FLT_MAX);
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
    if (params.dry_allowed_length < 0)
        throw ggml::Error(ggml::Code::argument,
                          ggml::format("dry_allowed_length must be 0 or more, not %d",
                                       int(params.dry_allowed_length)));
    if (params.dry_penalty_last_n < -1)
        throw ggml::Error(ggml::Code::argument,
                          ggml::format("dry_penalty_last_n must be -1 or more, not %d",
                                       int(params.dry_penalty_last_n)));
    choose_steps(steps_of(params.samplers));
    params_.samplers = nullptr;  // the caller's
    params_.dry_sequence_breakers = nullptr;
}

// Drops steps without an effect. Greedy choices need those before the temperature that can change
// which token is best, and so does mirostat.
void Sampler::choose_steps(const std::vector<Step>& asked) {
    const auto cold = std::find(asked.begin(), asked.end(), Step::temperature);
    greedy_ = params_.temperature <= 0 && (params_.mirostat_mode || cold != asked.end());
    const bool only_penalties = greedy_ || params_.mirostat_mode;
    for (auto step = asked.begin(); step != (greedy_ ? cold : asked.end()); step++)
        if (has_effect(*step) && (is_penalty(*step) || !only_penalties)) steps_.push_back(*step);
    n_first_ = size_t(std::find_if_not(steps_.begin(), steps_.end(), is_penalty) - steps_.begin());
}

bool Sampler::has_effect(Step step) const {
    switch (step) {
        case Step::penalties:
            return penalises();
        case Step::dry:
            return dry_.on();
        case Step::top_n_sigma:
            return params_.top_n_sigma > 0;
        case Step::top_k:
            return params_.top_k > 0;
        case Step::typical:
            return params_.typical_p < 1;
        case Step::top_p:
            return params_.top_p < 1;
        case Step::min_p:
            return params_.min_p > 0;
        case Step::xtc:
            return params_.xtc_probability > 0 && params_.xtc_threshold <= 0.5f;
        case Step::temperature:
            return true;
    }
    return false;
}

void Sampler::apply(Step step) {
    switch (step) {
        case Step::penalties:
        case Step::dry:
            return penalise_kept(step);
        case Step::top_n_sigma:
            return keep_top_n_sigma();
        case Step::top_k:
            return keep_top_k();
        case Step::typical:
            return keep_typical();
        case Step::top_p:
            return keep_top_p();
        case Step::min_p:
            return keep_min_p();
        case Step::xtc:
            return exclude_top_choices();
        case Step::temperature:
            temperature_ *= temperature();
            return;
    }
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
    repetitions_ = dry_.on() ? &dry_.penalties() : nullptr;
    find_changes(logits, n_vocab);
    const bool top_k = n_first_ < steps_.size() && steps_[n_first_] == Step::top_k;
    const size_t most = greedy_ ? 1 : top_k ? size_t(params_.top_k) : 0;
    const bool found = find_best(logits, n_vocab, most);
    if (!found) take_all(logits, n_vocab);
    if (greedy_) return best();
    temperature_ = 1;
    weighed_.reset();
    if (params_.mirostat_mode) return mirostat(n_vocab);
    for (size_t i = n_first_ + (found && top_k); i < steps_.size(); i++) apply(steps_[i]);
    return draw(weigh()).id;
}

// All tokens that can be chosen, by id.
void Sampler::take_all(const float* logits, int32_t n_vocab) {
    candidates_.resize(size_t(n_vocab));
    sorted_ = 0;
    Candidate* end = candidates_.data();
    for (int32_t id = 0; id < n_vocab; id++) {
        *end = {id, std::min(logits[id], FLT_MAX), 0};
        end += can_be_chosen(logits[id]);  // one that cannot is overwritten
    }
    candidates_.resize(size_t(end - candidates_.data()));
    for (const auto& [id, logit] : changes_) {
        const auto found = std::lower_bound(candidates_.begin(), candidates_.end(), id,
                                            [](const Candidate& c, int32_t i) { return c.id < i; });
        found->logit = logit;
    }
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
    const size_t looked_at = n + changes_.size() + 1;
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
    const auto end = std::remove_if(candidates_.begin(), candidates_.end(),
                                    [&](const Candidate& c) { return changes_.count(c.id) > 0; });
    candidates_.erase(end, candidates_.end());
    for (const auto& [id, logit] : changes_) candidates_.push_back({id, logit, 0});
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

// A logit after a step of penalties.
float Sampler::changed(Step step, int32_t id, float logit) const {
    if (step == Step::penalties) {
        const auto found = counts_.find(id);
        return found == counts_.end() ? logit : penalised(logit, found->second);
    }
    const auto found = repetitions_->find(id);
    return found == repetitions_->end() ? logit : finite(double(logit) - double(found->second));
}

// The logits that the penalties before all other steps change. Few do, so the others need no look.
void Sampler::find_changes(const float* logits, int32_t n_vocab) {
    changes_.clear();
    const auto change = [&](int32_t id) {
        if (id < 0 || id >= n_vocab || !can_be_chosen(logits[id])) return;
        const auto [at, is_new] = changes_.emplace(id, std::min(logits[id], FLT_MAX));
        if (!is_new) return;
        for (size_t i = 0; i < n_first_; i++) at->second = changed(steps_[i], id, at->second);
    };
    for (size_t i = 0; i < n_first_; i++) {
        if (steps_[i] == Step::penalties)
            for (const auto& [id, count] : counts_) change(id);
        if (steps_[i] == Step::dry)
            for (const auto& [id, penalty] : *repetitions_) change(id);
    }
}

// The same after other steps, for the candidates that those have left.
void Sampler::penalise_kept(Step step) {
    for (Candidate& c : candidates_) {
        c.logit = changed(step, c.id, finite(double(c.logit) / temperature_));
    }
    temperature_ = 1;
    sorted_ = 0;
    weighed_.reset();
}

int32_t Sampler::best() const {
    return std::min_element(candidates_.begin(), candidates_.end(), before)->id;
}

void Sampler::keep_top_k() {
    const auto n = size_t(params_.top_k);
    if (n >= candidates_.size()) return;
    sort_first(n);
    candidates_.resize(n);
    sorted_ = n;
}

// Keeps the tokens whose information is closest to the expected one, until their probabilities
// exceed p (locally typical sampling, arXiv 2202.00666).
void Sampler::keep_typical() {
    const double sum = weigh(), expected = entropy(sum);
    if (sorted_ < candidates_.size()) {
        sort_first(candidates_.size());
        entropy(sum);  // for its logarithms, in this order
    }
    // A weight of 0 (underflow) has infinite information and would make the sums NaN.
    size_t n = candidates_.size();
    while (n > 0 && candidates_[n - 1].weight <= 0) n--;
    for (size_t i = 0; i < n; i++) logs_[i] = -logs_[i];
    const bool rises = std::is_sorted(logs_.begin(), logs_.begin() + ptrdiff_t(n));
    const auto middle = std::lower_bound(logs_.begin(), logs_.begin() + ptrdiff_t(n), expected);
    size_t left = size_t(middle - logs_.begin()), right = left;
    std::vector<double>& distance = logs_;
    for (size_t i = 0; i < n; i++) distance[i] = std::abs(distance[i] - expected);
    keeps_.assign(n, 0);
    double covered = 0;
    const auto enough = [&](size_t i) {
        keeps_[i] = 1;
        covered += candidates_[i].weight / sum;
        return covered > double(params_.typical_p);
    };
    // Candidates are sorted and their information rises, so the closest ones come from both sides
    // of the expected one. Of the same distance the best ones are first.
    const auto both_sides = [&] {
        while (left > 0 || right < n) {
            if (left == 0 || (right < n && distance[right] < distance[left - 1])) {
                if (enough(right++)) return;
                continue;
            }
            size_t first = left - 1;
            while (first > 0 && distance[first - 1] == distance[left - 1]) first--;
            for (size_t i = first; i < left; i++)
                if (enough(i)) return;
            left = first;
        }
    };
    // Where logits differ by less than a weight shows, rounding may make it fall.
    const auto one_by_one = [&] {
        std::vector<size_t> order(n);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return distance[a] < distance[b]; });
        for (const size_t i : order)
            if (enough(i)) return;
    };
    rises ? both_sides() : one_by_one();
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (keeps_[i]) candidates_[kept++] = candidates_[i];
    candidates_.resize(kept);
    sorted_ = kept;
}

// Keeps the best tokens until the sum of their probabilities reaches p (nucleus sampling, arXiv
// 1904.09751).
void Sampler::keep_top_p() {
    const double p = params_.top_p;
    const double enough = p * weigh();
    double covered = 0;
    size_t kept = 0;
    do {
        // A few candidates have most of the weight. Sorting a large vocabulary would cost more than
        // the rest of the sampler.
        if (kept == sorted_) kept == 0 ? sort_first(64) : sort_heaviest(enough - covered);
        covered += candidates_[kept++].weight;
    } while (kept < candidates_.size() && covered < enough);
    candidates_.resize(kept);
    sorted_ = kept;
}

// Keeps tokens that are at least min_p times as probable as the best one (arXiv 2407.01082).
void Sampler::keep_min_p() {
    weigh();
    const double least = params_.min_p;
    const auto end = std::remove_if(candidates_.begin(), candidates_.end(),
                                    [=](const Candidate& c) { return c.weight < least; });
    candidates_.erase(end, candidates_.end());
    sorted_ = std::min(sorted_, candidates_.size());
}

// Keeps logits that are at most n standard deviations below the best one (arXiv 2411.07641).
void Sampler::keep_top_n_sigma() {
    if (candidates_.size() < 2) return;
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
    sorted_ = std::min(sorted_, candidates_.size());
}

// Excludes top choices (XTC), for less predictable texts: sometimes, of the tokens that reach the
// threshold, only the least likely remains.
void Sampler::exclude_top_choices() {
    if (candidates_.size() < 2) return;
    if (random() >= params_.xtc_probability) return;
    const double least = double(params_.xtc_threshold) * weigh();
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
    const double unsure = entropy(weigh()) / ggml::log_f64(double(candidates_.size()));
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
    temperature_ = params_.temperature;
    double sum = weigh();
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
    dry_.accept(token);
    const int32_t window = params_.repeat_last_n;
    if (window == 0) return;
    if (window > 0) last_.push_back(token);
    try {
        counts_[token]++;
    } catch (...) {  // each token in last_ is counted
        if (window > 0) last_.pop_back();
        throw;
    }
    if (window < 0 || last_.size() <= size_t(window)) return;  // below 0: all tokens count
    const auto oldest = counts_.find(last_.front());
    if (--oldest->second == 0) counts_.erase(oldest);
    last_.pop_front();
}

void Sampler::reset() {
    dry_.reset();
    last_.clear();
    counts_.clear();
    mirostat_mu_ = 2 * double(params_.mirostat_tau);
}

}  // namespace powerinfer
