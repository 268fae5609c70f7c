// Operators that move rows: embeddings, positions, experts, flags.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ggml/check.h"
#include "ggml/ops.h"

using namespace ggml;

namespace {

using Floats = std::vector<float>;

Floats random_floats(int64_t n, uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    Floats out(static_cast<size_t>(n));
    for (float& v : out) v = normal(rng);
    return out;
}

void test_embed_rows(Context& context) {
    constexpr int64_t kRows = 9, kCols = 64;
    for (DType type : {DType::F32, DType::F16, DType::Q8_0}) {
        const Floats w = random_floats(kRows * kCols, 1);
        std::vector<uint8_t> stored(size_t(info(type).size(kRows * kCols)));
        info(type).encode(w.data(), stored.data(), kRows * kCols);
        Floats all(w.size());
        info(type).decode(stored.data(), all.data(), kRows * kCols);
        const std::vector<int32_t> ids = {6, -2, 1, 1, 5};  // with an offset of two rows
        Floats y(ids.size() * kCols);
        embed_rows(context, {type, Layout::rows, kRows, kCols, stored.data()}, ids.data(), 2,
                   int64_t(ids.size()), y.data());
        for (size_t t = 0; t < ids.size(); t++) {
            CHECK(!std::memcmp(y.data() + t * kCols, all.data() + (ids[t] + 2) * kCols, kCols * 4));
        }
    }
}

void test_rope_table(Context& context) {
    constexpr int64_t kPairs = 40;
    std::vector<double> frequency;
    for (int i = 0; i < kPairs; i++) frequency.push_back(std::pow(10000.0, -double(i) / kPairs));
    const std::vector<int32_t> position = {0, 1, 63, 64, 4095, 131071, 1000000};
    const double magnitude = 1.25;
    Floats table(position.size() * kPairs * 2, NAN);
    rope_table(context, frequency.data(), kPairs, magnitude, position.data(),
               int64_t(position.size()), table.data());
    for (size_t t = 0; t < position.size(); t++) {
        for (size_t i = 0; i < kPairs; i++) {
            const long double angle = (long double)(double(position[t]) * frequency[i]);
            const double c = double(std::cos(angle)) * magnitude;
            const double s = double(std::sin(angle)) * magnitude;
            // A double rounded to float: half a unit in the last place of 1.25.
            CHECK(std::fabs(table[(t * kPairs + i) * 2] - c) <= 6.1e-8 * magnitude);
            CHECK(std::fabs(table[(t * kPairs + i) * 2 + 1] - s) <= 6.1e-8 * magnitude);
        }
    }
}

// Experts chosen by a plain sort, their weights computed by plain sums.
void test_route(Context& context, Gating gating, int64_t n_used) {
    constexpr int64_t kRows = 37, kExperts = 6;
    Floats score = random_floats(kRows * kExperts, 3);
    score[0] = score[1] = score[2] = 5;  // equal: the first ones are chosen
    const Floats given = score;
    Floats scratch(score.size());
    std::vector<int32_t> first(kExperts + 1), rows(size_t(kRows * n_used));
    Floats expert_weights(rows.size());
    route(context, gating, score.data(), kRows, kExperts, n_used, scratch.data(),
          {first.data(), rows.data(), expert_weights.data()});
    CHECK(first[0] == 0 && first[kExperts] == kRows * n_used);
    std::vector<std::vector<double>> got(kRows, std::vector<double>(kExperts, 0.0));
    for (int64_t e = 0; e < kExperts; e++) {
        for (int32_t k = first[size_t(e)]; k < first[size_t(e) + 1]; k++) {
            CHECK(k == first[size_t(e)] || rows[size_t(k)] > rows[size_t(k) - 1]);
            got[size_t(rows[size_t(k)])][size_t(e)] = expert_weights[size_t(k)];
        }
    }
    for (int64_t t = 0; t < kRows; t++) {
        std::vector<int64_t> order(kExperts);
        for (int64_t e = 0; e < kExperts; e++) order[size_t(e)] = e;
        const float* s = given.data() + t * kExperts;
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return s[a] > s[b]; });
        const auto weight = [&](int64_t e) {
            return gating == Gating::sigmoid ? 1 / (1 + std::exp(-double(s[e])))
                                             : std::exp(double(s[e]));
        };
        double sum = 0;
        for (int64_t k = 0; k < n_used; k++) sum += weight(order[size_t(k)]);
        for (int64_t k = 0; k < kExperts; k++) {
            const int64_t e = order[size_t(k)];
            const double expected = k < n_used ? weight(e) / sum : 0;
            CHECK(std::fabs(got[size_t(t)][size_t(e)] - expected) < 1e-6);
        }
    }
}

// With a NaN score no choice is possible; the row must not silently go without experts.
void test_route_without_numbers(Context& context, Gating gating) {
    constexpr int64_t kRows = 3, kExperts = 4, kUsed = 2;
    for (const float bad : {NAN, -NAN, INFINITY}) {
        for (const int64_t at : {0, 3}) {
            if (gating == Gating::sigmoid && bad == INFINITY) continue;  // sigmoid(infinity) is 1
            Floats score = random_floats(kRows * kExperts, 3), scratch(score.size());
            score[size_t(kExperts + at)] = bad;
            int32_t first[kExperts + 1], rows[kRows * kUsed];
            float expert_weights[kRows * kUsed];
            route(context, gating, score.data(), kRows, kExperts, kUsed, scratch.data(),
                  {first, rows, expert_weights});
            CHECK(first[kExperts] == kRows * kUsed);
            int n = 0;
            for (int64_t k = 0; k < kRows * kUsed; k++) {
                CHECK((rows[k] == 1) == std::isnan(expert_weights[k]));
                n += rows[k] == 1;
            }
            CHECK(n == kUsed);
        }
    }
}

void test_gather_and_scatter(Context& context) {
    constexpr int64_t kRows = 11, kCols = 70;
    const Floats x = random_floats(kRows * kCols, 4);
    const std::vector<int32_t> rows = {1, 4, 10};
    Floats out(rows.size() * kCols);
    gather_rows(context, x.data(), rows.data(), 3, kCols, out.data());
    Floats y = random_floats(kRows * kCols, 5), expected = y;
    const Floats expert_weights = {0.5f, 0.25f, 2};
    scatter_add(context, out.data(), rows.data(), expert_weights.data(), 3, kCols, y.data());
    for (size_t i = 0; i < rows.size(); i++) {
        const size_t at = size_t(rows[i]) * kCols;
        CHECK(!std::memcmp(out.data() + i * kCols, x.data() + at, kCols * sizeof(float)));
        for (size_t c = 0; c < kCols; c++) expected[at + c] += expert_weights[i] * x[at + c];
    }
    CHECK(y == expected);
}

void test_flags(Context& context) {
    constexpr int64_t kRows = 5, kCols = 3000;
    Floats x = random_floats(kRows * kCols, 6);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = i % 2 ? 0.0f : -0.0f;
    std::vector<char> flags(x.size());
    bool* const f = reinterpret_cast<bool*>(flags.data());
    nonzero(context, x.data(), int64_t(x.size()), f);
    std::vector<uint64_t> counts(kCols, 7), expected(kCols, 7);
    count_flags(context, f, kRows, kCols, counts.data());
    for (size_t i = 0; i < x.size(); i++) {
        CHECK(bool(flags[i]) == (x[i] != 0));
        expected[i % kCols] += x[i] != 0;
    }
    CHECK(counts == expected);
}

}  // namespace

int main() {
    for (int threads : {1, 3}) {
        Context context(threads);
        test_embed_rows(context);
        test_rope_table(context);
        for (int64_t n_used : {1, 2, 6}) {
            test_route(context, Gating::softmax, n_used);
            test_route(context, Gating::sigmoid, n_used);
        }
        test_route_without_numbers(context, Gating::softmax);
        test_route_without_numbers(context, Gating::sigmoid);
        test_gather_and_scatter(context);
        test_flags(context);
    }
    return check::summary("test_rows");
}
