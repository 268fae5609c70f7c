// The router of a mixture: which experts a row computes, and what they weigh.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ggml/math.h"
#include "ggml/ops.h"
#include "ops/grain.h"

namespace ggml {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float softplus(float x) {
    return x > 20 ? x : float(log_f64(1 + exp_f64(double(x))));
}

// score becomes p, whose largest values or those with a bias choose. False if one is no number.
bool weigh_all(const Routing& how, float* score, float* choice) {
    const int64_t n = how.n_expert;
    const float top = *std::max_element(score, score + n);
    float sum = 0;
    bool numbers = true;
    for (int64_t e = 0; e < n; e++) {
        float& p = score[e];
        if (how.gating == Gating::softmax && how.mixer == 0) p = exp_f32(p - top);
        if (how.gating == Gating::sigmoid) p = sigmoid(p);
        if (how.gating == Gating::sqrt_softplus) p = std::sqrt(softplus(p));
        sum += p;
    }
    // Where the chosen weights are brought to a sum of 1, that of all does not matter unless a bias
    // is added to them.
    const bool divide =
        how.gating == Gating::softmax && how.mixer == 0 && (!how.normalise || how.choice_bias);
    for (int64_t e = 0; e < n; e++) {
        if (divide) score[e] /= sum;
        choice[e] = score[e] + (how.choice_bias ? how.choice_bias[e] : 0);
        numbers = numbers && choice[e] == choice[e] && score[e] == score[e];
    }
    return numbers;
}

// Leaves the experts of the best groups; those of the others become NaN, which nothing chooses.
void leave_groups(const Routing& how, float* choice) {
    const int64_t size = how.n_expert / how.n_group;
    const auto group_score = [&](int64_t g) {
        float best = -INFINITY, second = -INFINITY;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            second = std::max(second, std::min(best, choice[e]));
            best = std::max(best, choice[e]);
        }
        return how.by_two && size > 1 ? best + second : best;
    };
    // A group stays if fewer than n_group_used others come before it.
    const auto before = [&](int64_t a, int64_t b) {
        const float of_a = group_score(a), of_b = group_score(b);
        return of_a > of_b || (of_a == of_b && a < b);
    };
    uint64_t out = 0;
    for (int64_t g = 0; g < how.n_group; g++) {
        int64_t better = 0;
        for (int64_t other = 0; other < how.n_group; other++) better += before(other, g);
        if (better >= how.n_group_used) out |= uint64_t(1) << g;
    }
    for (int64_t g = 0; g < how.n_group; g++) {
        if (out >> g & 1) std::fill_n(choice + g * size, size, kNan);
    }
}

// The expert with the largest value that is a number; the first of equal ones. -1: none is left.
int64_t largest(const float* choice, int64_t n) {
    int64_t best = -1;
    for (int64_t e = 0; e < n; e++) {
        if (choice[e] == choice[e] && (best < 0 || choice[e] > choice[best])) best = e;
    }
    return best;
}

// What expert `best` weighs among those of `choice`, if the others count only near it.
float mixer_weight(const Routing& how, const float* choice, int64_t best) {
    const float top = choice[best];
    float sum = 0;
    for (int64_t e = 0; e < how.n_expert; e++) {
        const float r = choice[e], size = std::max(std::fabs(r), top);
        if (r == r && (top - r) / size <= how.mixer) sum += exp_f32(r - top);
    }
    return 1 / sum;
}

// score, choice: [n_expert]; chosen, weights: [n_used].
void route_row(const Routing& how, float* score, float* choice, int32_t* chosen, float* weights) {
    const int64_t n = how.n_used;
    const auto no_choice = [&] {
        for (int64_t k = 0; k < n; k++) chosen[k] = int32_t(k);
        std::fill_n(weights, n, kNan);
    };
    if (!weigh_all(how, score, choice)) return no_choice();
    if (how.n_group > 1) leave_groups(how, choice);
    float sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const int64_t best = largest(choice, how.n_expert);
        if (best < 0) return no_choice();
        chosen[k] = int32_t(best);
        weights[k] = how.mixer > 0 ? mixer_weight(how, choice, best) : score[best];
        if (how.gating == Gating::of_chosen) weights[k] = exp_f32(score[best] - score[chosen[0]]);
        sum += weights[k];
        choice[best] = kNan;
    }
    const bool to_one = how.mixer == 0 && (how.normalise || how.gating == Gating::of_chosen);
    for (int64_t k = 0; k < n; k++) {
        if (to_one) weights[k] /= sum;
        if (how.scale != 1) weights[k] *= how.scale;
        if (how.expert_scale) weights[k] *= how.expert_scale[chosen[k]];
    }
}

}  // namespace

void choose_experts(const Routing& routing, float* score, const RouteScratch& scratch) {
    route_row(routing, score, scratch.choice, scratch.chosen, scratch.weights);
}

RouteScratch::RouteScratch(Carver& carver, int64_t max_rows, int64_t n_expert, int64_t n_used) {
    carver.take(choice, {max_rows, n_expert});
    carver.take(chosen, {max_rows, n_used});
    carver.take(weights, {max_rows, n_used});
}

void route(Context& context, const Routing& routing, float* score, int64_t n,
           const RouteScratch& scratch, const ExpertRows& out) {
    const OpTimer timer(context.profile, "route");
    const int64_t n_expert = routing.n_expert, n_used = routing.n_used;
    context.threads.run(n, cpu::row_grain(n_expert * n_used), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            route_row(routing, score + t * n_expert, scratch.choice + t * n_expert,
                      scratch.chosen + t * n_used, scratch.weights + t * n_used);
        }
    });
    // Counted, and then placed row by row: the rows of an expert ascend.
    std::fill_n(out.first, n_expert + 1, 0);
    for (int64_t i = 0; i < n * n_used; i++) out.first[scratch.chosen[i] + 1]++;
    for (int64_t e = 0; e < n_expert; e++) out.first[e + 1] += out.first[e];
    for (int64_t i = 0; i < n * n_used; i++) {
        const int32_t at = out.first[scratch.chosen[i]]++;
        out.rows[at] = int32_t(i / n_used);
        out.expert_weights[at] = scratch.weights[i];
    }
    for (int64_t e = n_expert; e > 0; e--) out.first[e] = out.first[e - 1];
    out.first[0] = 0;
}

}  // namespace ggml
