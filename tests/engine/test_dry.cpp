// DRY's penalties against the definition, in quadratic time, on random texts of few tokens.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "ggml/check.h"
#include "sampler/dry.h"

namespace {

pi_sampler_params parameters() {
    pi_sampler_params p = {};
    p.dry_multiplier = 0.8f;
    p.dry_base = 1.75f;
    p.dry_allowed_length = 2;
    p.dry_penalty_last_n = -1;
    return p;
}

// For every earlier place: how many of the last tokens also end there, and what came next.
std::map<int32_t, double> expected(const pi_sampler_params& p, std::vector<int32_t> text) {
    const auto window = size_t(p.dry_penalty_last_n);
    if (p.dry_penalty_last_n >= 0 && text.size() > window)
        text.erase(text.begin(), text.end() - int64_t(window));
    const size_t allowed = size_t(p.dry_allowed_length), n = text.size();
    std::map<int32_t, double> found;
    if (n <= allowed) return found;
    for (size_t end = 1; end < n; end++) {
        size_t length = 0;
        while (length < end && text[end - 1 - length] == text[n - 1 - length]) length++;
        if (length < allowed) continue;
        const double penalty =
            double(p.dry_multiplier) * std::pow(double(p.dry_base), double(length - allowed));
        double& most = found[text[end]];
        most = std::max(most, penalty);
    }
    return found;
}

void definition() {
    std::mt19937_64 random(1);
    const auto pick = [&](int lo, int hi) { return lo + int(random() % uint64_t(hi - lo + 1)); };
    size_t penalties = 0;
    for (int trial = 0; trial < 400; trial++) {
        pi_sampler_params p = parameters();
        p.dry_allowed_length = pick(0, 4);
        p.dry_penalty_last_n = pick(0, 1) ? -1 : pick(1, 60);
        p.dry_base = pick(0, 1) ? 1.75f : 1.1f;
        powerinfer::Dry dry(p, nullptr);
        std::vector<int32_t> text;
        const int n = pick(0, 90), kinds = pick(1, 4);
        for (int i = 0; i < n; i++) {
            text.push_back(pick(0, kinds - 1));
            dry.accept(text.back());
        }
        const auto want = expected(p, text);
        const auto& got = dry.penalties();
        CHECK(got.size() == want.size());
        for (const auto& [token, penalty] : want) {
            CHECK(got.count(token));
            CHECK(std::abs(double(got.at(token)) - penalty) <= 1e-6 * penalty);
        }
        penalties += want.size();
    }
    CHECK(penalties > 300);
}

void limits() {
    // A long repetition with a large base would exceed a float; so would a large multiplier.
    pi_sampler_params p = parameters();
    p.dry_base = 10;
    powerinfer::Dry dry(p, nullptr);
    for (int i = 0; i < 500; i++) dry.accept(7);
    CHECK(std::isfinite(dry.penalties().at(7)) && dry.penalties().at(7) > 1e37f);
    dry.reset();
    CHECK(dry.penalties().empty());
    for (float pi_sampler_params::*field :
         {&pi_sampler_params::dry_multiplier, &pi_sampler_params::dry_base}) {
        pi_sampler_params off = parameters();
        off.*field = 0;
        powerinfer::Dry none(off, nullptr);
        for (int i = 0; i < 9; i++) none.accept(7);
        CHECK(!none.on() && none.penalties().empty());
    }
}

}  // namespace

int main() {
    definition();
    limits();
    return check::summary("dry");
}
