// Every kernel of kernels.inc against its generic twin, with odd sizes and every tile of the
// kernel.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <random>
#include <vector>

#include "ggml/attention_kernels.h"
#include "ggml/recurrence_kernels.h"

using namespace ggml;
using namespace ggml::cpu;

namespace {

struct Quantised {
    Quantised(const Kernels& k, const std::vector<float>& x, int64_t rows, int64_t cols)
        : q(size_t(rows * cols)),
          d(size_t(rows * cols / kQ)),
          s8(d.size()),
          ds(d.size()),
          s16(2 * d.size()) {
        view = {cols, q.data(), d.data(), s8.data(), ds.data(), s16.data()};
        k.quantize[int(DType::F32)](x.data(), 0, rows, view);
    }
    std::vector<int8_t> q;
    std::vector<float> d;
    std::vector<int32_t> s8;
    std::vector<float> ds;
    std::vector<int16_t> s16;
    Q8Rows view;
};

// The same bytes where only the type of their values is aligned.
struct Moved {
    Moved(const std::vector<uint8_t>& bytes, DType type)
        : room(bytes.size() + 64), by(type == DType::F32 ? 4 : 2) {
        std::copy(bytes.begin(), bytes.end(), room.begin() + by);
    }
    const uint8_t* data() const { return room.data() + by; }

 private:
    std::vector<uint8_t> room;
    int64_t by;
};

void test_matmul(matmul_fn fn, matmul_fn generic, DType type) {
    // 37 rows are several blocks, and 1,283 columns or more several ranges.
    for (int64_t k : {1, 7, 8, 16, 33, 64, 128, 300, 1283, 4099}) {
        if (k % info(type).block) continue;
        for (int64_t rows : {1, 3, 4, 8, 13, 37}) {
            if (k > 300 && rows <= 13) continue;
            const auto w = random_rows(type, rows, k);
            for (int64_t nt : {1, 2, 3, 4, 7}) {
                const auto x = random_floats(nt * k);
                std::vector<float> y(size_t(nt * rows)), expected(y.size());
                const int64_t bytes = info(type).size(k);
                fn(w.data(), bytes, rows, k, x.data(), k, nt, y.data(), rows);
                generic(w.data(), bytes, rows, k, x.data(), k, nt, expected.data(), rows);
                CHECK(distance(y, expected, least_size(rows * nt, k)) < kRounding);
                fn(Moved(w, type).data(), bytes, rows, k, x.data(), k, nt, expected.data(), rows);
                CHECK(y == expected);
                CHECK(same_alone(
                    [&](int64_t t, int64_t n, float* out) {
                        fn(w.data(), bytes, rows, k, x.data() + t * k, k, n, out, rows);
                    },
                    y, nt, rows));
            }
        }
    }
}

void test_strip(strip_fn fn, strip_fn generic, DType type) {
    const Kernels& k = *kernels_for("generic");
    for (int64_t cols : {32, 64, 96, 256, 512, 768, 1280, 1344}) {
        if (cols % info(type).block) continue;
        // 56 and 72 rows: one and two tiles of four strips, and others at the end.
        for (int64_t rows : {1, 5, 8, 24, 56, 72}) {
            if (rows > 24 && cols != 96 && cols != 256) continue;
            const int64_t n = (rows + kStrip - 1) / kStrip, ldy = n * kStrip;
            const auto w = random_rows(type, rows, cols);
            const int64_t row_bytes = info(type).size(cols);
            std::vector<uint8_t> strips(size_t(ldy * row_bytes));
            for (int64_t r = 0; r < rows; r += kStrip) {
                pack_strip(type, w.data() + r * row_bytes, std::min(kStrip, rows - r), cols,
                           strips.data() + r * row_bytes);
            }
            for (int64_t nt : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 19, 257}) {
                if (nt == 19 && (rows != 24 || cols < 768)) continue;  // tiles of many tokens
                if (nt > 19 && (rows < 72 || cols < 256)) continue;
                const Quantised x(k, random_floats(nt * cols), nt, cols);
                std::vector<float> y(size_t(nt * ldy)), expected(y.size());
                fn(strips.data(), n, x.view, 0, nt, y.data(), ldy);
                generic(strips.data(), n, x.view, 0, nt, expected.data(), ldy);
                CHECK(distance(y, expected, least_size(rows * nt, cols)) < kRounding);
                fn(Moved(strips, type).data(), n, x.view, 0, nt, expected.data(), ldy);
                CHECK(y == expected);
                CHECK(same_alone(
                    [&](int64_t t, int64_t count, float* out) {
                        fn(strips.data(), n, x.view, t, count, out, ldy);
                    },
                    y, nt, ldy));
                std::vector<float> strip_alone(size_t(nt * kStrip));
                for (int64_t i = 0; i < n; i++) {
                    fn(strips.data() + i * kStrip * row_bytes, 1, x.view, 0, nt, strip_alone.data(),
                       kStrip);
                    for (int64_t t = 0; t < nt; t++) {
                        CHECK(std::equal(strip_alone.begin() + t * kStrip,
                                         strip_alone.begin() + (t + 1) * kStrip,
                                         y.begin() + t * ldy + i * kStrip));
                    }
                }
                // The product with the unpacked rows, in double.
                for (int64_t r = 0; r < rows; r++) {
                    std::vector<float> row(static_cast<size_t>(cols)), back(row.size());
                    info(type).decode(w.data() + r * info(type).size(cols), row.data(), cols);
                    decode_row({type, Layout::strips, rows, cols, strips.data()}, r, back.data());
                    CHECK(row == back);
                    double sum = 0, size = 0;
                    for (int64_t i = 0; i < cols; i++) {
                        const double term =
                            double(row[size_t(i)]) * x.q[size_t(i)] * x.d[size_t(i / kQ)];
                        sum += term;
                        size += std::fabs(term);
                    }
                    CHECK(std::fabs(sum - double(y[size_t(r)])) <= kRounding * size);
                }
            }
        }
    }
    // The largest magnitudes of the formats must not overflow the internal 16-bit sums.
    const int64_t n = info(type).block;
    for (int fill : {0x00, 0x0f, 0x7f, 0x80, 0xf0, 0xff}) {
        std::vector<uint8_t> w(size_t(info(type).size(n)), uint8_t(fill)), strip(w.size() * kStrip);
        set_scales(type, w.data(), f32_to_f16(1));
        pack_strip(type, w.data(), 1, n, strip.data());
        for (float sign : {1.0f, -1.0f}) {
            const Quantised x(k, std::vector<float>(size_t(n), sign * 127), 1, n);
            std::vector<float> y(kStrip), expected(kStrip);
            fn(strip.data(), 1, x.view, 0, 1, y.data(), kStrip);
            generic(strip.data(), 1, x.view, 0, 1, expected.data(), kStrip);
            CHECK(n == kQ ? y == expected : distance(y, expected) < kRounding);
            double sum = 0;
            std::vector<float> row(static_cast<size_t>(n));
            info(type).decode(w.data(), row.data(), n);
            for (float v : row) sum += double(v) * sign * 127;
            CHECK(std::fabs(sum - double(y[0])) <= kRounding * std::fabs(sum));
        }
    }
}

void test_accumulate(accumulate_fn fn, accumulate_fn generic, DType type) {
    for (int64_t cols : {1, 8, 31, 32, 40, 96, 128, 256, 512}) {
        if (cols % info(type).block) continue;
        for (int64_t rows : {1, 2, 17}) {
            const auto w = random_rows(type, rows, cols);
            for (int64_t nt : {1, 2, 3}) {
                const int64_t lda = rows + 3;  // attention has room for a whole page of weights
                const auto a = random_floats(nt * lda);
                std::vector<float> y = random_floats(nt * cols), expected = y;
                const std::vector<float> start = y;
                const int64_t bytes = info(type).size(cols);
                fn(w.data(), w.data(), bytes, rows, cols, a.data(), lda, nt, y.data(), cols);
                generic(w.data(), w.data(), bytes, rows, cols, a.data(), lda, nt, expected.data(),
                        cols);
                CHECK(distance(y, expected, least_size(nt * cols, rows)) < kRounding);
                CHECK(same_alone(
                    [&](int64_t t, int64_t n, float* out) {
                        std::memcpy(out, start.data() + t * cols, size_t(cols) * sizeof(float));
                        fn(w.data(), w.data(), bytes, rows, cols, a.data() + t * lda, lda, n, out,
                           cols);
                    },
                    y, nt, cols));
            }
        }
    }
}

// NaN and infinities: the codes are defined and the same in all kernels, and the scale of a block
// with a NaN is NaN, so that products are NaN.
void test_quantize_without_numbers(quantize_fn fn, quantize_fn generic) {
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 1e-44f}) {
        for (const bool all : {false, true}) {
            const int64_t cols = 64;
            auto x = random_floats(cols, bad == 1e-44f ? 0.0f : 1.0f);
            for (size_t i = all ? 0 : 5; i < (all ? kQ : 6); i++) x[i] = bad;
            Kernels a{}, b{};
            a.quantize[0] = fn;
            b.quantize[0] = generic;
            const Quantised mine(a, x, 1, cols), other(b, x, 1, cols);
            CHECK(mine.q == other.q && mine.s8 == other.s8 && mine.s16 == other.s16);
            CHECK(!std::memcmp(mine.d.data(), other.d.data(), mine.d.size() * sizeof(float)));
            CHECK(!std::memcmp(mine.ds.data(), other.ds.data(), mine.ds.size() * sizeof(float)));
            CHECK(std::isnan(mine.d[0]) == std::isnan(bad) && std::isfinite(mine.d[1]));
            if (!std::isfinite(bad)) CHECK(mine.q[5] == -127);
        }
    }
}

void test_quantize(quantize_fn fn, quantize_fn generic, DType) {
    test_quantize_without_numbers(fn, generic);
    for (float scale : {0.0f, 1e-30f, 1.0f, 1e20f}) {
        const int64_t cols = 320, nt = 3;
        const auto x = random_floats(nt * cols, scale);
        Kernels a{}, b{};
        a.quantize[0] = fn;
        b.quantize[0] = generic;
        const Quantised mine(a, x, nt, cols), other(b, x, nt, cols);
        CHECK(mine.q == other.q && mine.d == other.d && mine.s8 == other.s8 &&
              mine.ds == other.ds && mine.s16 == other.s16);
        for (size_t b = 0; b < mine.d.size(); b++) {
            int sum[2] = {};
            for (size_t i = 0; i < kQ; i++) sum[i / 16] += mine.q[b * kQ + i];
            CHECK(mine.s16[2 * b] == sum[0] && mine.s16[2 * b + 1] == sum[1]);
            CHECK(mine.s8[b] == 8 * (sum[0] + sum[1]) &&
                  mine.ds[b] == mine.d[b] * float(sum[0] + sum[1]));
        }
        for (size_t i = 0; i < x.size(); i++) {
            CHECK(std::fabs(x[i] - float(mine.q[i]) * mine.d[i / kQ]) <=
                  0.5001f * mine.d[i / kQ] + 1e-37f);
        }
    }
}

void test_sketch(sketch_fn fn, sketch_fn generic, DType) {
    std::uniform_int_distribution<int> byte(0, 255);
    for (int64_t bytes : {1, 31, 32, 33, 64, 100, 512}) {
        for (int fill : {-1, 0xff}) {  // random, or the largest counts
            const int64_t rows = 5, plane = plane_bytes(bytes);
            std::vector<uint8_t> signs(size_t(rows * bytes)), planes(size_t(4 * plane), 0);
            for (uint8_t& b : signs) b = uint8_t(fill < 0 ? byte(rng) : 0xff);
            for (int64_t p = 0; p < 4; p++) {
                for (int64_t i = 0; i < bytes; i++) {
                    planes[size_t(p * plane + i)] = uint8_t(fill < 0 ? byte(rng) : p ? 0xff : 0);
                }
            }
            std::vector<int32_t> mine(rows), other(rows);
            fn(signs.data(), rows, bytes, planes.data(), mine.data());
            generic(signs.data(), rows, bytes, planes.data(), other.data());
            CHECK(mine == other);
            for (int64_t r = 0; r < rows; r++) {  // one weight at a time
                int32_t sum = 0;
                for (int64_t i = 0; i < 8 * bytes; i++) {
                    const auto bit = [&](const uint8_t* v) { return v[i / 8] >> i % 8 & 1; };
                    const uint8_t* level = planes.data() + plane;
                    if (bit(signs.data() + r * bytes) == bit(planes.data())) continue;
                    sum += bit(level) + 2 * bit(level + plane) + 4 * bit(level + 2 * plane);
                }
                CHECK(sum == mine[size_t(r)]);
            }
        }
    }
}

// Calls test(n) for lengths of whole registers and with every rest.
template <typename F>
void for_lengths(const F& test) {
    for (int64_t n = 1; n <= 48; n++) test(n);
    for (int64_t n : {80, 576, 1027}) test(n);
}

// Values with those that have no number, in a row that is not aligned.
std::vector<float> odd_floats(int64_t n) {
    std::vector<float> v = random_floats(n, 3);
    const float odd[] = {NAN, 0.0f, -0.0f, INFINITY, -INFINITY, 1e30f, -1e30f, 1e-42f};
    for (size_t i = 0; i < std::size(odd); i++) {
        if (int64_t(3 * i) < n) v[3 * i] = odd[i];
    }
    return v;
}

// NaN has several forms, and which of two becomes a sum's is the compiler's choice.
bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); i++) {
        if (std::isnan(a[i]) && std::isnan(b[i])) continue;
        if (std::memcmp(&a[i], &b[i], sizeof(float))) return false;
    }
    return a.size() == b.size();
}

// call(kernel, x) changes x: is it the same with both, and does it leave what follows alone?
template <typename Fn, typename F>
bool same_change(Fn fn, Fn generic, const std::vector<float>& x, const F& call) {
    std::vector<float> mine = x, other = x;
    mine.push_back(42);
    call(fn, mine.data());
    call(generic, other.data());
    const bool alone = mine.back() == 42;
    mine.pop_back();
    return alone && same_values(mine, other);
}

constexpr Activation kActivations[] = {
    Activation::relu, Activation::drelu,     Activation::relu2,     Activation::silu,
    Activation::gelu, Activation::gelu_tanh, Activation::swiglu_oai};

void test_activate(activate_fn fn, activate_fn generic, DType) {
    for_lengths([&](int64_t n) {
        for (Activation act : kActivations) {
            for (float threshold : {0.0f, 0.5f}) {
                CHECK(same_change(fn, generic, odd_floats(n),
                                  [&](activate_fn f, float* x) { f(act, threshold, x, n); }));
            }
        }
    });
}

void test_gate(gate_fn fn, gate_fn generic, DType) {
    for_lengths([&](int64_t n) {
        const auto up = random_floats(n);
        for (Activation act : kActivations) {
            CHECK(same_change(fn, generic, odd_floats(n),
                              [&](gate_fn f, float* x) { f(act, x, up.data(), n); }));
        }
    });
}

void test_sigmoid_gate(sigmoid_gate_fn fn, sigmoid_gate_fn generic, DType) {
    for_lengths([&](int64_t n) {
        const auto gate = odd_floats(n), x = random_floats(n);
        CHECK(same_change(fn, generic, x, [&](sigmoid_gate_fn f, float* y) {
            std::vector<float> g = gate;
            f(y, g.data(), n);
        }));
        CHECK(same_change(fn, generic, gate, [&](sigmoid_gate_fn f, float* g) {
            std::vector<float> y = x;
            f(y.data(), g, n);
        }));
    });
}

void test_softcap(softcap_fn fn, softcap_fn generic, DType) {
    for_lengths([&](int64_t n) {
        CHECK(
            same_change(fn, generic, odd_floats(n), [&](softcap_fn f, float* x) { f(x, 30, n); }));
    });
}

void test_xielu(xielu_fn fn, xielu_fn generic, DType) {
    const Xielu how = {0.5f, -0.8f, 0.5f, -1e-6f};
    for_lengths([&](int64_t n) {
        CHECK(same_change(fn, generic, odd_floats(n), [&](xielu_fn f, float* x) { f(how, x, n); }));
    });
}

void test_add_scaled(add_scaled_fn fn, add_scaled_fn generic, DType) {
    for_lengths([&](int64_t n) {
        const auto y = random_floats(n);
        for (float scale : {1.0f, 0.3f}) {
            CHECK(same_change(fn, generic, odd_floats(n),
                              [&](add_scaled_fn f, float* x) { f(x, scale, y.data(), n); }));
        }
    });
}

void test_mix(mix_fn fn, mix_fn generic, DType) {
    for_lengths([&](int64_t n) {
        const auto y = random_floats(n);
        CHECK(same_change(fn, generic, odd_floats(n),
                          [&](mix_fn f, float* x) { f(x, 0.3f, y.data(), 1.7f, n); }));
    });
}

// Norms in place, and beside their input.
template <typename Fn, typename F>
void test_norm(Fn fn, Fn generic, const F& call) {
    for_lengths([&](int64_t n) {
        for (bool numbers : {true, false}) {
            const auto x = numbers ? random_floats(n) : odd_floats(n);
            CHECK(same_change(fn, generic, x, [&](Fn f, float* y) { call(f, y, n, y); }));
            CHECK(same_change(fn, generic, std::vector<float>(x.size()),
                              [&](Fn f, float* y) { call(f, x.data(), n, y); }));
        }
    });
}

void test_rms_norm(rms_norm_fn fn, rms_norm_fn generic, DType) {
    const auto weight = random_floats(1027);
    test_norm(fn, generic, [&](rms_norm_fn f, const float* x, int64_t n, float* y) {
        f(x, weight.data(), 1e-5f, n, y);
    });
}

void test_layer_norm(layer_norm_fn fn, layer_norm_fn generic, DType) {
    const auto weight = random_floats(1027), bias = random_floats(1027);
    for (const float* b : {bias.data(), static_cast<const float*>(nullptr)}) {
        test_norm(fn, generic, [&](layer_norm_fn f, const float* x, int64_t n, float* y) {
            f(x, weight.data(), b, 1e-5f, n, y);
        });
    }
}

void test_rope(rope_fn fn, rope_fn generic, DType) {
    for (int64_t n_pairs : {1, 3, 8, 16, 20, 32, 64, 65, 150}) {
        const auto cos_sin = random_floats(2 * n_pairs);
        for (RopePairs pairs : {RopePairs::adjacent, RopePairs::halves}) {
            for (int64_t head_dim : {2 * n_pairs, 2 * n_pairs + 6}) {
                CHECK(
                    same_change(fn, generic, random_floats(3 * head_dim), [&](rope_fn f, float* x) {
                        f(x, 3, head_dim, cos_sin.data(), n_pairs, pairs);
                    }));
            }
        }
    }
}

// Products of neuron rows need folded rows: test_neurons.cpp tests these kernels.
void test_dot(dot_fn, dot_fn, DType) {}
void test_add(add_fn, add_fn, DType) {}
void test_stored_dot(stored_dot_fn, stored_dot_fn, DType) {}
void test_stored_add(stored_add_fn, stored_add_fn, DType) {}
void test_tiled_add(tiled_add_fn, tiled_add_fn, DType) {}

// Operators call kernels without a check, so every format that headers promise must have one.
// Integers are exact, and the operations with floats are the same.
void test_bits_of_avx2(const char* isa) {
    const Kernels *k = kernels_for(isa), *avx2 = kernels_for("avx2");
    if (!k) return;
    const int64_t cols = 768, n = 3, ldy = n * kStrip;
    for (uint32_t id = 0; id < kTypes; id++) {
        const strip_fn fn = k->strip[id];
        if (!fn) continue;
        const DType type = DType(id);
        const int64_t row_bytes = info(type).size(cols);
        const auto w = random_rows(type, ldy, cols);
        std::vector<uint8_t> strips(w.size());
        for (int64_t r = 0; r < ldy; r += kStrip) {
            pack_strip(type, w.data() + r * row_bytes, kStrip, cols, strips.data() + r * row_bytes);
        }
        for (int64_t nt : {1, 8, 19}) {
            const Quantised x(*avx2, random_floats(nt * cols), nt, cols);
            std::vector<float> y(size_t(nt * ldy)), expected(y.size());
            fn(strips.data(), n, x.view, 0, nt, y.data(), ldy);
            avx2->strip[id](strips.data(), n, x.view, 0, nt, expected.data(), ldy);
            CHECK(y == expected);
        }
    }
}

void test_formats(const Kernels& k) {
    const auto one_of = [](DType type, std::initializer_list<DType> types) {
        return std::find(types.begin(), types.end(), type) != types.end();
    };
    for (uint32_t id = 0; id < kTypes; id++) {
        const DTypeInfo* t = find_dtype(id);
        const DType type = DType(id);
        const bool single = one_of(type, {DType::F32, DType::F16, DType::BF16});
        const bool block = t && t->is_quantised();
        CHECK(bool(k.matmul[id]) == (single || type == DType::Q8_0));    // ops.h, Product: rows
        CHECK(bool(k.strip[id]) == block && has_strips(type) == block);  // Product: strips
        CHECK(bool(k.dot[id]) == (single || block) && bool(k.add[id]) == bool(k.dot[id]));
        CHECK(bool(k.stored_dot[id]) == block);  // NeuronRows::wants_q8
        CHECK(bool(k.stored_add[id]) == bool(k.stored_dot[id]));
        if (one_of(type, {DType::F16, DType::F32, DType::Q8_0})) {  // KvLayer
            CHECK(block ? k.strip[id] && k.weigh[id] : k.scores[id] && k.accumulate[id]);
        }
    }
}

}  // namespace

int main() {
    int tested = 0;
#define KERNEL(op, dtype, isa, fn)                                                           \
    if (const Kernels* k = kernels_for(#isa)) {                                              \
        const auto generic = kernels_for("generic")->op[int(DType::dtype)];                  \
        CHECK((k->op[int(DType::dtype)] == generic) == !std::strcmp(#isa, "generic"));       \
        test_##op(k->op[int(DType::dtype)], generic, DType::dtype);                          \
        tested++;                                                                            \
    } else {                                                                                 \
        std::printf("skipped: %s %s %s, not in this build or machine\n", #op, #dtype, #isa); \
    }
#include "kernels/kernels.inc"
#undef KERNEL
    CHECK(tested >= 31);
    for (const char* isa : {"avxvnni", "vnni", "avx512"}) test_bits_of_avx2(isa);
    int n = 0;
    const char* const* isas = isa_names(&n);
    for (int i = 0; i < n; i++) {
        if (const Kernels* k = kernels_for(isas[i])) test_formats(*k);
    }
    return check::summary("test_kernels");
}
