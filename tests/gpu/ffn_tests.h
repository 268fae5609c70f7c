// Tests of the operators of the sparse feed-forward block.
#pragma once

#include "gpu/twins.h"

namespace gpu_test {

// Lists of n neurons for so many rows.
struct Lists {
    explicit Lists(size_t n, size_t rows = 1)
        : hot(rows * n), cold(rows * n), count(2 * rows), n_rows(int(rows)), n_neurons(int(n)) {}
    Array<int32_t> hot, cold, count;
    int n_rows, n_neurons;
    DeviceLists view() const { return {hot.get(), cold.get(), count.get(), n_rows, n_neurons}; }
};

inline void test_select() {
    for (int n : {1, 255, 256, 257, 1000}) {
        for (int kind = 0; kind < 8; kind++) {
            const bool predicted = kind & 1, some_unpredicted = kind & 2, tiered = kind & 4;
            Floats score = normal(n);
            score[size_t(n / 2)] = NAN;  // of a damaged predictor
            std::vector<uint8_t> unpredicted(static_cast<size_t>(n));
            std::vector<int32_t> slot(static_cast<size_t>(n));
            int32_t here = 0, elsewhere = 0;
            for (int i = 0; i < n; i++) {
                unpredicted[size_t(i)] = rng() % 5 == 0;
                slot[size_t(i)] = rng() % 3 == 0 ? here++ : -1 - elsewhere++;
            }
            const Array<float> device_score(score);
            const Array<uint8_t> device_unpredicted(unpredicted);
            const Array<int32_t> device_slot(slot);
            const Lists lists(static_cast<size_t>(n));
            ops.select(stream(), predicted ? device_score.get() : nullptr, 0.3f,
                       some_unpredicted ? device_unpredicted.get() : nullptr,
                       tiered ? device_slot.get() : nullptr, lists.view());
            const bool masked = true;
            NeuronMask mask;
            mask.masked = predicted ? &masked : nullptr;
            mask.score = score.data();
            mask.threshold = 0.3f;
            mask.unpredicted = some_unpredicted ? unpredicted.data() : nullptr;
            std::vector<int32_t> hot, cold;
            for (int i = 0; i < n; i++) {
                if (mask.masks(0) && !mask.finds(0, n, i)) continue;
                const bool is_cold = tiered && slot[size_t(i)] < 0;
                (is_cold ? cold : hot).push_back(is_cold ? -1 - slot[size_t(i)] : i);
            }
            const std::vector<int32_t> count = lists.count.read();
            CHECK(count[0] == int(hot.size()) && count[1] == int(cold.size()));
            const std::vector<int32_t> got_hot = lists.hot.read(), got_cold = lists.cold.read();
            CHECK(std::equal(hot.begin(), hot.end(), got_hot.begin()));
            CHECK(std::equal(cold.begin(), cold.end(), got_cold.begin()));
        }
    }
}

// One row of activations that 8 bits hold exactly: products with floats and with quantised weights
// are those of the same numbers.
inline Floats exact_in_8_bits(int cols) {
    Floats x = normal(cols, 40);
    for (size_t i = 0; i < x.size(); i++) {
        const float rounded = i % kQ == 7 ? 127 : std::nearbyint(x[i]);
        x[i] = std::clamp(rounded, -127.0f, 127.0f) * (i / kQ % 2 ? 0x1p-10f : 0x1p-11f);
    }
    return x;
}

inline std::vector<unsigned long long> numbers(const NeuronCounts& counts) {
    return {uint64_t(counts.proposed), uint64_t(counts.computed), uint64_t(counts.fired)};
}

// The neurons of a layer, shared out between a device and the CPU as `slot` says, against all of
// them on the CPU.
inline void test_ffn(DType gate_type, DType type, Activation act, bool gated, bool biased,
                     float threshold) {
    const int n = 150, cols = 1280;
    const Weights gate(gate_type, n, cols), up(type, n, cols), down(type, n, cols);
    const Floats gate_bias = normal(n), up_bias = normal(n), down_bias = normal(cols);
    const Activations x(exact_in_8_bits(cols), 1);
    ops.quantise(stream(), x.device);
    const Floats score = normal(n);
    const Array<float> device_score(score), gb(gate_bias), ub(up_bias), db(down_bias);

    std::vector<int32_t> slot(size_t(n), -1);
    int32_t rows = 0;
    std::vector<std::vector<uint8_t>> packed(3);
    const Weights* all[3] = {&gate, &up, &down};
    for (int i = 0; i < n; i++) {
        if (rng() % 3 == 0) continue;
        slot[size_t(i)] = rows++;
        for (int m = 0; m < 3; m++) {
            const DType stored = all[m]->host.type;
            std::vector<uint8_t> row(size_t(device_row_bytes(stored, cols)));
            pack_device_row(stored, all[m]->stored.data() + i * all[m]->bytes, cols, row.data());
            packed[size_t(m)].insert(packed[size_t(m)].end(), row.begin(), row.end());
        }
    }
    const Array<uint8_t> gates(packed[0]), ups(packed[1]), downs(packed[2]);
    const Array<int32_t> device_slot(slot);
    const auto device_rows = [&](const Weights& m, const Array<uint8_t>& data) {
        return DeviceRows{m.host.type, data.get(), m.device.stride, rows, cols};
    };
    DeviceNeurons w;
    w.n = n;
    if (gated) w.gate = device_rows(gate, gates);
    w.up = device_rows(up, ups);
    w.down = device_rows(down, downs);
    w.slot = device_slot.get();
    if (biased) {
        w.gate_bias = gb.get();
        w.up_bias = ub.get();
    }
    w.act = act;
    w.threshold = threshold;

    const Lists lists(static_cast<size_t>(n));
    const Array<float> h{size_t(n)}, sums{size_t(kDeviceParts) * cols}, y{size_t(cols)};
    ops.select(stream(), device_score.get(), -0.5f, nullptr, w.slot, lists.view());
    ops.partial_ffn(stream(), w, x.device, lists.view(), {h.get(), nullptr, sums.get()});
    const Floats uncounted = sums.read();
    const std::vector<unsigned long long> before = {100, 20, 3};
    const Array<unsigned long long> counts(before);
    ops.partial_ffn(stream(), w, x.device, lists.view(),
                    {h.get(), nullptr, sums.get(), counts.get()});
    CHECK(same_bits(sums.read(), uncounted));

    // The CPU's twin, with neurons in the order of the file.
    Neurons twin;
    twin.n = n;
    twin.cols = cols;
    const auto host_rows = [&](const Weights& m) {
        return NeuronRows{m.host.type, false, m.stored.data(), m.bytes};
    };
    if (gated) twin.gate = host_rows(gate);
    twin.up = host_rows(up);
    twin.down = host_rows(down);
    if (biased) {
        twin.gate_bias = gate_bias.data();
        twin.up_bias = up_bias.data();
        twin.down_bias = down_bias.data();
    }
    twin.act = act;
    twin.threshold = threshold;
    Carved<NeuronScratch> scratch("scratch", 1, n, cols, 2);
    Carved<Candidates> candidates("candidates", n);
    Floats host_sums(size_t(kSegments * cols));
    const bool masked = true;
    NeuronMask mask;
    mask.masked = &masked;
    const auto cpu_part = [&](const Floats& scores, Floats& out) {
        NeuronCounts found;
        mask.score = scores.data();
        mask.threshold = -0.5f;
        select(context, mask, n, *candidates);
        partial_ffn(context, twin, x.host, *candidates, *scratch, host_sums.data(), &found,
                    nullptr);
        merge(context, twin, host_sums.data(), kSegmentPairs, out.data());
        return numbers(found);
    };
    Floats expected(static_cast<size_t>(cols)), cold(static_cast<size_t>(cols));
    const auto of_all = cpu_part(score, expected);
    // What the CPU sends down for the cold neurons alone, without the bias.
    Floats cold_score = score;
    for (int i = 0; i < n; i++) {
        if (slot[size_t(i)] >= 0) cold_score[size_t(i)] = -10;
    }
    twin.down_bias = nullptr;
    const auto of_cold = cpu_part(cold_score, cold);
    const std::vector<unsigned long long> after = noted(counts.read());
    for (size_t i = 0; i < 3; i++) CHECK(after[i] == before[i] + of_all[i] - of_cold[i]);
    ops.merge(stream(), {sums.get(), kDeviceParts, 1, cols}, nullptr, biased ? db.get() : nullptr,
              y.get());
    Floats got = noted(y.read());
    add(context, got.data(), cold.data(), cols);
    const double apart = difference(got, expected);
    if (!(apart < kRounding)) std::fprintf(stderr, "%s: %g\n", info(type).name, apart);
    CHECK(apart < kRounding);
}

// A neuron whose gate or up cannot be computed makes every sum NaN; it is not one that does not
// fire.
inline void test_damaged_rows(Activation act, bool gated, bool in_gate, int rows) {
    const int n = 45, cols = 320;
    Floats values = normal(n * cols);
    values[size_t(7 * cols + 3)] = NAN;
    const Weights good(DType::F32, n, cols), bad(DType::F32, n, cols, values);
    Floats bias(size_t(n), 0);
    bias[7] = 1000;  // the neuron fires, as far as its gate is a number
    const Array<float> b(bias);
    const Activations x(normal(rows * cols, 1 / std::sqrt(float(cols))), rows);
    const Lists lists{size_t(n)};
    ops.select(stream(), nullptr, 0, nullptr, nullptr, lists.view());
    DeviceNeurons w{
        n, {}, in_gate ? good.device : bad.device, good.device, nullptr, b.get(), b.get(), act, 0};
    if (gated) w.gate = in_gate ? bad.device : good.device;
    const int parts = device_parts(rows, 1);
    const Array<float> h{size_t(rows * n)}, up{size_t(rows * n)}, sums{size_t(rows * parts * cols)},
        y{size_t(rows * cols)};
    ops.partial_ffn(stream(), w, x.device, lists.view(), {h.get(), up.get(), sums.get()});
    ops.merge(stream(), {sums.get(), parts, rows, cols}, nullptr, nullptr, y.get());
    const Floats sent = noted(y.read());
    CHECK(std::all_of(sent.begin(), sent.end(), [](float v) { return std::isnan(v); }));
}

// Gate and up in one kernel, and in two because their types differ, give the same bits: an up of
// F32 that holds the values of the gate's type.
inline void test_gate_and_up_apart(Activation act) {
    const int n = 45, cols = 320;
    const Weights gate(DType::BF16, n, cols), up(DType::BF16, n, cols), down(DType::Q4_0, n, cols);
    Floats values(size_t(n * cols));
    for (int i = 0; i < n; i++) decode_row(up.host, i, values.data() + i * cols);
    const Weights wide(DType::F32, n, cols, values);
    const Floats gate_bias = normal(n), up_bias = normal(n);
    const Array<float> gb(gate_bias), ub(up_bias);
    const Activations x(normal(cols, 1 / std::sqrt(float(cols))), 1);
    const Lists lists{size_t(n)};
    ops.select(stream(), nullptr, 0, nullptr, nullptr, lists.view());
    DeviceNeurons w{n, gate.device, up.device, down.device, nullptr, gb.get(), ub.get(), act, 0.1f};
    const auto run = [&](Floats& h_out, Floats& sums_out) {
        const Array<float> h{size_t(n)}, sums{size_t(kDeviceParts) * cols};
        const Array<unsigned long long> counts(std::vector<unsigned long long>(3));
        ops.partial_ffn(stream(), w, x.device, lists.view(),
                        {h.get(), nullptr, sums.get(), counts.get()});
        h_out = noted(h.read());
        sums_out = noted(sums.read());
        return counts.read();
    };
    Floats h[2], sums[2];
    const auto together = run(h[0], sums[0]);
    w.up = wide.device;
    CHECK(run(h[1], sums[1]) == together);
    CHECK(same_bits(h[0], h[1]) && same_bits(sums[0], sums[1]));
    CHECK(together[0] == n && together[1] < n && together[2] > 0);
}

inline void test_ffns() {
    using enum Activation;
    for (DType type : kTypes) test_ffn(type, type, relu, true, false, 0);
    test_ffn(DType::F16, DType::F16, drelu, true, true, 0);
    test_ffn(DType::Q4_0, DType::Q4_0, drelu, true, false, 0.1f);
    test_ffn(DType::F32, DType::F32, relu2, false, true, 0);
    test_ffn(DType::Q8_0, DType::Q8_0, relu, false, true, 0);
    test_ffn(DType::F32, DType::F32, silu, true, true, 0.05f);
    test_ffn(DType::F32, DType::F32, gelu, false, false, 0.05f);
    test_ffn(DType::Q4_0, DType::Q8_0, relu, true, true, 0);
    test_ffn(DType::Q4_K, DType::Q6_K, drelu, true, true, 0);
    test_ffn(DType::F16, DType::Q5_0, relu2, true, false, 0.1f);
    test_ffn(DType::IQ4_XS, DType::F32, silu, true, true, 0.05f);
    for (Activation act : {relu, drelu, silu}) test_gate_and_up_apart(act);
    for (Activation act : {relu, drelu, relu2}) {
        for (int n : {1, kDeviceTileRows}) {
            test_damaged_rows(act, true, true, n);
            test_damaged_rows(act, true, false, n);
            test_damaged_rows(act, false, false, n);
        }
    }
}

// A layer of which the device has two thirds of the neurons, and no memory beyond their rows.
struct SplitLayer {
    SplitLayer(DType type, Activation act, bool gated, int n, int cols)
        : n(n),
          cols(cols),
          slots(some_elsewhere(n)),
          rows(int(std::count_if(slots.begin(), slots.end(), [](int32_t s) { return s >= 0; }))),
          gate(type, rows, cols),
          up(type, rows, cols),
          down(type, rows, cols),
          gate_bias(normal(n)),
          up_bias(normal(n)),
          slot(slots),
          neurons{n,
                  gated ? gate.device : DeviceRows{},
                  up.device,
                  down.device,
                  slot.get(),
                  gate_bias.get(),
                  up_bias.get(),
                  act,
                  0} {}
    static std::vector<int32_t> some_elsewhere(int n) {
        std::vector<int32_t> slots(static_cast<size_t>(n));
        int32_t here = 0, elsewhere = 0;
        for (int32_t& s : slots) s = rng() % 3 == 0 ? -1 - elsewhere++ : here++;
        return slots;
    }
    // What the neurons of `lists` send down for rows [first, first + count) of x, after it.
    Floats sent(const Activations& x, int first, int count, const DeviceLists& lists,
                std::vector<unsigned long long>& counted) const {
        DeviceInput part = x.device;
        part.x += int64_t(first) * cols;
        part.q += int64_t(first) * cols;
        part.s += int64_t(first) * cols / kQ;
        part.rows = count;
        const size_t values = size_t(count) * size_t(n);
        const int parts = device_parts(count, lists.rows);
        const Array<float> h{values}, up_values{values};
        const Array<float> sums(size_t(count * parts * cols)), y(size_t(count * cols));
        const Array<unsigned long long> counts(counted);
        ops.partial_ffn(stream(), neurons, part, lists,
                        {h.get(), up_values.get(), sums.get(), counts.get()});
        ops.merge(stream(), {sums.get(), parts, count, cols}, nullptr, nullptr, y.get());
        counted = counts.read();
        return y.read();
    }

    int n, cols;
    std::vector<int32_t> slots;
    int rows;
    Weights gate, up, down;
    Array<float> gate_bias, up_bias;
    Array<int32_t> slot;
    DeviceNeurons neurons;
};

// Rows beside one another, with a list each: as if each were alone.
inline void test_few_rows() {
    for (DType type : {DType::F16, DType::Q4_0}) {
        const SplitLayer layer(type, Activation::relu, true, 150, 1056);
        const int n = 3;
        const Activations x(normal(n * layer.cols), n);
        ops.quantise(stream(), x.device);
        const Array<float> score(normal(n * layer.n));
        const Lists lists(size_t(layer.n), n);
        ops.select(stream(), score.get(), 0.2f, nullptr, layer.slot.get(), lists.view());
        std::vector<unsigned long long> together(3), apart(3);
        const Floats got = noted(layer.sent(x, 0, n, lists.view(), together));
        for (int t = 0; t < n; t++) {
            const Lists own(static_cast<size_t>(layer.n));
            ops.select(stream(), score.get() + t * layer.n, 0.2f, nullptr, layer.slot.get(),
                       own.view());
            const std::vector<int32_t> all = lists.count.read(), alone = own.count.read();
            CHECK(all[size_t(2 * t)] == alone[0] && all[size_t(2 * t + 1)] == alone[1]);
            const Floats row = layer.sent(x, t, 1, own.view(), apart);
            CHECK(std::equal(row.begin(), row.end(), got.begin() + t * layer.cols));
        }
        CHECK(together == apart && together[2] > 0);
    }
}

// Rows that compute every neuron of the device, in tiles: as if each were alone.
inline void test_all_neurons(DType type, Activation act, bool gated) {
    const SplitLayer layer(type, act, gated, 150, info(type).block == kQK ? 256 : 320);
    const int n = kDeviceTileRows + 3;
    const Activations x(normal(n * layer.cols), n);
    ops.quantise(stream(), x.device);
    const Lists lists(static_cast<size_t>(layer.n));
    ops.select(stream(), nullptr, 0, nullptr, layer.slot.get(), lists.view());
    std::vector<unsigned long long> together(3), apart(3), few(3);
    const Floats got = noted(layer.sent(x, 0, n, lists.view(), together));
    for (int t = 0; t < n; t++) {
        const Floats row = layer.sent(x, t, 1, lists.view(), apart);
        CHECK(std::equal(row.begin(), row.end(), got.begin() + t * layer.cols));
    }
    CHECK(together == apart && together[2] > 0);
    const Floats some = layer.sent(x, 2, 2, lists.view(), few);
    CHECK(std::equal(some.begin(), some.end(), got.begin() + 2 * layer.cols));
}

inline void test_many_rows() {
    using enum Activation;
    for (DType type : kTypes) test_all_neurons(type, relu, true);
    test_all_neurons(DType::Q4_0, drelu, true);
    test_all_neurons(DType::F16, relu2, false);
    test_all_neurons(DType::Q8_0, silu, true);
}

}  // namespace gpu_test
