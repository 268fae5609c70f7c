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

    // A row that comes again is added to in order, however wide it is.
    constexpr int64_t kWide = 3000, kTimes = 40;
    const Floats wide = random_floats(kTimes * kWide, 6), factors = random_floats(kTimes, 7);
    std::vector<int32_t> again;
    for (int32_t i = 0; i < kTimes; i++) again.push_back(i % 3);
    Floats sums(3 * kWide, 1), in_order = sums;
    scatter_add(context, wide.data(), again.data(), factors.data(), kTimes, kWide, sums.data());
    for (size_t i = 0; i < kTimes; i++) {
        float* const to = &in_order[size_t(again[i]) * kWide];
        for (size_t c = 0; c < kWide; c++) to[c] += factors[i] * wide[i * kWide + c];
    }
    CHECK(sums == in_order);
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
        test_gather_and_scatter(context);
        test_flags(context);
    }
    return check::summary("test_rows");
}
