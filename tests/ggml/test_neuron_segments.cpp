// Segments of neurons: the lists of what is computed, the sums of segments, and the bytes that are
// read for them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "ggml/check.h"
#include "ggml/neuron_rows.h"
#include "ggml/neurons.h"

using namespace ggml;

namespace {

// Counts of bytes. In masked rows all neurons are proposed in segments of even number, and every
// third one in the others. Every fourth gate fires, and every seventh value is 0 after up.
void test_bytes(int64_t n, int64_t rows, int64_t cols, bool gated) {
    const auto proposed = [&](int64_t s, int64_t i) { return s % 2 == 0 || i % 3 == 0; };
    Floats first(size_t(n * cols)), up(size_t(n * cols)), x(size_t(rows * cols)), score;
    int64_t n_first = 0, n_up = 0, n_down = 0;
    for (int64_t s = 0; s < kSegments; s++) {
        const Segment segment = segment_of(n, s);
        for (int64_t i = segment.begin; i < segment.end; i++) {
            const bool fires = i % 4 == 0, sends = !gated || i % 7;
            first[size_t(i * cols)] = fires ? 1 : -1;
            up[size_t(i * cols)] = sends ? 1 : 0;
            score.push_back(proposed(s, i) ? 1 : 0);
            n_first += proposed(s, i);
            n_up += gated && proposed(s, i) && fires;
            n_down += proposed(s, i) && fires && sends;
        }
    }
    const std::unique_ptr<bool[]> masked(new bool[size_t(rows)]);
    std::fill_n(masked.get(), rows, true);
    for (int64_t t = 0; t < rows; t++) x[size_t(t * cols)] = 1;
    score.resize(size_t(rows * n));
    for (int64_t i = n; i < rows * n; i++) score[size_t(i)] = score[size_t(i - n)];
    const auto view = [&](const Floats& values) {
        return NeuronRows{DType::F32, false, reinterpret_cast<const uint8_t*>(values.data()),
                          cols * int64_t(sizeof(float))};
    };
    Neurons w;
    w.n = n;
    w.cols = cols;
    if (gated) w.gate = view(first);
    w.up = view(gated ? up : first);
    w.down = view(up);
    NeuronMask mask;
    mask.masked = masked.get();
    mask.score = score.data();
    mask.threshold = 0.5f;

    Context context(2);
    context.profile.on = true;
    const auto read = [&](const char* op) {
        for (const Profile::Entry& e : context.profile.entries) {
            if (!std::strcmp(e.op, op)) return int64_t(e.bytes) / cols / int64_t(sizeof(float));
        }
        return int64_t(-1);
    };
    Carved<NeuronScratch> scratch("scratch", rows, n, cols, 2);
    Carved<Candidates> candidates("candidates", n);
    Floats sums(size_t(kSegments * cols)), y(size_t(rows * cols));
    select(context, mask, n, *candidates);
    partial_ffn(context, w, {x.data(), 1, cols, {}}, *candidates, *scratch, sums.data(), nullptr,
                nullptr);
    CHECK(read("partial_ffn") == n_first + n_up + n_down);
    scratch->few_sums = nullptr;  // rows are read once for all
    rows_ffn(context, w, {x.data(), rows, cols, {}}, mask, *scratch, y.data(), nullptr, nullptr);
    const int64_t pieces = cols < 256 ? 1 : (rows + 127) / 128;  // a thread adds 128 tokens
    CHECK(read("rows_ffn") == n_first + n_up + pieces * n_down);
}

// The lists of neurons and where their rows are, with pieces of several segments, of one segment,
// and segments without neurons.
void test_select(int64_t n) {
    Floats score = normal(n);
    if (n > 1) score[1] = NAN;  // hides no neuron
    std::vector<uint8_t> unpredicted(size_t(n), 0);
    unpredicted[size_t(n) / 2] = 1;
    const bool masked[] = {true};
    Carved<Candidates> candidates("candidates", n);
    for (int threads : {1, 2, 3}) {
        Context context(threads);
        for (bool all : {true, false}) {
            NeuronMask mask;
            mask.masked = all ? nullptr : masked;
            mask.score = score.data();
            mask.threshold = 0.5f;
            mask.unpredicted = unpredicted.data();
            select(context, mask, n, *candidates);
            int64_t next = 0;
            bool good = true;
            for (int64_t s = 0; s < kSegments; s++) {
                const Segment segment = segment_of(n, s);
                CHECK(segment.begin == next);
                std::vector<int32_t> expected;
                for (int64_t& i = next; i < segment.end; i++) {
                    const bool found = !(score[size_t(i)] < 0.5f) || i == n / 2;
                    if (all || found) expected.push_back(int32_t(i));
                }
                const int32_t* ids = candidates->ids + segment.begin;
                good &= size_t(candidates->count[s]) == expected.size() &&
                        std::equal(expected.begin(), expected.end(), ids);
            }
            CHECK(good && next == n);
        }
    }
}

// The sum of segments [begin, begin + n), n a power of 2, by the tree.
float tree(const Floats& sums, int64_t cols, int64_t c, int64_t begin, int64_t n) {
    if (n == 1) return sums[size_t(begin * cols + c)];
    return tree(sums, cols, c, begin, n / 2) + tree(sums, cols, c, begin + n / 2, n / 2);
}

void test_merge(int64_t cols) {
    const Floats sums = normal(kSegments * cols), bias = normal(cols);
    Neurons w;
    w.cols = cols;
    w.down_bias = bias.data();
    for (int threads : {1, 3}) {
        Context context(threads);
        Floats y(size_t(cols), NAN);
        merge(context, w, sums.data(), kSegments, y.data());
        bool good = true;
        for (int64_t c = 0; c < cols; c++) {
            good &= y[size_t(c)] == tree(sums, cols, c, 0, kSegments) + bias[size_t(c)];
        }
        CHECK(good);
    }
}

}  // namespace

int main() {
    for (int64_t n : {1, 5, 255, 256, 257, 9000, 70000}) test_select(n);
    for (int64_t cols : {1, 40, 256, 1000}) test_merge(cols);
    for (bool gated : {true, false}) {
        test_bytes(5000, 5, 40, gated);
        test_bytes(300, 300, 256, gated);
    }
    return check::summary("test_neuron_segments");
}
