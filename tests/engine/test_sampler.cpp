// The sampler against plain formulas, its draws against the expected distribution, and its
// parameters against invalid values.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "ggml/check.h"
#include "ggml/math.h"
#include "sampler/sampler.h"

using powerinfer::Sampler;

namespace {

const float inf = std::numeric_limits<float>::infinity();
const float nan_value = std::numeric_limits<float>::quiet_NaN();

// All filters off: draws from the softmax.
pi_sampler_params plain() {
    pi_sampler_params p = {};
    p.struct_size = sizeof p;
    p.seed = 1;
    p.temperature = 1;
    p.top_p = 1;
    p.typical_p = 1;
    p.repeat_penalty = 1;
    p.repeat_last_n = 64;
    return p;
}

std::vector<float> random_logits(uint64_t seed, int n) {
    std::mt19937_64 random(seed);
    std::vector<float> logits;
    for (int i = 0; i < n; i++)
        logits.push_back(float(double(random() >> 40) / (1 << 24) * 12 - 6));
    return logits;
}

int32_t sample(Sampler& sampler, const std::vector<float>& logits) {
    return sampler.sample(logits.data(), int32_t(logits.size()));
}

// ---- Specification: probabilities by id, filters in llama.cpp's order --------------------------

using Probabilities = std::map<int32_t, double>;

Probabilities softmax(const std::map<int32_t, double>& logits, double temperature) {
    double top = -1e300, sum = 0;
    for (const auto& [id, x] : logits) top = std::max(top, x);
    Probabilities p;
    for (const auto& [id, x] : logits) sum += p[id] = std::exp((x - top) / temperature);
    for (auto& [id, x] : p) x /= sum;
    return p;
}

std::vector<int32_t> by_falling(const std::map<int32_t, double>& values) {
    std::vector<int32_t> ids;
    for (const auto& [id, x] : values) ids.push_back(id);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return values.at(a) > values.at(b); });
    return ids;
}

Probabilities expected(const pi_sampler_params& params, const std::vector<float>& raw,
                       const std::vector<int32_t>& accepted) {
    std::map<int32_t, double> logits;
    for (size_t i = 0; i < raw.size(); i++) logits[int32_t(i)] = double(raw[i]);

    size_t window = params.repeat_last_n < 0 ? accepted.size() : size_t(params.repeat_last_n);
    window = std::min(window, accepted.size());
    std::map<int32_t, int> counts;
    for (size_t i = accepted.size() - window; i < accepted.size(); i++) counts[accepted[i]]++;
    for (const auto& [id, count] : counts) {
        double& x = logits.at(id);
        x = x <= 0 ? x * double(params.repeat_penalty) : x / double(params.repeat_penalty);
        x -= count * double(params.frequency_penalty) + double(params.presence_penalty);
    }

    const auto keep = [&](const std::vector<int32_t>& ids, size_t n) {
        const std::set<int32_t> kept(ids.begin(), ids.begin() + ptrdiff_t(n));
        for (auto it = logits.begin(); it != logits.end();)
            it = kept.count(it->first) ? std::next(it) : logits.erase(it);
    };
    if (params.top_k > 0) keep(by_falling(logits), std::min(size_t(params.top_k), logits.size()));
    if (params.typical_p < 1) {
        const Probabilities p = softmax(logits, 1);
        double entropy = 0;
        for (const auto& [id, x] : p) entropy -= x * std::log(x);
        std::map<int32_t, double> nearness;
        for (const auto& [id, x] : p) nearness[id] = -std::abs(-std::log(x) - entropy);
        const std::vector<int32_t> ids = by_falling(nearness);
        double covered = 0;
        size_t n = 0;
        while (n < ids.size() && covered <= double(params.typical_p)) covered += p.at(ids[n++]);
        keep(ids, n);
    }
    if (params.top_p < 1) {
        const Probabilities p = softmax(logits, 1);
        const std::vector<int32_t> ids = by_falling(p);
        double covered = 0;
        size_t n = 0;
        do covered += p.at(ids[n++]);
        while (n < ids.size() && covered < double(params.top_p));
        keep(ids, n);
    }
    if (params.min_p > 0) {
        const Probabilities p = softmax(logits, 1);
        const std::vector<int32_t> ids = by_falling(p);
        size_t n = 0;
        while (n < ids.size() && p.at(ids[n]) >= double(params.min_p) * p.at(ids[0])) n++;
        keep(ids, n);
    }
    return softmax(logits, double(params.temperature));
}

// ---- Tests --------------------------------------------------------------------------------------

// Draws many times: only expected tokens may occur, with the expected frequencies.
void follows(const pi_sampler_params& params, const std::vector<float>& logits,
             const std::vector<int32_t>& accepted, int draws) {
    const Probabilities p = expected(params, logits, accepted);
    Sampler sampler(params);
    for (const int32_t id : accepted) sampler.accept(id);
    std::map<int32_t, int> seen;
    for (int i = 0; i < draws; i++) seen[sample(sampler, logits)]++;
    for (const auto& [id, n] : seen) CHECK(p.count(id));
    // Tokens expected less than 5 times are combined, as usual for the chi-squared test.
    double chi2 = 0, rest = 0;
    int rest_seen = 0, degrees = 0;
    for (const auto& [id, share] : p) {
        const double want = share * draws;
        const int got = seen.count(id) ? seen[id] : 0;
        if (want < 5) {
            rest += want;
            rest_seen += got;
            continue;
        }
        chi2 += (got - want) * (got - want) / want;
        degrees++;
    }
    if (rest >= 5) {
        chi2 += (rest_seen - rest) * (rest_seen - rest) / rest;
        degrees++;
    }
    // chi2 has mean d and variance 2d. Allows five standard deviations; the seed is fixed.
    CHECK(chi2 <= (degrees - 1) + 5 * std::sqrt(2.0 * degrees) + 1);
}

void distribution() {
    for (const float temperature : {0.3f, 0.8f, 1.0f, 2.0f, 100.0f}) {
        pi_sampler_params params = plain();
        params.temperature = temperature;
        follows(params, random_logits(7, 60), {}, 20000);
    }
}

void filters() {
    std::mt19937_64 random(3);
    const auto pick = [&](std::initializer_list<float> values) {
        return values.begin()[random() % values.size()];
    };
    for (int trial = 0; trial < 300; trial++) {
        pi_sampler_params params = plain();
        params.seed = uint64_t(trial);
        params.temperature = pick({0.5f, 1, 1.5f});
        params.top_k = int32_t(pick({-1, 0, 1, 5, 40, 1000}));
        params.typical_p = pick({1, 1, 0.9f, 0.5f, 0});
        params.top_p = pick({1, 0.95f, 0.5f, 0.1f, 0});
        params.min_p = pick({0, 0.01f, 0.05f, 0.5f, 1});
        params.repeat_penalty = pick({1, 1.1f, 2, 0.7f});
        params.frequency_penalty = pick({0, 0, 0.5f, -0.5f});
        params.presence_penalty = pick({0, 0, 1.5f, -1});
        params.repeat_last_n = int32_t(pick({-1, 0, 1, 10, 64}));
        const int n = int(pick({2, 50, 400}));
        std::vector<int32_t> accepted;
        for (int i = int(random() % 100); i > 0; i--)
            accepted.push_back(int32_t(random() % uint64_t(n)));
        follows(params, random_logits(uint64_t(trial), n), accepted, 500);
    }
    // One filter at a time, with more draws.
    pi_sampler_params params = plain();
    params.top_k = 7;
    follows(params, random_logits(11, 300), {}, 5000);
    params = plain();
    params.top_p = 0.9f;
    follows(params, random_logits(12, 3000), {}, 5000);
    params = plain();
    params.min_p = 0.1f;
    follows(params, random_logits(13, 300), {}, 5000);
    params = plain();
    params.typical_p = 0.6f;
    follows(params, random_logits(14, 300), {}, 5000);
}

void greedy() {
    pi_sampler_params cold = pi_sampler_default_params(), one = cold;
    cold.temperature = 0;
    one.top_k = 1;
    pi_sampler_params colder = cold;
    colder.temperature = -1;
    colder.typical_p = 0.1f;  // filters have no effect here
    for (uint64_t seed = 0; seed < 50; seed++) {
        const std::vector<float> logits = random_logits(seed, 1000);
        const auto best = int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
        Sampler a(cold), b(one), c(colder);
        CHECK(sample(a, logits) == best && sample(b, logits) == best && sample(c, logits) == best);
    }
    Sampler sampler(cold);
    CHECK(sample(sampler, {1, 3, 2, 3, 3}) == 1);  // the lowest id on ties
    CHECK(sample(sampler, {-5}) == 0);

    pi_sampler_params params = cold;
    params.presence_penalty = 1.5f;
    Sampler penal(params);
    penal.accept(1);
    CHECK(sample(penal, {2, 3, 1}) == 0);
    penal.reset();
    CHECK(sample(penal, {2, 3, 1}) == 1);
    // Tokens leave the window.
    params.repeat_last_n = 2;
    Sampler window(params);
    for (const int32_t id : {1, 2}) window.accept(id);
    CHECK(sample(window, {2, 3, 1}) == 0);
    window.accept(2);
    CHECK(sample(window, {2, 3, 1}) == 1);
}

void seeds() {
    const std::vector<float> logits = random_logits(5, 500);
    pi_sampler_params params = pi_sampler_default_params();
    params.temperature = 2;
    params.seed = 42;
    Sampler a(params), b(params);
    params.seed = 43;
    Sampler other(params);
    int different = 0;
    for (int i = 0; i < 100; i++) {
        const int32_t token = sample(a, logits);
        CHECK(token == sample(b, logits));
        different += token != sample(other, logits);
    }
    CHECK(different > 10);
    // These draws are the same on every machine. The C++ standard defines mt19937_64; with four
    // equal logits a draw is its two highest bits.
    params = plain();
    params.seed = 5489;
    Sampler fixed(params);
    std::mt19937_64 random(5489);
    const std::vector<float> equal(4, 1.5f);
    for (int i = 0; i < 100; i++) CHECK(sample(fixed, equal) == int32_t(random() >> 62));
    // reset() forgets tokens; the random state continues.
    Sampler one(params), two(params);
    sample(one, equal);
    sample(two, equal);
    one.reset();
    for (int i = 0; i < 20; i++) CHECK(sample(one, equal) == sample(two, equal));
    // seed() restarts it.
    one.seed(5489);
    Sampler anew(params);
    for (int i = 0; i < 20; i++) CHECK(sample(one, equal) == sample(anew, equal));
}

// reset() forgets what mirostat has learnt of a text.
void mirostat_begins_anew() {
    const std::vector<float> logits = random_logits(7, 300);
    for (const int32_t mode : {1, 2}) {
        pi_sampler_params params = plain();
        params.mirostat_mode = mode;
        params.mirostat_tau = 3;
        params.mirostat_eta = 0.5f;
        Sampler used(params), fresh(params);
        for (int i = 0; i < 30; i++) sample(used, logits);
        used.reset();
        used.seed(9);
        fresh.seed(9);
        for (int i = 0; i < 30; i++) CHECK(sample(used, logits) == sample(fresh, logits));
    }
}

std::string refusal(Sampler& sampler, const std::vector<float>& logits) {
    try {
        sample(sampler, logits);
    } catch (const ggml::Error& e) {
        return e.code() == ggml::Code::argument ? e.what() : "";
    }
    return "";
}

void odd_logits() {
    pi_sampler_params params = plain();
    params.temperature = 1;
    Sampler sampler(params);
    for (int i = 0; i < 100; i++) {
        const int32_t token = sample(sampler, {nan_value, 0, -inf, 1, nan_value});
        CHECK(token == 1 || token == 3);
        CHECK(sample(sampler, {0, inf, 5}) == 1);
    }
    for (const float temperature : {0.0f, 1.0f}) {
        params = pi_sampler_default_params();
        params.temperature = temperature;
        params.repeat_penalty = 1e-30f;  // sends logits to infinity
        params.frequency_penalty = 3e38f;
        params.repeat_last_n = -1;
        Sampler s(params);
        for (int32_t id : {0, 0, 1, 7, -3}) s.accept(id);
        const int32_t token = sample(s, {1e20f, -1e30f, nan_value, 3e38f});
        CHECK(token == 3);
        CHECK(sample(s, {nan_value, -inf, -3}) == 2);
        CHECK(refusal(s, {nan_value, -inf}).find("the logits are NaN") != std::string::npos);
        CHECK(refusal(s, {-inf, -inf}).find("every logit is minus infinity") != std::string::npos);
        CHECK_THROWS(argument, s.sample(nullptr, 0));
    }
    params = plain();
    params.temperature = std::numeric_limits<float>::denorm_min();
    Sampler cold(params);
    CHECK(sample(cold, {3e38f, -3e38f, 3.1e38f}) == 2);
    params.temperature = 3e38f;
    Sampler hot(params);
    std::set<int32_t> seen;
    for (int i = 0; i < 100; i++) seen.insert(sample(hot, {-3, 0, 3}));
    CHECK(seen.size() == 3);
}

template <class Field>
void rejects_float(Field field, const std::string& name, std::initializer_list<float> values) {
    for (const float value : values) {
        pi_sampler_params params = pi_sampler_default_params();
        params.*field = value;
        CHECK_THROWS(argument, Sampler(params));
        try {
            Sampler sampler(params);
        } catch (const ggml::Error& e) {
            CHECK(std::string(e.what()).find(name) != std::string::npos);
        }
    }
}

void rejects() {
    using P = pi_sampler_params;
    rejects_float(&P::temperature, "temperature", {nan_value, inf, -inf});
    rejects_float(&P::top_p, "top_p", {nan_value, inf, -0.1f, 1.1f});
    rejects_float(&P::min_p, "min_p", {nan_value, inf, -0.1f, 1.1f});
    rejects_float(&P::typical_p, "typical_p", {nan_value, inf, -0.1f, 1.1f});
    rejects_float(&P::repeat_penalty, "repeat_penalty", {nan_value, inf, 0, -1});
    rejects_float(&P::frequency_penalty, "frequency_penalty", {nan_value, inf, -inf});
    rejects_float(&P::presence_penalty, "presence_penalty", {nan_value, inf, -inf});
    pi_sampler_params params = pi_sampler_default_params();
    params.repeat_last_n = -2;
    CHECK_THROWS(argument, Sampler(params));
    rejects_float(&P::dry_multiplier, "dry_multiplier", {nan_value, inf, -1});
    rejects_float(&P::dry_base, "dry_base", {nan_value, inf, -1});
    for (int32_t P::*field : {&P::dry_allowed_length, &P::dry_penalty_last_n}) {
        params = pi_sampler_default_params();
        params.*field = -2;
        CHECK_THROWS(argument, Sampler(params));
    }
    const std::string many(200, ';');
    for (const char* names : {"top_q", "top_k,top_p", ";", " top_k", many.c_str(),
                              "typ_p;top_p;typical;typical_p", "temp;temp;temperature"}) {
        params = pi_sampler_default_params();
        params.samplers = names;
        CHECK_THROWS(argument, Sampler(params));
    }
    params.samplers = "temperature;min_p;temperature;min_p";
    Sampler twice(params);
}

// ---- Large vocabularies: every draw, by sorts of everything ------------------------------------

struct Known {
    int32_t id;
    float logit;
    double weight;
};

double weigh(std::vector<Known>& all) {
    float top = -inf;
    for (const Known& k : all) top = std::max(top, k.logit);
    double sum = 0;
    for (Known& k : all) sum += k.weight = ggml::exp_f64(double(k.logit) - double(top));
    return sum;
}

bool better(const Known& a, const Known& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

std::vector<Known> filtered(const pi_sampler_params& p, const std::vector<float>& logits) {
    std::vector<Known> all;
    for (size_t i = 0; i < logits.size(); i++)
        if (logits[i] > -inf) all.push_back({int32_t(i), logits[i], 0});
    if (p.typical_p < 1) {
        const double sum = weigh(all);
        double entropy = 0, covered = 0;
        for (const Known& k : all) entropy -= k.weight / sum * ggml::log_f64(k.weight / sum);
        std::vector<std::pair<double, Known>> far;
        for (const Known& k : all)
            far.push_back({std::abs(-ggml::log_f64(k.weight / sum) - entropy), k});
        std::sort(far.begin(), far.end(), [](const auto& a, const auto& b) {
            return a.first != b.first ? a.first < b.first : better(a.second, b.second);
        });
        all.clear();
        for (size_t i = 0; i < far.size() && !(covered > double(p.typical_p)); i++) {
            all.push_back(far[i].second);
            covered += far[i].second.weight / sum;
        }
        std::sort(all.begin(), all.end(), better);
    }
    if (p.top_p < 1) {
        const double enough = double(p.top_p) * weigh(all);
        std::sort(all.begin(), all.end(), better);
        double covered = 0;
        size_t n = 0;
        do covered += all[n++].weight;
        while (n < all.size() && covered < enough);
        all.resize(n);
    }
    if (p.top_k > 0 && size_t(p.top_k) < all.size()) {
        std::sort(all.begin(), all.end(), better);
        all.resize(size_t(p.top_k));
    }
    return all;
}

void large() {
    std::mt19937_64 random(5);
    std::set<int32_t> drawn;
    for (int trial = 0; trial < 60; trial++) {
        pi_sampler_params p = plain();
        p.seed = random();
        const int kind = trial % 6;
        if (kind < 3) p.typical_p = trial % 2 ? 0.999f : 0.6f;
        if (kind == 2 || kind == 3) p.top_p = trial % 4 ? 0.9999f : 0.7f;
        if (kind > 3) p.top_k = 2000 + 700 * (trial % 7);
        p.samplers = "typ_p;top_p;top_k;temperature";
        std::vector<float> logits = random_logits(random(), 7000);
        for (float& logit : logits) {
            if (trial % 3 == 0) logit = std::round(2 * logit) / 2;  // ties, 0 and -0
            if (trial % 3 == 1) logit *= 0.1f;
            if (random() % 50 == 0) logit = -inf;
        }
        std::vector<Known> kept = filtered(p, logits);
        const double sum = weigh(kept);
        std::mt19937_64 same(p.seed);
        Sampler sampler(p);
        for (int i = 0; i < 4; i++) {
            const double target = double(same() >> 11) * 0x1p-53 * sum;
            double covered = 0;
            size_t at = 0;
            while (at + 1 < kept.size() && target >= covered + kept[at].weight)
                covered += kept[at++].weight;
            CHECK(sample(sampler, logits) == kept[at].id);
            drawn.insert(kept[at].id);
        }
    }
    CHECK(drawn.size() > 100);
}

// The default order by its names, by others of llama.cpp, and without what has no effect.
void orders() {
    pi_sampler_params params = pi_sampler_default_params();
    params.repeat_penalty = 1.2f;
    Sampler usual(params);
    params.samplers = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    Sampler named(params);
    params.samplers = "penalties;top-k;nucleus;min-p;typical;temp";
    Sampler others(params);
    params.samplers = "";
    Sampler none(params);
    std::set<int32_t> drawn;
    for (uint64_t i = 0; i < 300; i++) {
        const std::vector<float> logits = random_logits(i, 400);
        const int32_t token = sample(usual, logits);
        CHECK(token == sample(named, logits) && token == sample(others, logits));
        for (Sampler* sampler : {&usual, &named, &others}) sampler->accept(token);
        drawn.insert(sample(none, random_logits(0, 400)));
    }
    CHECK(drawn.size() > 40);  // more than top-k leaves
    // Without a temperature it is 1, however cold it would be; penalties after it do not matter.
    params = pi_sampler_default_params();
    params.temperature = 0;
    params.samplers = "top_k";
    Sampler warm(params);
    drawn.clear();
    for (int i = 0; i < 100; i++) drawn.insert(sample(warm, {1, 1, 1}));
    CHECK(drawn.size() == 3);
    params.presence_penalty = 9;
    for (const bool before : {false, true}) {
        params.samplers = before ? "penalties;temperature" : "temperature;penalties";
        Sampler cold(params);
        cold.accept(1);
        CHECK(sample(cold, {1, 2, 0}) == (before ? 0 : 1));
    }
}

// Top-k finds its candidates without a list of all tokens, unless penalties concern very many. Both
// ways draw the same: with ties, tokens that cannot be chosen, and penalties in both directions.
void both_ways() {
    constexpr int kTokens = 3000;
    std::mt19937_64 random(3);
    for (int round = 0; round < 60; round++) {
        std::vector<float> logits = random_logits(uint64_t(round), kTokens);
        if (round % 3 == 1)
            for (float& x : logits) x = std::floor(x);
        if (round % 4 == 2)
            for (int i = 0; i < kTokens; i++) logits[size_t(i)] = float(i % 1500) / 100;
        if (round % 5 == 3)
            for (int i = 0; i < 40; i++) logits[random() % kTokens] = i % 2 ? nan_value : -inf;
        if (round % 7 == 4) logits[random() % kTokens] = inf, logits[random() % kTokens] = inf;
        if (round % 6 == 5)  // few remain
            for (int i = 20 + round; i < kTokens; i++) logits[size_t(i)] = -inf;
        pi_sampler_params p = plain();
        p.seed = uint64_t(round), p.repeat_last_n = -1;
        p.top_k = (const int[]){1, 2, 20 + round, 40, 900, 2999}[round % 6];
        p.temperature = round % 8 == 7 ? 0 : 1.5f;
        p.typical_p = round % 9 == 8 ? 0.5f : 1;
        p.top_p = round % 2 ? 0.9f : 1, p.min_p = round % 10 == 9 ? 0.1f : 0;
        p.frequency_penalty = (const float[]){1e-9f, 3, -2, 1}[round % 4];
        if (round % 11 == 5) p.repeat_penalty = 1e-30f;
        Sampler few(p), many(p);
        for (int i = 0; i < 60; i++) {
            const int32_t best =
                int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
            const int32_t id = i % 3 ? int32_t(random() % kTokens) : i % 2 ? best : -i;
            few.accept(id), many.accept(id);
        }
        for (int32_t i = 0; i < 2000; i++) many.accept(kTokens + i);  // are not tokens
        for (int i = 0; i < 30; i++) CHECK(sample(few, logits) == sample(many, logits));
    }
}

}  // namespace

int main() {
    large();
    distribution();
    filters();
    greedy();
    seeds();
    mirostat_begins_anew();
    odd_logits();
    rejects();
    orders();
    both_ways();
    return check::summary("sampler");
}
