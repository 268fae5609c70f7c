// The neuron-aware operators, compared with a naive FFN in double precision. Bits must not depend
// on the number of threads or on other tokens, and masks must really mask.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "circle.h"
#include "ggml/check.h"
#include "ggml/neuron_rows.h"
#include "ggml/neurons.h"
#include "kernels/kernels.h"

using namespace ggml;

namespace {

struct Case {
    DType type;
    int64_t n, cols;
    Activation act;
    bool gated, biased;
    float threshold;
    std::optional<DType> gate = {};  // if it has another format
};

double activated(const Case& c, double v) {
    switch (c.act) {
        case Activation::relu:
        case Activation::drelu:
            return v > c.threshold ? v : 0;
        case Activation::relu2:
            return v > c.threshold ? v * v : 0;
        case Activation::silu:
            v = v / (1 + std::exp(-v));
            break;
        case Activation::gelu:
            // In float the tail of the activation ends: beyond this point the result is 0.
            v = 0.5 * v * (1 + double(std::erf(float(v / std::sqrt(2.0)))));
            break;
        case Activation::gelu_tanh:
            v *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
            break;
        case Activation::swiglu_oai:
            v = std::min(v, 7.0);
            v = v / (1 + std::exp(-1.702 * v));
            break;
        case Activation::xielu:
            return NAN;  // neurons have none
    }
    return std::fabs(v) < c.threshold ? 0 : v;
}

// Audits of all segments, compared with the neurons that fire without a mask.
void test_audit(const Neurons& w, const Floats& x, const NeuronMask& mask) {
    const int64_t rows = int64_t(x.size()) / w.cols;
    Context context(2);
    Carved<InputBuffer> buffer("input", rows, w.cols);
    const bool q8 = w.gate.wants_q8() || w.up.wants_q8();
    const Input input = buffer->prepare(context, x.data(), rows, w.cols, q8);
    Carved<NeuronScratch> scratch("scratch", rows, w.n, w.cols, 2);
    Floats y(x.size());
    const std::unique_ptr<bool[]> fired(new bool[size_t(rows * w.n)]);
    rows_ffn(context, w, input, {}, *scratch, y.data(), nullptr, fired.get());
    for (int64_t s = 0; s < kSegments; s++) {
        const int64_t t = s % rows;
        const Segment segment = segment_of(w.n, s);
        int64_t n = 0, found = 0;
        for (int64_t i = segment.begin; i < segment.end; i++) {
            n += fired[size_t(t * w.n + i)];
            found += fired[size_t(t * w.n + i)] && mask.finds(t, w.n, i);
        }
        const AuditCounts counts = audit_segment(context, w, input, t, mask, s, *scratch);
        CHECK(counts.fired == n && counts.found == found);
    }
}

// Rows in a shuffled order; those of neurons that no token needs are nowhere.
struct Scattered {
    Scattered(const NeuronRows& rows, const Neurons& w, const NeuronMask& mask, int64_t n_tokens)
        : view(rows) {
        const auto row = size_t(info(rows.type).size(w.cols));
        for (int64_t i = 0; i < w.n; i++) rows_at.push_back(int32_t(i));
        for (size_t i = rows_at.size(); i > 1; i--) std::swap(rows_at[i - 1], rows_at[i * 7 / 11]);
        data.resize(size_t(w.n) * row);
        for (int64_t i = 0; i < w.n; i++) {
            bool needed = false;
            for (int64_t t = 0; t < n_tokens; t++) {
                needed = needed || !mask.masks(t) || mask.finds(t, w.n, i);
            }
            int32_t& at = rows_at[size_t(i)];
            uint8_t* const to = &data[size_t(at) * row];
            if (!needed) {
                std::memset(to, 0xff, row);  // NaN
                at = -1;
            } else {
                std::memcpy(to, rows.data + i * rows.stride, row);
            }
        }
        view.data = data.data();
        view.stride = int64_t(row);
        view.row_at = rows_at.data();
    }
    NeuronRows view;
    std::vector<uint8_t> data;
    std::vector<int32_t> rows_at;
};

// The operators in steps, with rows in a shuffled order, against `expected` [rows, cols].
void test_steps(Neurons w, const Floats& x, const NeuronMask& mask, const Floats& expected,
                const NeuronCounts& counts, const bool* fired) {
    const int64_t rows = int64_t(x.size()) / w.cols;
    std::optional<Scattered> gate;
    if (w.gate) gate.emplace(w.gate, w, mask, rows);
    const Scattered up(w.up, w, mask, rows), down(w.down, w, mask, rows);
    if (gate) w.gate = gate->view;
    w.up = up.view;
    w.down = down.view;
    Context context(2);
    Carved<InputBuffer> buffer("input", rows, w.cols);
    const bool q8 = info(w.up.type).is_quantised() && w.cols % kQ == 0;
    Carved<NeuronScratch> scratch("scratch", rows, w.n, w.cols, 2, true);
    {
        const Input input = buffer->prepare(context, x.data(), rows, w.cols, q8);
        Floats partial(size_t(kPartials * rows * w.cols), NAN), y(x.size());
        std::vector<int32_t> fires(size_t(w.n), -1);
        const std::unique_ptr<bool[]> flags(new bool[size_t(rows * w.n)]);
        NeuronCounts same;
        for (int64_t s = 0; s < kSegments; s += kTogether) {
            rows_ffn_segments(context, w, input, mask, *scratch, s, partial.data(), y.data(), &same,
                              flags.get(), fires.data());
        }
        CHECK(y == expected && !std::memcmp(&same, &counts, sizeof(counts)));
        CHECK(!std::memcmp(flags.get(), fired, size_t(rows * w.n)));
        for (int64_t i = 0; i < w.n; i++) {
            int32_t n = 0;
            for (int64_t t = 0; t < rows; t++) n += fired[t * w.n + i];
            CHECK(fires[size_t(i)] == n);
        }
    }
    Carved<Candidates> candidates("candidates", w.n);
    for (int64_t t = 0; t < rows; t++) {
        const Input input = buffer->prepare(context, x.data() + t * w.cols, 1, w.cols, q8);
        NeuronMask own = mask;
        own.masked += t;
        own.score += t * w.n;
        select(context, own, w.n, *candidates);
        std::vector<int32_t> ids;
        for (int64_t s = 0; s < kSegments; s++) {
            const int32_t* const first = candidates->ids + segment_of(w.n, s).begin;
            ids.insert(ids.end(), first, first + candidates->count[s]);
        }
        std::reverse(ids.begin(), ids.end());
        Floats h(size_t(w.n), NAN), sums(size_t(kSegments * w.cols), NAN), y(size_t(w.cols));
        prepare_steps(context, w, input, *scratch);
        for (size_t done = 0; done < ids.size(); done += 37) {  // as they arrive
            const auto n = int64_t(std::min<size_t>(37, ids.size() - done));
            first_values(context, w, input, *scratch, &ids[done], n, h.data());
            if (w.gate) gated_values(context, w, input, *scratch, &ids[done], n, h.data());
        }
        for (int64_t s : {0, 20}) {
            sum_values(context, w, input, *scratch, *candidates, h.data(), s, s ? kSegments : 20,
                       sums.data());
        }
        merge(context, w, sums.data(), kSegments, y.data());
        CHECK(std::equal(y.begin(), y.end(), expected.begin() + t * w.cols));
    }
}

// Several FFNs of a row at once, beside each of them alone.
void test_whole(const Neurons& w, const Floats& x) {
    Neurons experts[kMostWhole];
    for (int64_t e = 0; e < kMostWhole; e++) {
        experts[e] = w;
        experts[e].threshold = w.threshold + 0.25f * float(e);
        if (e % 2) experts[e].down_bias = nullptr;
    }
    for (int threads : {1, 2, 3}) {
        Context context(threads);
        Carved<InputBuffer> buffer("input", 1, w.cols);
        const Input input = buffer->prepare(context, x.data(), 1, w.cols, w.up.wants_q8());
        Carved<NeuronScratch> scratch("scratch", 1, w.n, w.cols, threads);
        Carved<Candidates> candidates("candidates", w.n);
        select(context, {}, w.n, *candidates);
        for (int64_t n : {1, 2, 5, 8}) {
            Floats sums(size_t(kSegments * w.cols), NAN), y(size_t(n * w.cols), NAN);
            Floats one(size_t(w.cols));
            NeuronCounts counts, alone;
            whole_ffns(context, experts, n, input, *scratch, sums.data(), y.data(), &counts);
            for (int64_t e = 0; e < n; e++) {
                const int64_t n_sums = partial_ffn(context, experts[e], input, *candidates,
                                                   *scratch, sums.data(), &alone, nullptr);
                merge(context, experts[e], sums.data(), n_sums, one.data());
                CHECK(std::equal(one.begin(), one.end(), y.begin() + e * w.cols));
            }
            CHECK(!std::memcmp(&counts, &alone, sizeof(counts)));
        }
    }
}

void test(const Case& c) {
    const int64_t rows = 5;
    const Rows& gate = rows_made_once(0, c.gate.value_or(c.type), c.n, c.cols);
    const Rows& up = rows_made_once(1, c.type, c.n, c.cols);
    const Rows& down = rows_made_once(2, c.type, c.n, c.cols);
    const Floats gate_bias = normal(c.n), up_bias = normal(c.n), down_bias = normal(c.cols);
    const Floats x = normal(rows * c.cols, 1 / std::sqrt(float(c.cols)));
    const Floats score = normal(rows * c.n);
    std::vector<uint8_t> unpredicted(size_t(c.n), 0);
    unpredicted[0] = unpredicted[size_t(c.n) - 1] = 1;
    Neurons w;
    w.n = c.n;
    w.cols = c.cols;
    w.up = up.view;
    w.down = down.view;
    w.act = c.act;
    w.threshold = c.threshold;
    if (c.gated) w.gate = gate.view;
    if (c.biased) {
        w.gate_bias = gate_bias.data();
        w.up_bias = up_bias.data();
        w.down_bias = down_bias.data();
    }
    const bool masked[5] = {false, true, false, true, true};
    const bool quantised = info(c.type).is_quantised();

    using Flags = std::unique_ptr<bool[]>;
    NeuronMask mask;
    mask.masked = masked;
    mask.score = score.data();
    mask.threshold = 0.5f;
    mask.unpredicted = unpredicted.data();
    // `alone`: with the operators for one row. turns: with that for a few.
    bool turns = false;
    const auto run = [&](int threads, int64_t first, int64_t count, NeuronCounts* counts,
                         bool* fired, bool alone) {
        Context context(threads);
        Carved<InputBuffer> buffer("input", count, c.cols);
        const bool q8 = quantised && c.cols % kQ == 0;
        const Input input = buffer->prepare(context, x.data() + first * c.cols, count, c.cols, q8);
        Carved<NeuronScratch> scratch("scratch", count, c.n, c.cols, threads);
        if (!turns) scratch->few_sums = nullptr;  // rows_ffn would take turns, too
        NeuronMask own = mask;
        own.masked += first;
        own.score += first * c.n;
        Floats y(size_t(count * c.cols));
        if (alone) {
            Carved<Candidates> candidates("candidates", c.n);
            Floats sums(size_t(kSegmentPairs * c.cols), NAN);
            select(context, own, c.n, *candidates);
            const int64_t n_sums =
                partial_ffn(context, w, input, *candidates, *scratch, sums.data(), counts, fired);
            merge(context, w, sums.data(), n_sums, y.data());
        } else if (turns) {
            few_rows_ffn(context, w, input, own, *scratch, y.data(), counts, fired);
        } else {
            rows_ffn(context, w, input, own, *scratch, y.data(), counts, fired);
        }
        return y;
    };
    NeuronCounts counts;
    const Flags fired(new bool[size_t(rows * c.n)]), fired_alone(new bool[size_t(c.n)]);
    const Floats y = run(1, 0, rows, &counts, fired.get(), false);
    for (int threads : {2, 3}) CHECK(y == run(threads, 0, rows, nullptr, nullptr, false));
    turns = true;
    NeuronCounts by_turns;
    const Flags fired_by_turns(new bool[size_t(rows * c.n)]);
    for (int threads : {1, 2, 3}) {
        by_turns = {};
        CHECK(y == run(threads, 0, rows, &by_turns, fired_by_turns.get(), false));
        CHECK(std::equal(fired.get(), fired.get() + rows * c.n, fired_by_turns.get()));
        CHECK(std::memcmp(&by_turns, &counts, sizeof(counts)) == 0);
    }
    turns = false;
    NeuronCounts one_by_one;
    for (int64_t t = 0; t < rows; t++) {
        for (bool alone : {true, false}) {
            const int threads = int(t) % 3 + 1;
            const Floats row =
                run(threads, t, 1, alone ? &one_by_one : nullptr, fired_alone.get(), alone);
            CHECK(!std::memcmp(row.data(), y.data() + t * c.cols, size_t(c.cols) * sizeof(float)));
            CHECK(!std::memcmp(fired_alone.get(), fired.get() + t * c.n, size_t(c.n)));
        }
    }
    CHECK(!std::memcmp(&counts, &one_by_one, sizeof(counts)));
    if (c.n % kStrip == 0 && can_tile(c.type, c.cols)) {  // the same bits in tiles
        using Tiles = NeuronRows::Tiles;
        const Tiled tiled_gate(gate, c.cols, Tiles::strips), tiled_up(up, c.cols, Tiles::strips),
            tiled_down(down, c.cols, Tiles::blocks);
        const Neurons as_rows = w;
        if (c.gated) w.gate = tiled_gate.view;
        w.up = tiled_up.view;
        // Down rows of neurons that are skipped stay as they are.
        for (const NeuronRows& of : {tiled_down.view, as_rows.down}) {
            w.down = of;
            NeuronCounts of_tiles;
            CHECK(y == run(2, 0, rows, &of_tiles, fired_by_turns.get(), false));
            CHECK(!std::memcmp(&of_tiles, &counts, sizeof(counts)));
            CHECK(std::equal(fired.get(), fired.get() + rows * c.n, fired_by_turns.get()));
            turns = true;
            CHECK(y == run(3, 0, rows, nullptr, nullptr, false));
            turns = false;
            for (int64_t t = 0; t < rows; t++) {
                of_tiles = {};
                const Floats row = run(1 + int(t) % 3, t, 1, &of_tiles, fired_alone.get(), true);
                CHECK(!std::memcmp(row.data(), y.data() + t * c.cols,
                                   size_t(c.cols) * sizeof(float)));
                CHECK(!std::memcmp(fired_alone.get(), fired.get() + t * c.n, size_t(c.n)));
                CHECK(of_tiles.fired ==
                      std::count(fired_alone.get(), fired_alone.get() + c.n, true));
            }
            test_audit(w, x, mask);
            CHECK(can_be_whole(w) == (!c.gated && w.down.tiles == Tiles::none));
            if (can_be_whole(w)) test_whole(w, x);
        }
        w = as_rows;
    }
    test_audit(w, x, mask);
    test_steps(w, x, mask, y, counts, fired.get());

    int64_t proposed = 0, different = 0;
    double difference = 0, size = 0;
    for (int64_t t = 0; t < rows; t++) {
        std::vector<double> expected(size_t(c.cols), 0), magnitude(size_t(c.cols), 0);
        for (int64_t n = 0; n < c.n; n++) {
            const bool noted = fired[size_t(t * c.n + n)];
            if (masked[t] && !(score[size_t(t * c.n + n)] >= 0.5f) && !unpredicted[size_t(n)]) {
                different += noted;
                continue;
            }
            proposed++;
            const auto product = [&](const Rows& r) {
                double sum = 0;
                for (int64_t i = 0; i < c.cols; i++) {
                    sum += double(r.values[size_t(n * c.cols + i)]) * x[size_t(t * c.cols + i)];
                }
                return sum;
            };
            const double u = product(up) + (c.biased ? up_bias[size_t(n)] : 0);
            double h = activated(c, u);
            if (c.gated) {
                const double g =
                    activated(c, product(gate) + (c.biased ? gate_bias[size_t(n)] : 0));
                const double clamped = std::clamp(u, -7.0, 7.0) + 1;
                h = g * (c.act == Activation::drelu        ? activated(c, u)
                         : c.act == Activation::swiglu_oai ? clamped
                                                           : u);
            }
            different += noted != (h != 0);
            for (int64_t i = 0; i < c.cols; i++) {
                expected[size_t(i)] += h * down.values[size_t(n * c.cols + i)];
            }
        }
        for (int64_t i = 0; i < c.cols; i++) {
            const double e = expected[size_t(i)] + (c.biased ? down_bias[size_t(i)] : 0);
            difference += std::pow(e - y[size_t(t * c.cols + i)], 2);
            size += e * e;
        }
    }
    CHECK(counts.rows == rows && counts.proposed == proposed);
    CHECK(counts.fired == std::count(fired.get(), fired.get() + rows * c.n, true));
    // 8-bit activations have errors of half a step of 1/127 of the largest of 32 values, in gate
    // and up, and a value near the threshold may cross it. Other formats differ only by rounding.
    CHECK(different <= (gate.view.wants_q8() ? rows * c.n / 50 : 0));
    const double limit = gate.view.wants_q8() ? 0.03 : 1e-5;
    // Of few neurons none may fire; then both are 0.
    const bool close = std::sqrt(difference) <= limit * std::sqrt(size);
    CHECK(close);
    if (!close) {
        std::printf("%s n %d cols %d act %d gated %d: %g\n", info(c.type).name, int(c.n),
                    int(c.cols), int(c.act), c.gated, std::sqrt(difference / size));
    }

    // Tokens that need the same neurons: kernels for many of these, with others in between.
    const bool all_masked[5] = {true, true, true, true, true};
    mask.masked = all_masked;
    Floats same = score;
    for (int64_t t = 1; t < rows; t++) std::copy_n(same.begin(), c.n, same.begin() + t * c.n);
    mask.score = same.data();
    NeuronCounts of_masked;
    const Floats z = run(2, 0, rows, &of_masked, fired.get(), false);
    test_steps(w, x, mask, z, of_masked, fired.get());
}

// Rows that have a bias of their own: each gets the bits that it gets alone with that bias, and the
// values h of its neurons, 0 for those that do not fire.
void test_own_bias(DType type, int64_t n, int64_t cols, bool gated) {
    const int64_t rows = 5;
    Rows gate(type, n, cols, 1), up(type, n, cols, 1), down(type, n, cols, 1);
    const Floats gate_bias = normal(rows * n), up_bias = normal(rows * n);
    const Floats x = normal(rows * cols, 1 / std::sqrt(float(cols)));
    Neurons w;
    w.n = n;
    w.cols = cols;
    w.up = up.view;
    w.down = down.view;
    if (gated) w.gate = gate.view;
    w.gate_bias = gate_bias.data();
    w.up_bias = up_bias.data();
    w.bias_stride = n;
    Context context(2);
    Carved<InputBuffer> buffer("input", rows, cols);
    Carved<NeuronScratch> scratch("scratch", rows, n, cols, 2);
    Carved<Candidates> candidates("candidates", n);
    const bool q8 = w.up.wants_q8();
    const std::unique_ptr<bool[]> fired(new bool[size_t(rows * n)]);
    float* const few_sums = scratch->few_sums;
    for (bool turns : {false, true}) {
        scratch->few_sums = turns ? few_sums : nullptr;
        Floats y(size_t(rows * cols)), h(size_t(rows * n), NAN);
        scratch->values = h.data();
        const Input all = buffer->prepare(context, x.data(), rows, cols, q8);
        rows_ffn(context, w, all, {}, *scratch, y.data(), nullptr, fired.get());
        for (int64_t t = 0; t < rows; t++) {
            Neurons own = w;
            own.bias_stride = 0;
            own.gate_bias += t * n;
            own.up_bias += t * n;
            Floats sums(size_t(kSegmentPairs * cols)), one(size_t(cols), NAN),
                values(size_t(n), NAN);
            scratch->values = values.data();
            const Input row = buffer->prepare(context, x.data() + t * cols, 1, cols, q8);
            select(context, {}, n, *candidates);
            const int64_t n_sums = partial_ffn(context, own, row, *candidates, *scratch,
                                               sums.data(), nullptr, nullptr);
            merge(context, own, sums.data(), n_sums, one.data());
            CHECK(std::equal(one.begin(), one.end(), y.begin() + t * cols));
            CHECK(std::equal(values.begin(), values.end(), h.begin() + t * n));
            for (int64_t i = 0; i < n; i++) {
                CHECK((values[size_t(i)] != 0) == fired[size_t(t * n + i)]);
            }
        }
    }
}

// Makes what a row holds NaN: a value, or the scale of its first block.
void damage(Rows& rows, int64_t row, int64_t cols) {
    uint8_t* const stored = rows.packed.data() + row * rows.view.stride;
    std::vector<uint8_t> plain(stored, stored + rows.view.stride);
    if (rows.view.folded) unfold_row(rows.view.type, stored, cols, plain.data());
    const float value = NAN;
    const uint16_t scale = 0x7e00;
    if (rows.view.type == DType::F32) {
        std::memcpy(plain.data(), &value, sizeof(value));
    } else {
        std::memcpy(plain.data(), &scale, sizeof(scale));
    }
    if (rows.view.folded) {
        fold_row(rows.view.type, plain.data(), cols, stored);
    } else {
        std::copy(plain.begin(), plain.end(), stored);
    }
}

// One damaged row of gate or up makes every output NaN: a neuron that cannot be computed is not one
// that does not fire. By every way to compute it.
void test_damage(DType type, int64_t cols, Activation act, bool gated, bool in_gate) {
    const int64_t rows = 3, n = 97, at = 41;
    Rows gate(type, n, cols, 1), up(type, n, cols, 1), down(type, n, cols, 1);
    damage(in_gate ? gate : up, at, cols);
    const Floats x = normal(rows * cols, 1 / std::sqrt(float(cols)));
    Floats bias(size_t(n), 0);
    bias[at] = 20;  // the neuron fires, as far as its gate is a number
    Neurons w;
    w.n = n;
    w.cols = cols;
    w.up = up.view;
    w.down = down.view;
    if (gated) w.gate = gate.view;
    w.gate_bias = w.up_bias = bias.data();
    w.act = act;
    Context context(2);
    Carved<InputBuffer> buffer("input", rows, cols);
    Carved<NeuronScratch> scratch("scratch", rows, n, cols, 2);
    Carved<Candidates> candidates("candidates", n);
    const auto all_nan = [](const Floats& y) {
        return std::all_of(y.begin(), y.end(), [](float v) { return std::isnan(v); });
    };
    for (bool turns : {true, false}) {
        if (!turns) scratch->few_sums = nullptr;
        const Input input = buffer->prepare(context, x.data(), rows, cols, w.up.wants_q8());
        Floats y(size_t(rows * cols), 0);
        rows_ffn(context, w, input, {}, *scratch, y.data(), nullptr, nullptr);
        CHECK(all_nan(y));
    }
    const Input one = buffer->prepare(context, x.data(), 1, cols, w.up.wants_q8());
    select(context, {}, n, *candidates);
    Floats sums(size_t(kSegments * cols), 0), y(size_t(cols), 0), steps(size_t(cols), 0);
    Floats h(size_t(n), 0);
    const int64_t n_sums =
        partial_ffn(context, w, one, *candidates, *scratch, sums.data(), nullptr, nullptr);
    merge(context, w, sums.data(), n_sums, y.data());
    CHECK(all_nan(y));
    prepare_steps(context, w, one, *scratch);
    first_values(context, w, one, *scratch, candidates->all, n, h.data());
    if (w.gate) gated_values(context, w, one, *scratch, candidates->all, n, h.data());
    sum_values(context, w, one, *scratch, *candidates, h.data(), 0, kSegments, sums.data());
    merge(context, w, sums.data(), kSegments, steps.data());
    CHECK(all_nan(steps));
    for (bool is_gated : {true, false}) {  // dense files
        Floats g = {NAN, 1, NAN}, u = {1, NAN, NAN};
        if (is_gated) {
            gated_activation(context, act, g.data(), u.data(), 3);
        } else {
            activation(context, act, g.data(), 3);
        }
        CHECK(std::isnan(g[0]) && std::isnan(g[2]) && std::isnan(g[1]) == is_gated);
    }
}

}  // namespace

int main() {
    int n_isas = 0;
    const char* const* isas = cpu::isa_names(&n_isas);
    for (bool gated : {true, false}) {
        test_own_bias(DType::F32, 300, 40, gated);
        test_own_bias(DType::Q4_0, 300, 256, gated);
    }
    const DType types[] = {DType::F32,     DType::F16,   DType::BF16,  DType::Q4_0,   DType::Q4_1,
                           DType::Q5_0,    DType::Q5_1,  DType::Q8_0,  DType::Q2_K,   DType::Q3_K,
                           DType::Q4_K,    DType::Q5_K,  DType::Q6_K,  DType::IQ4_NL, DType::IQ4_XS,
                           DType::IQ2_XXS, DType::IQ3_S, DType::IQ1_M, DType::TQ1_0,  DType::TQ2_0,
                           DType::MXFP4,   DType::NVFP4};
    std::vector<const char*> here;  // best first
    std::copy_if(isas, isas + n_isas, std::back_inserter(here), cpu::kernels_for);
    for (size_t i = 0; i < here.size(); i++) {
        check::set_variable("GGML_ISA", here[i]);
        for (DType type : types) {
            // In the quick circle: each format with the best kernels, and with others in turn.
            const bool its_turn = i == 0 || size_t(type) % (here.size() - 1) == i - 1;
            if (!full_circle() && !its_turn) continue;
            const int64_t block = info(type).block;
            test({type, 200, block > 32 ? 2048 : 256, Activation::relu, true, false, 0});
            test({type, 97, block > 1 ? block : 40, Activation::relu, true, true,
                  0});  // too short to fold
            // Nothing is 0, or little.
            if (block == kQ) test({type, 97, 352, Activation::silu, true, false, 0});
            if (block == kQ) test({type, 200, 352, Activation::silu, true, true, 0});
            if (block == kQ) test({type, 2304, 96, Activation::gelu, false, false, 0});
            if (block == kQ) test({type, 2304, 96, Activation::relu, true, false, 0});
            if (block == kQ) test({type, 97, 256, Activation::gelu, true, false, 0});
            if (block == 2 * kQ) test({type, 97, 704, Activation::silu, true, true, 0});
            if (block == 2 * kQ) test({type, 2304, 192, Activation::gelu, false, false, 0});
            if (block == kQK) test({type, 97, 1280, Activation::relu, true, false, 0, DType::Q4_0});
        }
        for (Activation act :
             {Activation::relu, Activation::drelu, Activation::relu2, Activation::silu,
              Activation::gelu, Activation::gelu_tanh, Activation::swiglu_oai}) {
            for (DType type : {DType::F32, DType::Q8_0, DType::Q4_0}) {
                test_damage(type, type == DType::F32 ? 40 : 256, act, true, true);
                test_damage(type, type == DType::F32 ? 40 : 256, act, true, false);
                test_damage(type, type == DType::F32 ? 40 : 256, act, false, false);
            }
            for (bool gated : {true, false}) {
                test({DType::F32, 333, 48, act, gated, true, act == Activation::relu ? 0.3f : 0});
                test({DType::F32, 5, 33, act, gated, false, act == Activation::silu ? 0.2f : 0});
            }
        }
    }
    return check::summary("test_neurons");
}
