// Operators of several residual streams beside each other, against formulas in double precision.
#include "ggml/streams.h"
#include "operators.h"

namespace {

// Rows of which no run of columns has a round number.
constexpr int64_t kRows = 5, kStreams = 3, kCols = 300, kWidth = kStreams * kCols;

Floats part(const Floats& all, int64_t first, int64_t n, int64_t width) {
    return {all.begin() + first * width, all.begin() + (first + n) * width};
}

double sigmoid_of(double x) {
    return 1 / (1 + std::exp(-x));
}

void test_repeat() {
    const Floats row = random_floats(kRows * kCols);
    const Floats out = steady(
        [&](Context& context, int64_t first, int64_t n) {
            Floats x(size_t(n * kWidth));
            repeat_in_streams(context, {n, kStreams, kCols}, part(row, first, n, kCols).data(),
                              x.data());
            return x;
        },
        kRows);
    for (int64_t i = 0; i < kRows * kStreams; i++) {
        CHECK(same(part(out, i, 1, kCols), part(row, i / kStreams, 1, kCols)));
    }
}

void test_mix() {
    const Floats x = random_floats(kRows * kWidth), gate = random_floats(kRows * kWidth);
    const Floats out = steady(
        [&](Context& context, int64_t first, int64_t n) {
            Floats from = part(x, first, n, kWidth), by = part(gate, first, n, kWidth);
            Floats y(size_t(n * kCols));
            mix_streams(context, {n, kStreams, kCols}, from.data(), by.data(), y.data());
            return y;
        },
        kRows);
    Doubles expected, size;
    for (int64_t i = 0; i < kRows * kCols; i++) {
        double sum = 0, all = 0;
        for (int64_t s = 0; s < kStreams; s++) {
            const size_t at = size_t(i / kCols * kWidth + s * kCols + i % kCols);
            const double value = sigmoid_of(gate[at]) * x[at] / kStreams;
            sum += value;
            all += std::fabs(value);
        }
        expected.push_back(sum);
        size.push_back(all);
    }
    CHECK(close(out, expected, size));
}

void test_add() {
    const Floats x = random_floats(kRows * kWidth), score = random_floats(kRows * kStreams, 3),
                 y = random_floats(kRows * kCols);
    const Floats out = steady(
        [&](Context& context, int64_t first, int64_t n) {
            Floats to = part(x, first, n, kWidth);
            add_to_streams(context, {n, kStreams, kCols}, to.data(),
                           part(score, first, n, kStreams).data(), part(y, first, n, kCols).data());
            return to;
        },
        kRows);
    Doubles expected, size;
    for (int64_t i = 0; i < kRows * kWidth; i++) {
        const int64_t t = i / kWidth, stream = i / kCols;
        const double added = 2 * sigmoid_of(score[size_t(stream)] / double(kStreams)) *
                             y[size_t(t * kCols + i % kCols)];
        expected.push_back(x[size_t(i)] + added);
        size.push_back(std::fabs(x[size_t(i)]) + std::fabs(added));
    }
    CHECK(close(out, expected, size));
}

// Keys and queries that are unlike, not related at all, alike, and tiny.
void test_gate() {
    Floats key = random_floats(kRows * kWidth), query = random_floats(kRows * kWidth);
    const Floats value = random_floats(kRows * kCols);
    for (int64_t i = 0; i < kWidth; i++) {
        query[size_t(i)] = -key[size_t(i)];
        query[size_t(kWidth + i)] = key[size_t(kWidth + i)];
        query[size_t(2 * kWidth + i)] = 1e-9f * key[size_t(2 * kWidth + i)];
        query[size_t(3 * kWidth + i)] = 0;
    }
    const Floats out = steady(
        [&](Context& context, int64_t first, int64_t n) {
            Floats y(size_t(n * kWidth));
            gate_by_likeness(context, {n, kStreams, kCols}, part(key, first, n, kWidth).data(),
                             part(query, first, n, kWidth).data(),
                             part(value, first, n, kCols).data(), y.data());
            return y;
        },
        kRows);
    Doubles expected, size;
    for (int64_t i = 0; i < kRows * kWidth; i++) {
        double sum = 0;
        for (int64_t c = 0; c < kCols; c++) {
            const size_t at = size_t(i / kCols * kCols + c);
            sum += double(key[at]) * query[at];
        }
        sum /= std::sqrt(double(kCols));
        const double root = std::sqrt(std::max(std::fabs(sum), 1e-6));
        const double gate = sigmoid_of(sum > 0 ? root : sum < 0 ? -root : 0);
        expected.push_back(gate * value[size_t(i / kWidth * kCols + i % kCols)]);
        size.push_back(std::fabs(expected.back()));
    }
    CHECK(close(out, expected, size, 1e-5));
    key[0] = NAN;
    Floats y(static_cast<size_t>(kWidth));
    gate_by_likeness(*contexts[0], {1, kStreams, kCols}, key.data(), query.data(), value.data(),
                     y.data());
    CHECK(std::isnan(y[0]) && std::isnan(y[kCols - 1]) && std::isfinite(y[kCols]));
}

// Of one norm the weights of several.
void test_norms() {
    const Floats x = random_floats(kRows * kWidth), weight = random_floats(kWidth);
    const Floats out = steady(
        [&](Context& context, int64_t first, int64_t n) {
            Floats y(size_t(n * kWidth));
            rms_norm(context, part(x, first, n, kWidth).data(), weight.data(), 1e-5f, n * kStreams,
                     kCols, y.data(), 0, kStreams);
            return y;
        },
        kRows);
    for (int64_t i = 0; i < kRows * kStreams; i++) {
        Floats y(kCols);
        rms_norm(*contexts[0], x.data() + i * kCols, weight.data() + i % kStreams * kCols, 1e-5f, 1,
                 kCols, y.data());
        CHECK(same(y, part(out, i, 1, kCols)));
    }
}

void test_all(const char*) {
    test_repeat();
    test_mix();
    test_add();
    test_gate();
    test_norms();
}

}  // namespace

int main() {
    for_each_isa(test_all);
    return check::summary("test_streams");
}
