// Tests of the operators that fold rows into states.
#pragma once

#include <optional>

#include "gpu/twins.h"

namespace gpu_test {

// The rows of a pass by sequence, for both sides: in any order of the pass, with and without a
// state before, and with the new state in the place of the old one.
class Passes {
 public:
    enum class From { nothing, other, same };
    struct Sequence {
        int64_t n;
        From from;
    };
    // state: floats of the operator; their last `scales` are scales.
    Passes(const std::vector<Sequence>& sequences, int64_t state, int64_t scales) {
        for (const Sequence& s : sequences) n_rows += s.n;
        std::vector<int32_t> places(static_cast<size_t>(n_rows));
        std::iota(places.begin(), places.end(), 0);
        std::shuffle(places.begin(), places.end(), rng);
        rows_ = places;
        size_t first = 0;
        for (const Sequence& s : sequences) {
            Floats before = normal(kBefore + state);
            for (int64_t i = 1; i <= scales; i++) {
                before[size_t(kBefore + state - i)] = 1 / float(1 + 2 * i);
            }
            const auto from = rows_.begin() + ptrdiff_t(first);
            std::sort(from, from + ptrdiff_t(s.n));
            slots_.push_back({before, Floats(before.size(), 7.0f), s});
            first += size_t(s.n);
        }
    }

    // call(sequences, how many of them): what the CPU does.
    template <typename F>
    void on_cpu(const F& call) {
        std::vector<StateRows> of;
        size_t first = 0;
        for (Slots& s : slots_) {
            float* const before = s.before.data() + kBefore;
            StateRows rows{rows_.data() + first, s.sequence.n, before, s.after.data() + kBefore};
            if (s.sequence.from == From::nothing) rows.before = nullptr;
            s.host_before = s.before;
            if (s.sequence.from == From::same) rows.after = before;
            of.push_back(rows);
            first += size_t(s.sequence.n);
        }
        call(of.data(), int64_t(of.size()));
    }

    // call(sequences): what the device does, of which there may be some more. After on_cpu().
    // Checks the new states, and that nothing else has changed.
    template <typename F>
    void on_device(const F& call) {
        std::vector<DeviceSequence> of;
        std::vector<std::unique_ptr<Array<float>>> before, after;
        int32_t first = 0;
        for (const Slots& s : slots_) {
            before.push_back(std::make_unique<Array<float>>(s.host_before));
            after.push_back(std::make_unique<Array<float>>(Floats(s.after.size(), 7.0f)));
            const int32_t n = int32_t(s.sequence.n);
            const bool none = s.sequence.from == From::nothing;
            const bool same = s.sequence.from == From::same;
            of.push_back({first, n, none ? nullptr : before.back()->get(),
                          same ? before.back()->get() : after.back()->get()});
            first += n;
        }
        // There is one more, which nobody may look at.
        of.push_back({1 << 30, 1 << 30, nullptr, nullptr});
        const Array<DeviceSequence> sequences(of);
        const Array<int32_t> count(std::vector<int32_t>{int32_t(slots_.size())}), rows(rows_);
        call(DeviceSequences{sequences.get(), count.get(), rows.get(), int(of.size()), int(n_rows),
                             kBefore});
        for (size_t i = 0; i < slots_.size(); i++) {
            CHECK(like_the_cpus(noted(before[i]->read()), slots_[i].before));
            CHECK(like_the_cpus(noted(after[i]->read()), slots_[i].after));
        }
    }

    int64_t n_rows = 0;

 private:
    static constexpr int64_t kBefore = 3;  // floats of a slot that belong to others
    struct Slots {
        Floats before, after;
        Sequence sequence;
        Floats host_before = {};  // as it was
    };
    std::vector<int32_t> rows_;
    std::vector<Slots> slots_;
};

inline std::vector<std::vector<Passes::Sequence>> some_passes() {
    using From = Passes::From;
    return {{{1, From::nothing}},
            {{1, From::other}},
            {{1, From::same}},
            {{2, From::other}, {35, From::nothing}, {1, From::same}, {8, From::same}},
            {{70, From::same}}};
}

inline void test_convolution(int64_t channels, int64_t taps, bool silu, bool in_place) {
    const Floats weight = normal(channels * taps), bias = normal(channels);
    const Array<float> device_weight(weight), device_bias(bias);
    for (const auto& sequences : some_passes()) {
        Convolution how{channels, taps, weight.data(), silu ? bias.data() : nullptr, silu};
        Passes passes(sequences, how.state(), 0);
        const int64_t n = passes.n_rows, x_row = channels + 3, y_row = in_place ? x_row : channels;
        Floats x = normal(n * x_row), y(size_t(n * y_row), 5.0f);
        if (!silu) x[1] = INFINITY;  // times a weight that is not there it would be no number
        const Array<float> device_x(x), device_y(y);
        passes.on_cpu([&](const StateRows* of, int64_t count) {
            convolve(context, how, of, count, x.data(), x_row, in_place ? x.data() : y.data(),
                     y_row);
        });
        how.weight = device_weight.get();
        if (how.bias) how.bias = device_bias.get();
        passes.on_device([&](const DeviceSequences& of) {
            ops.convolve(stream(), how, of, device_x.get(), x_row,
                         in_place ? device_x.get() : device_y.get(), y_row);
        });
        CHECK(same_bits(noted(device_x.read()), x) && same_bits(noted(device_y.read()), y));
    }
}

inline void test_convolutions() {
    for (int64_t taps : {2, 3, 4, 7, 16}) test_convolution(133, taps, taps % 2 == 0, taps > 3);
    test_convolution(128, 4, true, false);
    test_convolution(5, 3, false, true);
}

// A row of what enters has x, B, C and dt of all heads, and something behind them.
inline void test_scan(int64_t n_head, int64_t n_group, int64_t head_dim, int64_t n_state,
                      bool in_place) {
    Mamba2Scan how;
    how.n_head = n_head, how.n_group = n_group, how.head_dim = head_dim, how.n_state = n_state;
    const Floats dt_bias = normal(n_head), d = normal(n_head, 0.1f, 1);
    Floats a = normal(n_head, 0.5f);
    for (float& v : a) v = -std::fabs(v);
    // Scales are folded; or, with a single row, what is infinite stays so.
    const bool infinite = n_state == 1;
    a[0] = infinite ? -0.01f : -30.0f;
    const Array<float> device_bias(dt_bias), device_d(d), device_a(a);
    const int64_t inner = n_head * head_dim, shared = n_group * n_state;
    const int64_t width = inner + 2 * shared + n_head + 1;
    for (const auto& sequences : some_passes()) {
        Passes passes(sequences, how.state(), n_head);
        Floats rows = normal(passes.n_rows * width), y(size_t(passes.n_rows * inner), 5.0f);
        for (int64_t t = 0; infinite && t < passes.n_rows; t++) {
            float* const row = rows.data() + t * width;
            row[0] = INFINITY;
            std::fill_n(row + inner, 2 * shared, 1.0f);
        }
        const Array<float> device_rows(rows), device_y(y);
        const Array<DeviceDecay> decays(size_t(passes.n_rows * n_head));
        const auto take = [&](float* x) {
            how.x = {x, width, head_dim};
            how.b = {x + inner, width, n_state};
            how.c = {x + inner + shared, width, n_state};
            how.dt = {x + inner + 2 * shared, width, 1};
        };
        how.dt_bias = dt_bias.data(), how.a = a.data(), how.d = d.data();
        take(rows.data());
        passes.on_cpu([&](const StateRows* of, int64_t count) {
            mamba2_scan(context, how, of, count,
                        in_place ? how.x : Heads{y.data(), inner, head_dim});
        });
        how.dt_bias = device_bias.get(), how.a = device_a.get(), how.d = device_d.get();
        take(device_rows.get());
        passes.on_device([&](const DeviceSequences& of) {
            ops.mamba2_scan(stream(), how, of, {decays.get(), nullptr},
                            in_place ? how.x : Heads{device_y.get(), inner, head_dim});
        });
        CHECK(like_the_cpus(noted(device_rows.read()), rows));
        CHECK(like_the_cpus(noted(device_y.read()), y));
    }
}

inline void test_scans() {
    test_scan(2, 1, 24, 37, false);
    test_scan(4, 2, 64, 16, true);
    test_scan(1, 1, 3, 1, false);
    test_scan(2, 2, 33, 128, false);
    test_scan(1, 1, 16, kDeviceScanRows, false);
}

// lower_bound: of the decays of rows; 0: they have none; without a value states decay as a whole.
inline void test_delta(int64_t n_k_head, int64_t n_v_head, bool tiled, int64_t head_dim,
                       int64_t v_head_dim, bool in_place, std::optional<float> lower_bound = {}) {
    DeltaRule how;
    how.by_row = lower_bound.has_value(), how.lower_bound = lower_bound.value_or(0);
    const int64_t n_decays = how.by_row ? head_dim : 1;  // of a head
    how.n_k_head = n_k_head, how.n_v_head = n_v_head, how.tiled = tiled;
    how.head_dim = head_dim, how.v_head_dim = v_head_dim, how.eps = 1e-6f;
    how.beta_scale = tiled ? 1 : 2;
    const Floats dt_bias = normal(n_v_head * n_decays);
    Floats a = normal(n_v_head, 0.5f);
    for (float& v : a) v = -std::fabs(v);
    if (!how.by_row) a[0] = -30;  // scales are folded
    const Array<float> device_bias(dt_bias), device_a(a);
    const int64_t k_dim = n_k_head * head_dim, v_dim = n_v_head * v_head_dim;
    const int64_t width = 2 * k_dim + v_dim + n_v_head + 1, n_alpha = n_v_head * n_decays;
    for (const auto& sequences : some_passes()) {
        Passes passes(sequences, how.state(), n_v_head);
        Floats rows = normal(passes.n_rows * width), y(size_t(passes.n_rows * v_dim), 5.0f);
        Floats alpha = normal(passes.n_rows * n_alpha);
        const Array<float> device_rows(rows), device_y(y), device_alpha(alpha);
        const Array<float> row_decays(alpha.size());
        const Array<DeviceDecay> decays(size_t(passes.n_rows * n_v_head));
        const Array<float> products(size_t(passes.n_rows * n_k_head));
        const auto take = [&](float* x) {
            how.q = {x, width, head_dim};
            how.k = {x + k_dim, width, head_dim};
            how.v = {x + 2 * k_dim, width, v_head_dim};
            how.beta = {x + 2 * k_dim + v_dim, width, 1};
        };
        how.dt_bias = dt_bias.data(), how.a = a.data();
        how.alpha = {alpha.data(), n_alpha, n_decays};
        take(rows.data());
        passes.on_cpu([&](const StateRows* of, int64_t count) {
            delta_rule(context, how, of, count,
                       in_place ? how.v : Heads{y.data(), v_dim, v_head_dim});
        });
        how.dt_bias = device_bias.get(), how.a = device_a.get();
        how.alpha = {device_alpha.get(), n_alpha, n_decays};
        take(device_rows.get());
        passes.on_device([&](const DeviceSequences& of) {
            ops.delta_rule(stream(), how, of, {decays.get(), products.get(), row_decays.get()},
                           in_place ? how.v : Heads{device_y.get(), v_dim, v_head_dim});
        });
        CHECK(like_the_cpus(noted(device_rows.read()), rows));
        CHECK(like_the_cpus(noted(device_y.read()), y));
    }
}

inline void test_deltas() {
    test_delta(1, 2, false, 37, 24, false);
    test_delta(2, 4, true, 16, 33, true);
    test_delta(2, 6, false, 8, 64, false);
    test_delta(1, 1, false, 1, 1, false);
    test_delta(1, 2, true, 128, 32, false);
    test_delta(1, 1, false, kDeviceDeltaRows, 40, false);
    for (const float lower_bound : {0.0f, -5.0f}) {
        test_delta(2, 2, false, 37, 24, false, lower_bound);
        test_delta(2, 4, true, 16, 33, true, lower_bound);
        test_delta(1, 1, false, 128, 128, false, lower_bound);
        test_delta(1, 1, false, kDeviceDeltaRows, 40, false, lower_bound);
    }
}

inline void test_gated_norm(int64_t n_group, int64_t group, int64_t n_weights, bool gate_first,
                            bool in_bytes, bool sigmoid = false) {
    const int64_t rows = 3, cols = n_group * group;
    const Floats weight = normal(n_weights * group, 1, 1), z = normal(rows * cols, 2);
    const Array<float> device_weight(weight), device_z(z);
    Floats x = normal(rows * cols), gates = z;
    Array<float> device_x(x);
    GatedNorm how;
    how.n_group = n_group, how.group = group, how.n_weights = std::max<int64_t>(1, n_weights);
    how.eps = 1e-5f, how.gate_first = gate_first, how.sigmoid = sigmoid;
    how.weight = n_weights ? weight.data() : nullptr;
    const Heads values{x.data(), cols, group};
    gated_norm(context, how, rows, values, {gates.data(), cols, group}, values);
    how.weight = n_weights ? device_weight.get() : nullptr;
    const auto run = [&](const DeviceInput& input) {
        ops.gated_norm(stream(), how, input, device_z.get());
        CHECK(same_bits(noted(device_z.read()), z));
    };
    if (!in_bytes) {
        run({device_x.get(), nullptr, nullptr, int(rows), int(cols)});
        CHECK(same_bits(noted(device_x.read()), x));
        return;
    }
    const Activations input(device_x.read(), rows);
    run(input.device);
    CHECK(same_bits(noted(input.x.read()), x) && input.quantised_as(x));
}

inline void test_gated_norms() {
    for (bool gate_first : {true, false}) {
        test_gated_norm(3, 32, 1, gate_first, true);
        test_gated_norm(2, 288, 2, gate_first, true);
        test_gated_norm(4, 24, 4, gate_first, true);  // groups that are not whole ones of 32
        test_gated_norm(3, 7, 3, gate_first, false);
        test_gated_norm(1, 4128, 1, gate_first, false);
        test_gated_norm(2, 64, 0, gate_first, true);
        test_gated_norm(4, 24, 1, gate_first, true, true);
    }
}

inline void test_rows_beside_states() {
    const int64_t rows = 3, cols = 288;
    Floats x = normal(rows * cols);
    const Floats y = normal(rows * cols);
    const Array<float> device_x(x), device_y(y);
    const Activations input(x, rows);
    ops.multiply(stream(), input.device, device_y.get());
    ops.multiply(stream(), {device_x.get(), nullptr, nullptr, 1, 100}, device_y.get());
    Floats some = x;
    multiply(context, some.data(), y.data(), 100);
    multiply(context, x.data(), y.data(), rows * cols);
    CHECK(same_bits(noted(input.x.read()), x) && input.quantised_as(x));
    CHECK(same_bits(noted(device_x.read()), some));

    for (int64_t width : {1, 31, 300}) {
        const Floats from = normal(rows * 1000);
        Floats to(size_t(rows * 1000), 2.0f);
        const Array<float> device_from(from), device_to(to);
        Floats copy = from;
        copy_heads(context, {copy.data() + 1, 1000, 310}, rows, 3, width, {to.data(), 1000, 333});
        ops.copy_heads(stream(), {device_from.get() + 1, 1000, 310}, int(rows), 3, int(width),
                       {device_to.get(), 1000, 333});
        CHECK(same_bits(noted(device_to.read()), to));

        Floats expected(1000, 2.0f);
        const Array<float> kept(expected);
        float* const first = kept.get();
        const Array<float*> where(std::vector<float*>{first + 500, nullptr, first});
        const DeviceColumns columns{{device_from.get(), nullptr, nullptr, nullptr, device_y.get()},
                                    {int(width), 0, 0, 0, 20}};
        ops.keep_rows(stream(), columns, int(rows), where.get(), 3);
        for (const int64_t t : {0, 2}) {
            const auto to = expected.begin() + (t ? 3 : 503);
            std::copy_n(from.begin() + t * width, width, to);
            std::copy_n(y.begin() + t * 20, 20, to + width);
        }
        CHECK(same_bits(noted(kept.read()), expected));
    }
}

}  // namespace gpu_test
