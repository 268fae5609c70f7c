// The router against a plain sort and sums in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ggml/check.h"
#include "ggml/operators.h"
#include "ggml/ops.h"

using namespace ggml;

namespace {

constexpr int64_t kRows = 37;

// What route() gives, as [rows, n_expert] with 0 for experts that are not chosen.
std::vector<std::vector<double>> routed(Context& context, const Routing& how, const Floats& given) {
    const int64_t n = int64_t(given.size()) / how.n_expert;
    Floats score = given;
    std::vector<uint8_t> room(carved_bytes<RouteScratch>(n, how.n_expert, how.n_used));
    Carver carver(room.data(), room.size());
    const RouteScratch scratch(carver, n, how.n_expert, how.n_used);
    std::vector<int32_t> first(size_t(how.n_expert) + 1), rows(size_t(n * how.n_used));
    Floats weights(rows.size());
    route(context, how, score.data(), n, scratch, {first.data(), rows.data(), weights.data()});
    CHECK(first[0] == 0 && first.back() == n * how.n_used);
    std::vector<std::vector<double>> got(size_t(n), std::vector<double>(size_t(how.n_expert)));
    for (size_t e = 0; e + 1 < first.size(); e++) {
        for (int32_t k = first[e]; k < first[e + 1]; k++) {
            CHECK(k == first[e] || rows[size_t(k)] > rows[size_t(k) - 1]);
            got[size_t(rows[size_t(k)])][e] = double(weights[size_t(k)]);
        }
    }
    // A row alone chooses the same.
    Floats alone(given.begin(), given.begin() + how.n_expert);
    choose_experts(how, alone.data(), scratch);
    for (int64_t k = 0; k < how.n_used; k++) {
        const auto e = size_t(scratch.chosen[k]);
        CHECK(first[e] < first[e + 1] && rows[size_t(first[e])] == 0);
    }
    return got;
}

// The same by the definition.
std::vector<double> by_definition(const Routing& how, const float* r) {
    const auto n = size_t(how.n_expert);
    std::vector<double> p(n), choice(n), weights(n, 0.0);
    double all = 0;
    for (size_t e = 0; e < n; e++) all += std::exp(double(r[e]));
    for (size_t e = 0; e < n; e++) {
        const double x = double(r[e]);
        p[e] = how.gating == Gating::softmax         ? std::exp(x) / all
               : how.gating == Gating::sigmoid       ? 1 / (1 + std::exp(-x))
               : how.gating == Gating::sqrt_softplus ? std::sqrt(std::log1p(std::exp(x)))
                                                     : x;
        choice[e] = p[e] + (how.choice_bias ? double(how.choice_bias[e]) : 0);
    }
    const auto sorted = [](const std::vector<double>& of, size_t begin, size_t end) {
        std::vector<size_t> order;
        for (size_t i = begin; i < end; i++) order.push_back(i);
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return of[a] > of[b]; });
        return order;
    };
    const size_t size = n / size_t(how.n_group);
    std::vector<double> groups;
    for (size_t g = 0; g < size_t(how.n_group); g++) {
        const std::vector<size_t> best = sorted(choice, g * size, (g + 1) * size);
        groups.push_back(choice[best[0]] + (how.by_two && size > 1 ? choice[best[1]] : 0));
    }
    const std::vector<size_t> of_groups = sorted(groups, 0, groups.size());
    for (size_t k = size_t(how.n_group_used); k < of_groups.size(); k++) {
        for (size_t e = of_groups[k] * size; e < (of_groups[k] + 1) * size; e++)
            choice[e] = -INFINITY;
    }
    const std::vector<size_t> order = sorted(choice, 0, n);
    const size_t used = size_t(how.n_used);
    double sum = 0;
    for (size_t k = 0; k < used; k++) {
        const double w = how.gating == Gating::of_chosen ? std::exp(p[order[k]]) : p[order[k]];
        weights[order[k]] = w;
        sum += w;
    }
    for (size_t e = 0; e < n; e++) {
        if (how.normalise || how.gating == Gating::of_chosen) weights[e] /= sum;
        weights[e] *= double(how.scale);
        if (how.expert_scale) weights[e] *= double(how.expert_scale[e]);
    }
    return weights;
}

void test_route(Context& context, const Routing& how) {
    Floats score = random_floats(kRows * how.n_expert, 3);
    score[0] = score[1] = score[2] = 5;  // equal: the first ones are chosen
    const auto got = routed(context, how, score);
    for (size_t t = 0; t < size_t(kRows); t++) {
        const std::vector<double> expected =
            by_definition(how, score.data() + t * size_t(how.n_expert));
        for (size_t e = 0; e < expected.size(); e++) {
            CHECK(std::fabs(got[t][e] - expected[e]) <= 1e-6 * std::max(1.0, expected[e]));
        }
    }
}

void test_ways(Context& context) {
    // Biases that make most of what is chosen by negative, and below -1.
    const Floats bias = {-3, 0.4f, -1.5f, -0.2f, -2, 0.1f, -1, -1, 0.3f, -4, -0.7f, 0};
    const Floats each = {1, 2, 0.5f, 1, 3, 1, 1, 0.25f, 1, 1, 2, 1};
    for (const Gating gating :
         {Gating::softmax, Gating::sigmoid, Gating::of_chosen, Gating::sqrt_softplus}) {
        for (const int64_t n_used : {1, 2, 4}) {
            for (const bool normalise : {false, true}) {
                Routing how;
                how.gating = gating, how.normalise = normalise;
                how.n_expert = 12, how.n_used = n_used;
                test_route(context, how);
                how.choice_bias = bias.data(), how.scale = 2.5f;
                test_route(context, how);
                how.expert_scale = each.data();
                how.n_group = 4, how.n_group_used = 2;
                test_route(context, how);
                how.by_two = false;
                test_route(context, how);
            }
        }
    }
}

// The sparse mixer by its definition: scores that are far from the best one do not count.
void test_mixer(Context& context) {
    Routing how;
    how.n_expert = 4, how.n_used = 2, how.normalise = false, how.mixer = 0.02f;
    const Floats score = {1, 8, 7.9f, 7.85f, -3, -3.01f, -9, -3.04f};
    const auto got = routed(context, how, score);
    const auto near_best = [](std::initializer_list<double> others) {
        double sum = 1;
        for (const double below : others) sum += std::exp(-below);
        return 1 / sum;
    };
    // (8 - 7.85) / 8 is 0.019: near. Without the best, 7.9 and 7.85 are left.
    CHECK(std::fabs(got[0][1] - near_best({0.1, 0.15})) < 1e-6);
    CHECK(std::fabs(got[0][2] - near_best({0.05})) < 1e-6);
    CHECK(std::fabs(got[1][0] - near_best({0.01, 0.04})) < 1e-6);
    CHECK(std::fabs(got[1][1] - near_best({0.03})) < 1e-6);
}

// With a NaN score no choice is possible; the row must not silently go without experts.
void test_without_numbers(Context& context) {
    const float most = INFINITY;
    for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::of_chosen}) {
        for (const float bad : {NAN, -NAN, most}) {
            for (const size_t at : {0, 3}) {
                if (gating == Gating::sigmoid && bad == most) continue;  // sigmoid(infinity) is 1
                Routing how;
                how.gating = gating, how.n_expert = 4, how.n_used = 2;
                Floats score = random_floats(3 * how.n_expert, 3);
                score[4 + at] = bad;
                const auto got = routed(context, how, score);
                for (size_t t = 0; t < 3; t++) {
                    const auto none = std::count_if(got[t].begin(), got[t].end(),
                                                    [](double w) { return std::isnan(w); });
                    CHECK((t == 1) == (none > 0));
                }
            }
        }
    }
}

}  // namespace

int main() {
    for (int threads : {1, 3}) {
        Context context(threads);
        test_ways(context);
        test_mixer(context);
        test_without_numbers(context);
    }
    return check::summary("test_route");
}
