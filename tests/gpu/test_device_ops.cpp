// Every operator of a device against its twin on the CPU: the same bits where both do the same
// operations in the same order, otherwise within rounding. And the same bits in every order of
// threads.
#include <algorithm>
#include <cmath>
#include <random>

#include "cpu/kernels.h"
#include "ggml/math.h"
#include "gpu/device_arrays.h"
#include "gpu/ops.h"

using namespace ggml;
using namespace gpu_test;

namespace {

using Floats = std::vector<float>;

const DeviceOps& ops = GGML_GPU::ops();
Context context(2);
std::mt19937 rng;

Floats normal(int64_t n, float scale = 1, float mean = 0) {
    std::normal_distribution<float> d(mean, scale);
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = d(rng);
    return v;
}

// What the results of one order were, to be met again in the others.
uint64_t digest = 0;
template <typename T>
const std::vector<T>& noted(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); i++) {
        digest = (digest ^ bytes[i]) * 0x100000001b3;
    }
    return values;
}

// The largest difference, as a share of the root mean square.
double difference(const Floats& a, const Floats& b) {
    double largest = 0, squares = 0;
    for (size_t i = 0; i < b.size(); i++) {
        const double d = std::fabs(double(a[i]) - double(b[i]));
        largest = std::isnan(largest) || d <= largest ? largest : d;  // a NaN stays
        squares += double(b[i]) * b[i];
    }
    return largest / std::sqrt(squares / double(b.size()) + 1e-30);
}
constexpr double kRounding = 2e-5;

const DType kTypes[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q4_0,   DType::Q4_1,
                        DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q2_K,   DType::Q3_K,
                        DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS};

// A matrix in both forms.
struct Weights {
    Weights(DType type, int64_t rows, int64_t cols, float scale = 1)
        : bytes(info(type).size(cols)), stored(size_t(rows * bytes)) {
        const Floats source = normal(rows * cols, scale);
        info(type).encode(source.data(), stored.data(), rows * cols);
        pack(type, rows, cols);
        host = {type, Layout::rows, rows, cols, stored.data()};
    }
    void pack(DType type, int64_t rows, int64_t cols) {
        const int64_t stride = device_row_bytes(type, cols);
        std::vector<uint8_t> packed(size_t(rows * stride));
        for (int64_t r = 0; r < rows; r++) {
            pack_device_row(type, stored.data() + r * bytes, cols, packed.data() + r * stride);
        }
        planes = std::make_unique<Array<uint8_t>>(packed);
        device = {type, planes->get(), stride, int(rows), int(cols)};
    }
    int64_t bytes;
    std::vector<uint8_t> stored;
    Matrix host;
    std::unique_ptr<Array<uint8_t>> planes;
    DeviceRows device;
};

// Rows of activations in both forms; in 8 bits too.
struct Activations {
    Activations(const Floats& values, int64_t rows)
        : n(rows),
          cols(int64_t(values.size()) / rows),
          host_x(values),
          buffer("input", rows, cols),
          x(values),
          q(values.size()),
          s(values.size() / kQ) {
        host = buffer->prepare(context, host_x.data(), n, cols, true);
        device = {x.get(), q.get(), s.get(), int(n), int(cols)};
    }
    int64_t n, cols;
    Floats host_x;
    Carved<InputBuffer> buffer;
    Input host;
    Array<float> x;
    Array<int8_t> q;
    Array<DeviceQ8Scale> s;
    DeviceInput device;

    // The 8-bit form on the device is that of these rows.
    bool quantised_as(const Floats& values) const {
        Floats copy = values;
        Carved<InputBuffer> other("input", n, cols);
        const Q8Rows q8 = other->prepare(context, copy.data(), n, cols, true).q8;
        const std::vector<int8_t> bytes = noted(q.read());
        const std::vector<DeviceQ8Scale> scales = noted(s.read());
        bool same = std::memcmp(bytes.data(), q8.q, bytes.size()) == 0;
        for (size_t i = 0; i < scales.size(); i++) {
            same = same && std::memcmp(&scales[i].d, q8.d + i, 4) == 0 &&
                   scales[i].s0 == q8.s16[2 * i] && scales[i].s1 == q8.s16[2 * i + 1];
        }
        return same;
    }
};

void test_embedding() {
    for (DType type : kTypes) {
        const Weights w(type, 9, 512);
        Array<int32_t> ids(std::vector<int32_t>{3, 0, 6});
        Array<float> y(3 * 512);
        ops.embed_rows(stream(), w.device, ids.get(), 2, 3, y.get());
        const Floats got = noted(y.read());
        for (int t = 0; t < 3; t++) {
            Floats row(512);
            const int64_t id = std::vector<int64_t>{5, 2, 8}[size_t(t)];
            decode_row(w.host, id, row.data());
            // Values, not bits: a zero may have the other sign.
            CHECK(std::equal(row.begin(), row.end(), got.begin() + t * 512));
        }
    }
}

void test_elementwise() {
    const int64_t rows = 3, cols = 416;
    Floats values = normal(rows * cols);
    std::fill_n(values.begin(), 32, 0.0f);
    values[40] = 1e-42f;  // a scale that cannot be inverted
    for (int i = 64; i < 96; i++) values[size_t(i)] = 1e-44f;
    values[100] = NAN;
    values[130] = INFINITY;
    const Activations a(values, rows);
    ops.quantise(stream(), a.device);
    CHECK(a.quantised_as(values));

    const Floats other = normal(rows * cols);
    const Array<float> up(other);
    for (Activation act : {Activation::relu, Activation::drelu, Activation::relu2, Activation::silu,
                           Activation::gelu}) {
        for (bool gated : {true, false}) {
            Floats expected = normal(rows * cols, 3);
            const Activations b(expected, rows);
            ops.activation(stream(), act, b.device, gated ? up.get() : nullptr);
            if (gated) {
                gated_activation(context, act, expected.data(), other.data(), rows * cols);
            } else {
                activation(context, act, expected.data(), rows * cols);
            }
            CHECK(same_bits(noted(b.x.read()), expected));
            CHECK(b.quantised_as(expected));
        }
    }
    Floats sum = normal(1000);
    const Array<float> x(sum);
    ops.add(stream(), x.get(), up.get(), 1000);
    add(context, sum.data(), other.data(), 1000);
    CHECK(same_bits(noted(x.read()), sum));
}

void test_norms() {
    for (int64_t cols : {32, 288, 4096}) {
        for (bool layer : {false, true}) {
            for (int n_added : {0, 1, 2}) {
                const int64_t rows = 2;
                Floats x = normal(rows * cols, 1, 0.3f);
                const Floats weight = normal(cols, 1, 1), bias = normal(cols);
                const Floats more[2] = {normal(rows * cols), normal(rows * cols)};
                const Array<float> dx(x), dw(weight), db(bias), d0(more[0]), d1(more[1]);
                const Activations y(Floats(size_t(rows * cols)), rows);
                DeviceNorm p;
                p.weight = dw.get();
                p.bias = layer ? db.get() : nullptr;
                p.eps = 1e-5f;
                p.x = dx.get();
                if (n_added > 0) p.added[0] = d0.get();
                if (n_added > 1) p.added[1] = d1.get();
                p.y = y.device;
                ops.norm(stream(), p);
                for (int i = 0; i < n_added; i++) {
                    add(context, x.data(), more[i].data(), rows * cols);
                }
                Floats expected(x.size());
                if (layer) {
                    layer_norm(context, x.data(), weight.data(), bias.data(), p.eps, rows, cols,
                               expected.data());
                } else {
                    rms_norm(context, x.data(), weight.data(), p.eps, rows, cols, expected.data());
                }
                CHECK(same_bits(noted(dx.read()), x));
                const Floats got = noted(y.x.read());
                CHECK(difference(got, expected) < kRounding);
                CHECK(y.quantised_as(got));
            }
        }
    }
}

void test_products() {
    for (DType type : kTypes) {
        for (int64_t cols : {256, 1280}) {
            const int64_t rows = 10;
            const Weights w(type, rows, cols);
            const Floats bias = normal(rows);
            const Array<float> device_bias(bias);
            const Floats values = normal(11 * cols, 1 / std::sqrt(float(cols)));
            Floats alone;
            for (int64_t n : {1, 3, 8, 11}) {
                const Floats some(values.begin(), values.begin() + n * cols);
                const Activations x(some, n);
                ops.quantise(stream(), x.device);
                const Array<float> y(size_t(n * rows)), z(size_t(n * rows));
                const DeviceProduct products[] = {{w.device, y.get(), device_bias.get()},
                                                  {w.device, z.get(), nullptr}};
                ops.matmul(stream(), x.device, products, 2);
                const Floats got = noted(y.read()), plain = noted(z.read());
                Floats expected(got.size());
                // In doubles, with activations in 8 bits where the device has them so.
                Floats back = some;
                if (w.host.quantised()) {
                    for (int64_t i = 0; i < n * cols; i++) {
                        back[size_t(i)] = x.host.q8.d[i / kQ] * float(x.host.q8.q[i]);
                    }
                }
                Floats row(static_cast<size_t>(cols));
                for (int64_t r = 0; r < rows; r++) {
                    decode_row(w.host, r, row.data());
                    for (int64_t t = 0; t < n; t++) {
                        double sum = bias[size_t(r)];
                        for (int64_t i = 0; i < cols; i++) {
                            sum += double(row[size_t(i)]) * back[size_t(t * cols + i)];
                        }
                        expected[size_t(t * rows + r)] = float(sum);
                    }
                }
                CHECK(difference(got, expected) < kRounding);
                for (size_t i = 0; i < got.size(); i++) {
                    CHECK(got[i] == plain[i] + bias[i % size_t(rows)]);
                }
                // A row's bits do not depend on the rows beside it.
                if (n == 1) alone = got;
                CHECK(std::equal(alone.begin(), alone.end(), got.begin()));
            }
        }
    }
}

void test_positions() {
    const int n = 3, pairs = 24, head_dim = 64, heads = 5;
    std::vector<double> frequency;
    for (int i = 0; i < pairs; i++) frequency.push_back(std::pow(10000.0, -i / double(pairs)));
    const std::vector<int32_t> position = {0, 77, 131071};
    const Array<double> device_frequency(frequency);
    const Array<int32_t> device_position(position);
    const Array<float> table(size_t(n * pairs * 2));
    ops.rope_table(stream(), device_frequency.get(), pairs, 1.1, device_position.get(), n,
                   table.get());
    Floats expected(size_t(n * pairs * 2));
    rope_table(context, frequency.data(), pairs, 1.1, position.data(), n, expected.data());
    CHECK(same_bits(noted(table.read()), expected));

    for (RopePairs how : {RopePairs::adjacent, RopePairs::halves}) {
        for (bool normed : {false, true}) {
            Floats x = normal(n * heads * head_dim);
            const Floats weight = normal(head_dim, 1, 1);
            const Array<float> device_x(x), device_weight(weight);
            ops.place_heads(stream(), device_x.get(), n, heads, head_dim,
                            normed ? device_weight.get() : nullptr, 1e-6f, table.get(), pairs, how);
            if (normed) {
                rms_norm(context, x.data(), weight.data(), 1e-6f, n * heads, head_dim, x.data());
            }
            rope(context, x.data(), n, heads, head_dim, expected.data(), pairs, how);
            const Floats got = noted(device_x.read());
            CHECK(normed ? difference(got, x) < kRounding : same_bits(got, x));
        }
    }
}

void test_attention() {
    const int n_kv = 2, n_head = 6, pages = 16;
    const std::vector<std::pair<DType, int>> kinds = {
        {DType::F16, 64},  {DType::F32, 64}, {DType::Q8_0, 64}, {DType::F16, 40}, {DType::F16, 128},
        {DType::Q8_0, 96}, {DType::F32, 6},  {DType::F16, 250}, {DType::F16, 256}};
    for (auto [type, dim] : kinds) {
        KvLayer host{type, n_kv, dim, nullptr, nullptr, 0};
        host.page_stride = 2 * n_kv * host.head_bytes();
        // What has not been stored is not a number, in every type.
        const std::vector<uint8_t> rubbish(size_t(pages * host.page_stride), 0xff);
        std::vector<uint8_t> memory = rubbish;
        const Array<uint8_t> device_memory(rubbish);
        host.k = memory.data();
        host.v = host.k + n_kv * host.head_bytes();
        KvLayer device = host;
        device.k = device_memory.get();
        device.v = device.k + n_kv * host.head_bytes();

        // A sequence of 15 pages in no order.
        const int length = 960;
        std::vector<int32_t> table(length / kKvPage);
        for (size_t i = 0; i < table.size(); i++) table[i] = int32_t(5 * i + 3) % pages;
        std::vector<KvSlot> slots;
        for (int i = 0; i < length; i++) slots.push_back({table[size_t(i / kKvPage)], i % 64});
        Floats k = normal(length * n_kv * dim);
        const Floats v = normal(length * n_kv * dim);
        // The scores after the row that ends at 900 are huge, and so is the only one of another
        // row.
        for (int i = 900 * n_kv * dim; i < 912 * n_kv * dim; i++) k[size_t(i)] *= 1000;
        const Array<KvSlot> device_slots(slots);
        const Array<float> device_k(k), device_v(v);
        ops.store_kv(stream(), device, device_slots.get(), length, device_k.get(), device_v.get());
        store_kv(context, host, slots.data(), length, k.data(), v.data());
        CHECK(same_bits(noted(device_memory.read()), memory));

        const Array<int32_t> device_table(table);
        const std::vector<std::pair<int, int>> ranges = {
            {0, 1},     {0, 64},  {0, 255},   {0, 256},   {0, 257},  {300, 301},
            {200, 700}, {0, 900}, {890, 900}, {905, 906}, {950, 960}};
        std::vector<AttentionRow> rows;
        std::vector<DeviceAttentionRow> device_rows;
        for (auto [first, end] : ranges) {
            rows.push_back({table.data(), first, end});
            device_rows.push_back({device_table.get(), first, end});
        }
        const int n = int(rows.size());
        const Floats q = normal(n * n_head * dim);
        const Array<float> device_q(q), out(q.size());
        const Array<DeviceAttentionRow> device_ranges(device_rows);
        DeviceAttentionScratch scratch;
        scratch.blocks = int(device_attention_blocks(length)) + 1;  // more than are needed
        const Array<float> sums(size_t(n * n_head * scratch.blocks * (dim + 2)));
        scratch.sums = sums.get();
        ops.attention(stream(), device, n_head, 0.125f, device_ranges.get(), n, device_q.get(),
                      scratch, out.get());
        Floats expected(q.size());
        attention(context, host, n_head, 0.125f, rows.data(), n, q.data(), expected.data());
        CHECK(difference(noted(out.read()), expected) < kRounding);
    }
}

struct Lists {
    explicit Lists(size_t n) : hot(n), cold(n), count(2) {}
    Array<int32_t> hot, cold, count;
    DeviceLists view() const { return {hot.get(), cold.get(), count.get()}; }
};

void test_select() {
    for (int n : {1, 255, 256, 257, 1000}) {
        for (int kind = 0; kind < 8; kind++) {
            const bool predicted = kind & 1, some_unpredicted = kind & 2, tiered = kind & 4;
            const Floats score = normal(n);
            std::vector<uint8_t> unpredicted(static_cast<size_t>(n));
            std::vector<int32_t> slot(static_cast<size_t>(n));
            int32_t next = 0;
            for (int i = 0; i < n; i++) {
                unpredicted[size_t(i)] = rng() % 5 == 0;
                slot[size_t(i)] = rng() % 3 == 0 ? next++ : -1;
            }
            const Array<float> device_score(score);
            const Array<uint8_t> device_unpredicted(unpredicted);
            const Array<int32_t> device_slot(slot);
            const Lists lists(static_cast<size_t>(n));
            ops.select(stream(), predicted ? device_score.get() : nullptr, 0.3f,
                       some_unpredicted ? device_unpredicted.get() : nullptr,
                       tiered ? device_slot.get() : nullptr, n, lists.view());
            const bool masked = true;
            NeuronMask mask;
            mask.masked = predicted ? &masked : nullptr;
            mask.score = score.data();
            mask.threshold = 0.3f;
            mask.unpredicted = some_unpredicted ? unpredicted.data() : nullptr;
            std::vector<int32_t> hot, cold;
            for (int i = 0; i < n; i++) {
                if (mask.masks(0) && !mask.finds(0, n, i)) continue;
                (tiered && slot[size_t(i)] < 0 ? cold : hot).push_back(i);
            }
            const std::vector<int32_t> count = lists.count.read();
            CHECK(count[0] == int(hot.size()) && count[1] == int(cold.size()));
            const std::vector<int32_t> got_hot = lists.hot.read(), got_cold = lists.cold.read();
            CHECK(std::equal(hot.begin(), hot.end(), got_hot.begin()));
            CHECK(std::equal(cold.begin(), cold.end(), got_cold.begin()));
        }
    }
}

// The neurons of a layer, shared out between a device and the CPU as `slot` says, against all of
// them on the CPU.
void test_ffn(DType type, Activation act, bool gated, bool biased, float threshold) {
    const int n = 150, cols = 1280;
    const Weights gate(type, n, cols), up(type, n, cols), down(type, n, cols);
    const Floats gate_bias = normal(n), up_bias = normal(n), down_bias = normal(cols);
    const Activations x(normal(cols, 1 / std::sqrt(float(cols))), 1);
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
            std::vector<uint8_t> row(size_t(device_row_bytes(type, cols)));
            pack_device_row(type, all[m]->stored.data() + i * all[m]->bytes, cols, row.data());
            packed[size_t(m)].insert(packed[size_t(m)].end(), row.begin(), row.end());
        }
    }
    const Array<uint8_t> gates(packed[0]), ups(packed[1]), downs(packed[2]);
    const Array<int32_t> device_slot(slot);
    const auto device_rows = [&](const Array<uint8_t>& data) {
        return DeviceRows{type, data.get(), device_row_bytes(type, cols), rows, cols};
    };
    DeviceNeurons w;
    w.n = n;
    if (gated) w.gate = device_rows(gates);
    w.up = device_rows(ups);
    w.down = device_rows(downs);
    w.slot = device_slot.get();
    if (biased) {
        w.gate_bias = gb.get();
        w.up_bias = ub.get();
    }
    w.act = act;
    w.threshold = threshold;

    const Lists lists(static_cast<size_t>(n));
    const Array<float> h{size_t(n)}, sums{size_t(kDeviceParts) * cols}, y{size_t(cols)};
    ops.select(stream(), device_score.get(), -0.5f, nullptr, w.slot, n, lists.view());
    ops.partial_ffn(stream(), w, x.device, lists.hot.get(), lists.count.get(),
                    {h.get(), sums.get()});

    // The CPU's twin, with neurons in the order of the file and activations as the device has them.
    Neurons twin;
    twin.n = n;
    twin.cols = cols;
    const auto host_rows = [&](const Weights& m) {
        return NeuronRows{type, false, m.stored.data(), m.bytes};
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
    Floats back = x.host_x;
    if (info(type).is_quantised()) {
        for (size_t i = 0; i < back.size(); i++) {
            back[i] = x.host.q8.d[i / kQ] * float(x.host.q8.q[i]);
        }
    }
    Input input{back.data(), 1, cols, {}};
    Carved<InputBuffer> buffer("input", 1, cols);
    if (twin.gate.wants_q8() || twin.up.wants_q8()) {
        input = buffer->prepare(context, back.data(), 1, cols, true);
    }
    Carved<NeuronScratch> scratch("scratch", 1, n, cols, 2);
    Carved<Candidates> candidates("candidates", n);
    Floats host_sums(size_t(kSegments * cols));
    const bool masked = true;
    NeuronMask mask;
    mask.masked = &masked;
    const auto cpu_part = [&](const Floats& scores, Floats& out) {
        mask.score = scores.data();
        mask.threshold = -0.5f;
        select(context, mask, n, *candidates);
        partial_ffn(context, twin, input, *candidates, *scratch, host_sums.data(), nullptr,
                    nullptr);
        merge(context, twin, host_sums.data(), out.data());
    };
    Floats expected(static_cast<size_t>(cols)), cold(static_cast<size_t>(cols));
    cpu_part(score, expected);
    // What the CPU sends down for the cold neurons alone, without the bias.
    Floats cold_score = score;
    for (int i = 0; i < n; i++) {
        if (slot[size_t(i)] >= 0) cold_score[size_t(i)] = -10;
    }
    twin.down_bias = nullptr;
    cpu_part(cold_score, cold);
    const Array<float> other(cold);
    ops.merge(stream(), sums.get(), other.get(), biased ? db.get() : nullptr, cols, y.get());
    const double apart = difference(noted(y.read()), expected);
    if (!(apart < kRounding)) std::fprintf(stderr, "%s: %g\n", info(type).name, apart);
    CHECK(apart < kRounding);
}

void test_merge() {
    for (int cols : {1, 255, 256, 1312}) {
        const Floats sums = normal(kDeviceParts * cols), other = normal(cols), bias = normal(cols);
        const Array<float> device_sums(sums), device_other(other), device_bias(bias);
        for (int kind = 0; kind < 4; kind++) {
            const bool with_other = kind & 1, with_bias = kind & 2;
            Floats expected(static_cast<size_t>(cols));
            for (size_t c = 0; c < expected.size(); c++) {
                for (size_t part = 0; part < kDeviceParts; part++) {
                    expected[c] += sums[part * size_t(cols) + c];
                }
                if (with_other) expected[c] = other[c] + expected[c];
                if (with_bias) expected[c] += bias[c];
            }
            const Array<float> y{size_t(cols)};
            ops.merge(stream(), device_sums.get(), with_other ? device_other.get() : nullptr,
                      with_bias ? device_bias.get() : nullptr, cols, y.get());
            CHECK(same_bits(noted(y.read()), expected));
        }
    }
}

void test_argmax() {
    for (int n : {1, 33, 1024, 5000}) {
        Floats x = normal(n);
        if (n > 100) x[70] = x[90] = 100;
        if (n > 1000) x[3] = NAN;
        const Array<float> device_x(x);
        const Array<int32_t> at(size_t(1));
        ops.argmax(stream(), device_x.get(), n, at.get());
        int best = 0;
        for (int i = 1; i < n; i++) {
            if (x[size_t(i)] > x[size_t(best)]) best = i;
        }
        CHECK(noted(at.read())[0] == best);
    }
    const Array<float> nothing(Floats(40, NAN));
    const Array<int32_t> at(size_t(1));
    ops.argmax(stream(), nothing.get(), 40, at.get());
    CHECK(at.read()[0] == 0);
}

void test_ffns() {
    for (DType type : kTypes) test_ffn(type, Activation::relu, true, false, 0);
    test_ffn(DType::F16, Activation::drelu, true, true, 0);
    test_ffn(DType::Q4_0, Activation::drelu, true, false, 0.1f);
    test_ffn(DType::F32, Activation::relu2, false, true, 0);
    test_ffn(DType::Q8_0, Activation::relu, false, true, 0);
    test_ffn(DType::F32, Activation::silu, true, true, 0.05f);
    test_ffn(DType::F32, Activation::gelu, false, false, 0.05f);
}

// By the .cu file that they test.
struct Group {
    const char* file;
    void (*test)();
};
const Group kGroups[] = {{"elementwise", test_embedding},
                         {"elementwise", test_elementwise},
                         {"norm", test_norms},
                         {"matmul", test_products},
                         {"positions", test_positions},
                         {"attention", test_attention},
                         {"ffn", test_select},
                         {"ffn", test_ffns},
                         {"merge", test_merge},
                         {"argmax", test_argmax}};

// The tests of one file, or all.
void test_all(const char* file) {
    rng.seed(7);
    digest = 0xcbf29ce484222325;
    bool found = false;
    for (const Group& group : kGroups) {
        if (file && std::strcmp(file, group.file) != 0) continue;
        group.test();
        found = true;
    }
    CHECK(found);
}

}  // namespace

// With an argument: the tests of that .cu file only.
int main(int argc, char** argv) {
    const char* file = argc > 1 ? argv[1] : nullptr;
#ifdef GGML_SHIM
    uint64_t first = 0;
    for (shim::Order order : shim::kOrders) {
        shim::set_order(order);
        test_all(file);
        CHECK(shim::failure() == "");
        if (order == shim::kOrders[0]) first = digest;
        CHECK(digest == first);
    }
#else
    test_all(file);
#endif
    return check::summary("test_device_ops");
}
