// DRY's penalties against the definition, in quadratic time, on random texts of few tokens.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
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

// ---- Breakers ----------------------------------------------------------------------------------

// The longest token that a text begins with, again and again.
void encode_longest(const powerinfer::Vocab& vocab, std::string_view text,
                    std::vector<int32_t>& ids) {
    while (!text.empty()) {
        int32_t best = -1;
        for (int32_t i = 0; i < vocab.size(); i++) {
            const std::string& bytes = vocab.tokens[size_t(i)].bytes;
            const bool longer = best < 0 || bytes.size() > vocab.tokens[size_t(best)].bytes.size();
            if (longer && text.substr(0, bytes.size()) == bytes) best = i;
        }
        ids.push_back(best);
        text.remove_prefix(vocab.tokens[size_t(best)].bytes.size());
    }
}

using Tails = std::vector<std::vector<int32_t>>;

// The tails of all breakers that begin with a token, as they are defined.
Tails tails_of(const powerinfer::Vocab& vocab, const std::vector<std::string>& texts, int32_t id) {
    const std::string& token = vocab.tokens[size_t(id)].bytes;
    Tails tails;
    for (const std::string& text : texts) {
        if (token.find(text) != token.npos) {
            tails.emplace_back();
            continue;
        }
        for (size_t n = 1; n < text.size() && n <= token.size(); n++) {
            if (token.substr(token.size() - n) == text.substr(0, n))
                tails.push_back(vocab.tokenize(text.substr(n), false));
        }
    }
    return tails;
}

// Of n tokens that begin a text, how many follow the last breaker.
size_t since_breaker(const std::vector<int32_t>& text, const std::vector<Tails>& tails, size_t n) {
    for (size_t age = 0; age < n; age++) {
        const size_t head = text.size() - 1 - age;
        int longest = -1;
        for (const std::vector<int32_t>& tail : tails[size_t(text[head])]) {
            if (tail.size() > age) continue;
            if (std::equal(tail.begin(), tail.end(), text.begin() + int64_t(head) + 1))
                longest = std::max(longest, int(tail.size()));
        }
        if (longest >= 0) return age - size_t(longest);
    }
    return n;
}

void breakers() {
    std::mt19937_64 random(2);
    const auto pick = [&](int lo, int hi) { return lo + int(random() % uint64_t(hi - lo + 1)); };
    const auto word = [&](int most) {
        std::string text;
        for (int n = pick(1, most); n > 0; n--) text += char('a' + pick(0, 2));
        return text;
    };
    int shorter = 0;
    for (int trial = 0; trial < 300; trial++) {
        auto vocab = std::make_shared<powerinfer::Vocab>();
        vocab->add_space_prefix = false;
        vocab->encode = encode_longest;
        for (const char* letter : {"a", "b", "c"}) {
            vocab->tokens.push_back({letter, letter, 0, powerinfer::TokenType::normal});
        }
        for (int i = 0; i < 9; i++) {
            const std::string text = word(4);
            vocab->tokens.push_back({text, text, 0, powerinfer::TokenType::normal});
        }
        std::vector<std::string> texts;
        for (int n = pick(0, 4); n >= 0; n--) texts.push_back(word(7));
        const auto made = std::make_shared<const powerinfer::Breakers>(
            vocab, std::vector<std::string_view>(texts.begin(), texts.end()));
        std::vector<Tails> tails;
        std::vector<bool> alone;
        for (int32_t id = 0; id < vocab->size(); id++) {
            Tails want = tails_of(*vocab, texts, id), got;
            for (const auto* tail : made->find(id)) got.push_back(*tail);
            for (Tails* each : {&want, &got}) {
                std::sort(each->begin(), each->end());
                each->erase(std::unique(each->begin(), each->end()), each->end());
            }
            CHECK(got == want);
            alone.push_back(!want.empty() && want[0].empty());
            tails.push_back(std::move(want));
        }
        pi_sampler_params p = parameters();
        p.dry_allowed_length = 1;
        p.dry_penalty_last_n = pick(0, 1) ? -1 : pick(1, 20);
        powerinfer::Dry dry(p, made);
        std::vector<int32_t> text;
        for (int i = pick(1, 60); i > 0; i--) {
            text.push_back(pick(0, vocab->size() - 1));
            dry.accept(text.back());
            const size_t n = p.dry_penalty_last_n < 0
                                 ? text.size()
                                 : std::min(text.size(), size_t(p.dry_penalty_last_n));
            const size_t limit = since_breaker(text, tails, n);
            std::map<int32_t, double> want;
            for (size_t end = text.size() - n + 1; end < text.size(); end++) {
                const size_t known = end - (text.size() - n);
                size_t length = 0;
                while (length < known && text[end - 1 - length] == text[text.size() - 1 - length])
                    length++;
                shorter += length > limit;
                length = std::min(length, limit);
                if (length < 1 || alone[size_t(text[end])]) continue;
                double& most = want[text[end]];
                most = std::max(most, double(p.dry_multiplier) *
                                          std::pow(double(p.dry_base), double(length - 1)));
            }
            const auto& got = dry.penalties();
            CHECK(got.size() == want.size());
            for (const auto& [token, penalty] : want)
                CHECK(got.count(token) && std::abs(got.at(token) - penalty) <= 1e-6 * penalty);
        }
    }
    CHECK(shorter > 100);
}

}  // namespace

int main() {
    breakers();
    definition();
    limits();
    return check::summary("dry");
}
