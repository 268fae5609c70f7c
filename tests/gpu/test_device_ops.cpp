// Every operator of a device against its twin on the CPU: the same bits where both do the same
// operations in the same order, otherwise within rounding. And the same bits in every order of
// threads.
#include "circle.h"
#include "gpu/attention_tests.h"
#include "gpu/expert_products.h"
#include "gpu/expert_tests.h"
#include "gpu/ffn_tests.h"
#include "gpu/heads_tests.h"
#include "gpu/neuron_expert_tests.h"
#include "gpu/recurrence_tests.h"
#include "gpu/twins.h"

using namespace gpu_test;

namespace {

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

// Numbers, and sigmoids of heads and rows, that multiply; and the cap of logits.
void test_factors(int64_t rows, int64_t cols) {
    const int64_t dim = 52, heads = cols / dim, n = rows * cols;
    const Floats values = normal(n);
    const Array<float> factor(Floats{0.3f});
    Floats expected = values;
    const Array<float> by_number(values), by_memory(values), capped(values), weighed(values);
    scale(context, expected.data(), 0.3f, n);
    ops.scale(stream(), by_number.get(), nullptr, 0.3f, n);
    ops.scale(stream(), by_memory.get(), factor.get(), 2, n);
    CHECK(same_bits(noted(by_number.read()), expected));
    CHECK(same_bits(noted(by_memory.read()), expected));
    expected = values;
    softcap(context, expected.data(), 1.5f, n);
    ops.softcap(stream(), capped.get(), 1.5f, n);
    CHECK(same_bits(noted(capped.read()), expected));

    const Floats score = normal(rows);
    const Array<float> device_score(score);
    expected = values;
    for (int64_t t = 0; t < rows; t++) {
        scale(context, &expected[size_t(t * cols)], sigmoid(score[size_t(t)]), cols);
    }
    ops.weigh(stream(), weighed.get(), device_score.get(), int(rows), int(cols));
    CHECK(same_bits(noted(weighed.read()), expected));

    // Gates behind each head of something else.
    const Floats both = normal(2 * n);
    const Array<float> device_both(both);
    const Activations gated(values, rows);
    Floats gates;
    for (int64_t h = 0; h < rows * heads; h++) {
        const auto from = both.begin() + (2 * h + 1) * dim;
        gates.insert(gates.end(), from, from + dim);
    }
    expected = values;
    gate_by(context, GateBy::sigmoid, expected.data(), gates.data(), n);
    ops.gate_by(stream(), GateBy::sigmoid, gated.device,
                {device_both.get() + dim, 2 * cols, 2 * dim, int(dim), false});
    CHECK(same_bits(noted(gated.x.read()), expected));
    CHECK(gated.quantised_as(expected));

    // Gates of their own, one a head or one a value.
    for (const GateBy by : {GateBy::sigmoid, GateBy::softplus}) {
        for (const int64_t width : {int64_t(1), dim}) {
            const int64_t row = cols / width;
            Floats own = normal(rows * row);
            own[0] = 90;
            own[1] = -90;
            const Array<float> device_own(own);
            const Activations x(values, rows);
            expected = values;
            gate_by(context, by, expected.data(), own.data(), rows * row, width);
            ops.gate_by(stream(), by, x.device,
                        {device_own.get(), row, dim / width, int(dim), width > 1});
            CHECK(same_bits(noted(x.x.read()), expected));
            CHECK(x.quantised_as(expected));
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
                           Activation::gelu, Activation::gelu_tanh, Activation::swiglu_oai}) {
        for (bool gated : {true, false}) {
            Floats expected = normal(rows * cols, 4);  // some beyond 7
            const Activations b(expected, rows);
            ops.activation(stream(), act, {}, b.device, gated ? up.get() : nullptr);
            if (gated) {
                gated_activation(context, act, expected.data(), other.data(), rows * cols);
            } else {
                activation(context, act, expected.data(), rows * cols);
            }
            CHECK(same_bits(noted(b.x.read()), expected));
            CHECK(b.quantised_as(expected));
        }
    }
    for (bool before : {false, true}) {
        const GateLimit limit{0.5f, before};
        Floats limited = normal(rows * cols, 4);
        const Activations b(limited, rows);
        ops.activation(stream(), Activation::silu, limit, b.device, up.get());
        limited_activation(context, Activation::silu, limit, limited.data(), other.data(),
                           rows * cols);
        CHECK(same_bits(noted(b.x.read()), limited));
        CHECK(b.quantised_as(limited));
    }
    const Xielu how{0.8f, 1.3f, 0.5f, -1e-6f};
    Floats curved = normal(rows * cols, 4);
    curved[5] = NAN;
    const Activations c(curved, rows);
    ops.xielu(stream(), how, c.device);
    xielu(context, how, curved.data(), rows * cols);
    Floats bent = noted(c.x.read());
    CHECK(std::isnan(bent[5]) && std::isnan(curved[5]));
    bent[5] = curved[5] = 0;
    CHECK(same_bits(bent, curved));
    test_factors(rows, cols);

    Floats gates(32, 1), alone(32, -1), ups(32, 1);
    gates[0] = gates[2] = alone[0] = alone[2] = ups[1] = ups[2] = NAN;
    const Array<float> of_up(ups);
    for (Activation act : {Activation::relu, Activation::drelu, Activation::relu2}) {
        const Activations gated(gates, 1), plain(alone, 1);
        ops.activation(stream(), act, {}, gated.device, of_up.get());
        ops.activation(stream(), act, {}, plain.device, nullptr);
        const Floats h = noted(gated.x.read()), a = noted(plain.x.read());
        for (size_t i = 0; i < 32; i++) {
            CHECK(std::isnan(h[i]) == (i < 3) && std::isnan(a[i]) == (i == 0 || i == 2));
        }
    }
    Floats sum = normal(1000);
    const Array<float> x(sum);
    ops.add(stream(), x.get(), up.get(), 1000);
    add(context, sum.data(), other.data(), 1000);
    CHECK(same_bits(noted(x.read()), sum));
}

enum class Norm { rms, plain_rms, layer, layer_alone };

void test_norm(Norm kind, int64_t cols, int n_added) {
    const int64_t rows = 2;
    const bool layer = kind == Norm::layer || kind == Norm::layer_alone;
    const bool biased = kind == Norm::layer;
    Floats x = normal(rows * cols, 1, 0.3f);
    const Floats weight = normal(cols, 1, 1), bias = normal(cols);
    Floats more[2] = {normal(rows * cols), normal(rows * cols)};
    const Array<float> dx(x), dw(weight), db(bias), d0(more[0]), d1(more[1]);
    const Activations y(Floats(size_t(rows * cols)), rows);
    DeviceNorm p;
    p.weight = kind == Norm::plain_rms ? nullptr : dw.get();
    p.layer = layer;
    p.bias = biased ? db.get() : nullptr;
    p.eps = 1e-5f;
    p.x = dx.get();
    // What is added has a norm and a factor of its own, or one of them, or none.
    const Floats own = normal(cols, 1, 1);
    const Array<float> device_own(own);
    const Array<float>* const device_more[] = {&d0, &d1};
    for (int i = 0; i < n_added; i++) {
        p.added[i].x = device_more[i]->get();
        if (!layer && cols < 4128 && cols % 64 == 32 * i) p.added[i].norm = device_own.get();
        p.added[i].eps = 1e-4f;
        if (n_added > 1 || layer) p.added[i].factor = 0.3f;
    }
    p.y = y.device;
    ops.norm(stream(), p);
    for (int i = 0; i < n_added; i++) {
        Floats& a = more[i];
        if (p.added[i].norm) {
            rms_norm(context, a.data(), own.data(), p.added[i].eps, rows, cols, a.data());
        }
        if (p.added[i].factor != 1) scale(context, a.data(), p.added[i].factor, rows * cols);
        add(context, x.data(), a.data(), rows * cols);
    }
    Floats expected(x.size());
    if (layer) {
        layer_norm(context, x.data(), weight.data(), biased ? bias.data() : nullptr, p.eps, rows,
                   cols, expected.data());
    } else {
        rms_norm(context, x.data(), p.weight ? weight.data() : nullptr, p.eps, rows, cols,
                 expected.data());
    }
    CHECK(same_bits(noted(dx.read()), x));
    CHECK(same_bits(noted(y.x.read()), expected));
    CHECK(y.quantised_as(expected));
}

void test_norms() {
    // The first ones are broken, too (ptx/mutants.py): rows of more than a stage, without norms of
    // what is added.
    for (int64_t cols : {4128, 32, 288, 4096}) {
        for (Norm kind : {Norm::rms, Norm::plain_rms, Norm::layer, Norm::layer_alone}) {
            for (int n_added : {0, 1, 2}) test_norm(kind, cols, n_added);
        }
    }
}

// Products with the first n rows of x, for several n: the CPU's bits, alone and in tiles. One has a
// bias and a scale, and rows of y that are apart.
void test_product(DType type, int64_t rows, int64_t cols, const std::vector<int64_t>& counts) {
    const Weights w(type, rows, cols);
    const CpuMatrix cpu(w.host);
    const Floats bias = normal(rows);
    const float factor = 0.7f;
    const Array<float> device_bias(bias), device_scale(Floats{factor});
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    const Floats values = normal(most * cols, 1 / std::sqrt(float(cols)));
    for (int64_t n : counts) {
        const Activations x(Floats(values.begin(), values.begin() + n * cols), n);
        if (cols % kQ == 0) ops.quantise(stream(), x.device);
        const int64_t apart = rows + 3;
        const Array<float> y(size_t(n * rows)), z(Floats(size_t(n * apart), 7.0f));
        const DeviceProduct products[] = {
            {w.device, y.get(), device_bias.get()},
            {w.device, z.get(), device_bias.get(), device_scale.get(), apart}};
        ops.matmul(stream(), x.device, products, 2);
        CHECK(like_the_cpus(noted(y.read()), cpu.times(x.host, bias.data())));
        const Floats scaled = cpu.times(x.host, bias.data(), &factor);
        Floats spread(size_t(n * apart), 7.0f);
        for (int64_t t = 0; t < n; t++) {
            std::copy_n(&scaled[size_t(t * rows)], rows, &spread[size_t(t * apart)]);
        }
        CHECK(like_the_cpus(noted(z.read()), spread));
    }
}

void test_products() {
    // Several slabs of columns, and blocks with more rows.
    for (DType type : {DType::F16, DType::F32, DType::Q4_0, DType::Q4_1, DType::Q6_K, DType::Q8_0,
                       DType::Q5_1, DType::IQ4_NL}) {
        test_product(type, 21, 4864, {1, 2});
        test_product(type, 4099, 256, {1});
    }
    for (DType type : kTypes) {
        test_product(type, 10, few_columns(type), {1, 3, 8, 11});
        test_product(type, 67, 1280, {1, 3});
    }
    // Floats in groups of 8.
    for (DType type : {DType::F16, DType::F32, DType::BF16}) {
        for (int64_t odd : {8, 24, 48, 1048}) test_product(type, 21, odd, {1, 3, 67});
    }
    // Weights of several types and heights that share an input.
    const int64_t cols = 512;
    const Activations x(normal(cols), 1);
    ops.quantise(stream(), x.device);
    const Weights a(DType::Q4_K, 40, cols), b(DType::Q4_K, 9, cols), c(DType::F16, 20, cols);
    const Weights* all[] = {&a, &b, &c};
    std::vector<std::unique_ptr<Array<float>>> y;
    std::vector<DeviceProduct> products;
    for (const Weights* w : all) {
        y.push_back(std::make_unique<Array<float>>(size_t(w->host.rows)));
        products.push_back({w->device, y.back()->get(), nullptr});
    }
    ops.matmul(stream(), x.device, products.data(), 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK(like_the_cpus(noted(y[i]->read()), CpuMatrix(all[i]->host).times(x.host, nullptr)));
    }
}

void test_tiles() {
    for (DType type : kTypes) {
        test_product(type, 10, few_columns(type), {67});
    }
    for (DType type :
         {DType::F16, DType::Q4_0, DType::Q4_1, DType::Q2_K, DType::Q4_K, DType::Q6_K}) {
        test_product(type, 70, 1536, {67});
    }
}

// Scores of rows of signs: the CPU's bits, also for what is no number.
void test_sketch(int rows, int cols, int n, bool with_offset) {
    std::vector<uint8_t> signs(size_t(rows * cols / 8));
    for (uint8_t& byte : signs) byte = uint8_t(rng());
    const Floats offset = normal(rows);
    Floats x = normal(n * cols);
    x[1] = 1000;  // beyond the highest level
    x[2] = -0.0f;
    if (n > 1) std::fill_n(x.begin() + cols, cols, 0.0f);
    if (n > 2) std::fill_n(x.begin() + 2 * cols, cols, -1e-44f);
    if (n > 3) x[size_t(3 * cols + 5)] = INFINITY;
    if (n > 4) x[size_t(4 * cols + 6)] = -NAN;
    Floats expected(size_t(n * rows));
    Carved<SketchScratch> scratch("scratch", n, cols);
    sketch_scores(context, {rows, cols, signs.data(), with_offset ? offset.data() : nullptr},
                  x.data(), n, *scratch, expected.data());

    const Array<uint8_t> device_signs(signs);
    const Array<float> device_offset(offset), device_x(x), unit{size_t(n)}, score(expected.size());
    const Array<uint32_t> planes(size_t(n * 4 * device_sketch_words(cols)));
    const Array<int32_t> total{size_t(n)};
    const DeviceSketch w{rows, cols, device_signs.get(),
                         with_offset ? device_offset.get() : nullptr};
    ops.sketch_scores(stream(), w, device_x.get(), n, {planes.get(), unit.get(), total.get()},
                      score.get());
    const Floats got = noted(score.read());
    for (size_t i = 0; i < got.size(); i++) {
        // Which NaN it is differs between processors.
        CHECK(std::isnan(expected[i]) ? std::isnan(got[i])
                                      : std::memcmp(&got[i], &expected[i], 4) == 0);
    }
}

void test_sketches() {
    for (int cols : {8, 24, 32, 104, 128, 288, 1024, 1160, 5120}) {
        test_sketch(1, cols, 1, true);
        test_sketch(37, cols, 5, false);
    }
    test_sketch(16, 4096, 2, true);
}

void test_merge() {
    const int rows = 3;
    for (int cols : {1, 255, 256, 1312}) {
        for (int parts : {1, kDeviceParts}) {
            const Floats sums = normal(rows * parts * cols), bias = normal(cols);
            const Array<float> device_sums(sums), device_bias(bias);
            const Floats other = normal(rows * cols);
            // The bias of the last of several calls, each with the result of the one before.
            for (bool last : {false, true}) {
                Floats expected(other.size());
                for (size_t i = 0; i < expected.size(); i++) {
                    const size_t row = i / size_t(cols), c = i % size_t(cols);
                    for (size_t part = 0; part < size_t(parts); part++) {
                        expected[i] += sums[(row * size_t(parts) + part) * size_t(cols) + c];
                    }
                    if (last) expected[i] = other[i] + expected[i] + bias[c];
                }
                const Array<float> y(other);
                ops.merge(stream(), {device_sums.get(), parts, rows, cols},
                          last ? y.get() : nullptr, last ? device_bias.get() : nullptr, y.get());
                CHECK(same_bits(noted(y.read()), expected));
            }
        }
    }
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
                         {"tiles", test_tiles},
                         {"matmul", test_experts},
                         {"matmul", test_neuron_experts},
                         {"heads", test_positions},
                         {"attention", test_attention},
                         {"attention", test_long_attention},
                         {"sketch", test_sketches},
                         {"ffn", test_select},
                         {"ffn", test_ffns},
                         {"ffn", test_few_rows},
                         {"ffn", test_neuron_experts},
                         {"ffn_rows", test_many_rows},
                         {"merge", test_merge},
                         {"route", test_route},
                         {"merge_experts", test_merge_experts},
                         {"unfold", test_unfold},
                         {"unfold", test_unfold_neurons},
                         {"recurrence", test_convolutions},
                         {"recurrence", test_scans},
                         {"recurrence", test_deltas},
                         {"recurrence", test_gated_norms},
                         {"recurrence", test_rows_beside_states}};

// The tests of a group; returns what all its results were.
uint64_t test_group(const Group& group) {
    rng.seed(7);
    digest = kNoDigest;
    digests.clear();
    group.test();
    return digest;
}

bool chosen(const Group& group, const char* file) {
    return !file || std::strcmp(file, group.file) == 0;
}

// A line "FILE DIGEST" for every result.
void print_all() {
    for (const Group& group : kGroups) {
        test_group(group);
        for (uint64_t d : digests) std::printf("%s %016llx\n", group.file, (unsigned long long)d);
    }
}

// The tests of one file, or all. In every order of threads; in the quick circle in the first one
// and one other, and in all of them if one looks at several groups.
void test_all(const char* file) {
    bool found = false;
    for (size_t i = 0; i < std::size(kGroups); i++) {
        if (!chosen(kGroups[i], file)) continue;
        found = true;
#ifdef GGML_SHIM
        uint64_t first = 0;
        for (size_t order = 0; order < std::size(shim::kOrders); order++) {
            if (!full_circle() && order > 0 && order != 1 + i % 3) continue;
            shim::set_order(shim::kOrders[order]);
            const uint64_t results = test_group(kGroups[i]);
            CHECK(shim::failure() == "");
            if (order == 0) first = results;
            CHECK(results == first);
        }
#else
        test_group(kGroups[i]);
#endif
    }
    CHECK(found);
}

}  // namespace

// With the arguments "only FILE": the tests of that .cu file. With "digests": prints what every
// result is, so that two devices can be compared.
int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "digests") == 0) {
        print_all();
        return check::summary("test_device_ops");
    }
    test_all(argc > 2 && std::strcmp(argv[1], "only") == 0 ? argv[2] : nullptr);
    return check::summary("test_device_ops");
}
