// The operators of ops.h against naive formulas in double precision, with sizes that do not fit
// tiles, for every instruction set of this machine. The bits of a result must not depend on the
// number of threads or on other rows.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "ggml/context.h"
#include "ggml/dtype.h"
#include "ggml/gate_limit.h"
#include "ggml/ops.h"
#include "kernels/kernels.h"
#include "operators.h"

using namespace ggml;

namespace {

// A weight matrix: its bytes, packed as by the loader, and its values.
struct Weight {
    Weight(DType type, int64_t rows, int64_t cols, bool strips) : values(size_t(rows * cols)) {
        const Floats wanted = random_floats(rows * cols);
        bytes.resize(size_t(info(type).size(rows * cols)));
        info(type).encode(wanted.data(), bytes.data(), rows * cols);
        info(type).decode(bytes.data(), values.data(), rows * cols);
        matrix = {type, Layout::rows, rows, cols, bytes.data()};
        if (!strips) return;
        packed.resize(size_t((rows + kStrip - 1) / kStrip * kStrip * matrix.row_bytes()));
        for (int64_t r = 0; r < rows; r += kStrip) {
            pack_strip(type, bytes.data() + r * matrix.row_bytes(), std::min(kStrip, rows - r),
                       cols, packed.data() + r * matrix.row_bytes());
        }
        matrix.layout = Layout::strips;
        matrix.data = packed.data();
    }
    Matrix matrix;
    std::vector<uint8_t> bytes, packed;
    Floats values;
};

// x as the kernels read it: rounded to 8 bits for quantised weights. The rounding itself is checked
// against the bound of the format, so that it cannot hide an error.
Floats seen(const Floats& x, int64_t cols, bool quantise) {
    if (!quantise) return x;
    Carved<InputBuffer> buffer("input", int64_t(x.size()) / cols, cols);
    const Input input =
        buffer->prepare(*contexts[0], x.data(), int64_t(x.size()) / cols, cols, true);
    Floats out(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        const float d = input.q8.d[i / kQ];
        out[i] = float(input.q8.q[i]) * d;
        CHECK(std::fabs(out[i] - x[i]) <= 0.5001f * d);
    }
    return out;
}

void test_matmul(DType type) {
    const bool quantised = info(type).is_quantised();
    // Rows: less than a strip, whole strips, and a tail. 65 tokens exceed the buffer of the tail.
    for (int64_t cols : {32, 96, 320}) {
        const int64_t k = quantised ? cols : cols - 5;
        const Weight a(type, 1, k, quantised), b(type, 16, k, quantised), c(type, 43, k, quantised);
        const Floats bias_a = random_floats(1), bias_c = random_floats(43);
        for (int64_t tokens : {1, 2, 5, 65}) {
            const Floats x = random_floats(tokens * k), in = seen(x, k, quantised);
            const auto op = [&](Context& context, int64_t first, int64_t n) {
                Carved<InputBuffer> buffer("input", n, k);
                Floats ya(size_t(n), NAN), yb(size_t(n * 16), NAN), yc(size_t(n * 43), NAN);
                const Input input = buffer->prepare(context, x.data() + first * k, n, k, quantised);
                matmul(context, input,
                       {{a.matrix, ya.data(), bias_a.data()},
                        {b.matrix, yb.data()},
                        {c.matrix, yc.data(), bias_c.data()}});
                // A product for each row and matrix has the same bits.
                Floats za(ya.size(), NAN), zb(yb.size(), NAN), zc(yc.size(), NAN);
                std::vector<OwnProduct> products;
                for (int64_t t = 0; t < n; t++) {
                    const Input row = input.part(t * k, 1, k);
                    products.push_back({&c.matrix, row, &zc[size_t(t * 43)], bias_c.data()});
                    products.push_back({&a.matrix, row, &za[size_t(t)], bias_a.data()});
                    products.push_back({&b.matrix, row, &zb[size_t(t * 16)], nullptr});
                }
                matmul_each(context, products.data(), int64_t(products.size()));
                CHECK(same(ya, za) && same(yb, zb) && same(yc, zc));
                Floats y;  // [n, 1 + 16 + 43]
                for (int64_t t = 0; t < n; t++) {
                    y.insert(y.end(), ya.begin() + t, ya.begin() + t + 1);
                    y.insert(y.end(), yb.begin() + t * 16, yb.begin() + t * 16 + 16);
                    y.insert(y.end(), yc.begin() + t * 43, yc.begin() + t * 43 + 43);
                }
                return y;
            };
            Doubles expected, size;
            for (int64_t t = 0; t < tokens; t++) {
                for (const Weight* w : {&a, &b, &c}) {
                    const Floats* bias = w == &a ? &bias_a : w == &c ? &bias_c : nullptr;
                    for (int64_t r = 0; r < w->matrix.rows; r++) {
                        double sum = bias ? double((*bias)[size_t(r)]) : 0, total = std::fabs(sum);
                        for (int64_t i = 0; i < k; i++) {
                            const double term =
                                double(w->values[size_t(r * k + i)]) * in[size_t(t * k + i)];
                            sum += term;
                            total += std::fabs(term);
                        }
                        expected.push_back(sum);
                        size.push_back(total);
                    }
                }
            }
            CHECK(close(steady(op, tokens), expected, size));
        }
    }
}

// Heads with matrices of their own, whose rows fill strips or do not. x: [rows, heads, k + 3], of
// which the first k values of a head meet its matrix.
void test_matmul_heads(DType type) {
    const bool quantised = info(type).is_quantised();
    const int64_t heads = 3, k = info(type).block == kQK ? kQK : quantised ? 64 : 27;
    for (int64_t out : {5, 16, 43}) {
        std::vector<Weight> weights;
        std::vector<Matrix> w;
        for (int64_t h = 0; h < heads; h++) weights.emplace_back(type, out, k, quantised);
        for (const Weight& weight : weights) w.push_back(weight.matrix);
        const int64_t rows = 9, width = heads * (k + 3), to = heads * (out + 2);
        Floats x = random_floats(rows * width), in;
        for (int64_t i = 0; i < rows * heads; i++) {
            const auto head = x.begin() + i * (k + 3);
            const Floats read = seen(Floats(head, head + k), k, quantised);
            in.insert(in.end(), read.begin(), read.end());
        }
        const auto op = [&](Context& context, int64_t first, int64_t n) {
            Floats apart(size_t(n * heads * k)), y(size_t(n * to), 7);
            copy_heads(context, {x.data() + first * width, width, k + 3}, n, heads, k,
                       {apart.data(), k, n * k});
            Carved<InputBuffer> buffer("input", n, heads * k);
            const Input input = buffer->prepare(context, apart.data(), n * heads, k, quantised);
            matmul_heads(context, input, w.data(), heads, {y.data(), to, out + 2});
            return y;
        };
        Doubles expected, size;
        for (int64_t i = 0; i < rows * heads; i++) {
            for (int64_t r = 0; r < out + 2; r++) {
                const Weight& weight = weights[size_t(i % heads)];
                double sum = r < out ? 0 : 7, total = 0;  // what is between heads stays
                for (int64_t c = 0; c < k && r < out; c++) {
                    const double term =
                        double(weight.values[size_t(r * k + c)]) * in[size_t(i * k + c)];
                    sum += term;
                    total += std::fabs(term);
                }
                expected.push_back(sum);
                size.push_back(total);
            }
        }
        CHECK(close(steady(op, rows), expected, size));
    }
}

// Rows with something behind them, in place.
void test_rms_norm_apart() {
    const int64_t rows = 5, n = 9, stride = 14;
    const Floats x = random_floats(rows * stride), weight = random_floats(n);
    Floats y = x, row(n);
    rms_norm(*contexts[1], y.data(), weight.data(), 1e-5f, rows, n, y.data(), stride);
    for (int64_t t = 0; t < rows; t++) {
        rms_norm(*contexts[0], x.data() + t * stride, weight.data(), 1e-5f, 1, n, row.data());
        const auto from = y.begin() + t * stride;
        const auto rest = x.begin() + t * stride;
        CHECK(same(Floats(from, from + n), row));
        CHECK(same(Floats(from + n, from + stride), Floats(rest + n, rest + stride)));
    }
}

void test_rms_norm() {
    for (int64_t n : {1, 7, 8, 9, 67, 256}) {
        const int64_t rows = 5;
        for (float scale : {1e-4f, 1.0f, 1e4f}) {
            const Floats x = random_floats(rows * n, scale), weight = random_floats(n);
            const auto op = [&](Context& context, int64_t first, int64_t count) {
                Floats y(size_t(count * n), NAN);
                rms_norm(context, x.data() + first * n, weight.data(), 1e-5f, count, n, y.data());
                return y;
            };
            Doubles expected, size;
            for (int64_t t = 0; t < rows; t++) {
                double sum = 0;
                for (int64_t i = 0; i < n; i++) sum += std::pow(double(x[size_t(t * n + i)]), 2);
                for (int64_t i = 0; i < n; i++) {
                    expected.push_back(x[size_t(t * n + i)] /
                                       std::sqrt(sum / double(n) + double(1e-5f)) *
                                       weight[size_t(i)]);
                    size.push_back(std::fabs(expected.back()));
                }
            }
            CHECK(close(steady(op, rows), expected, size));
        }
    }
}

// Heads with weights of their own have no bias, as in StableLM 2 12B.
void test_layer_norm() {
    const int64_t rows = 5;
    for (int64_t heads : {1, 3}) {
        for (int64_t n : {1, 7, 64, 333}) {
            const bool biased = heads == 1;
            const Floats x = random_floats(rows * heads * n, 2), weight = random_floats(heads * n),
                         bias = random_floats(n);
            const auto op = [&](Context& context, int64_t first, int64_t count) {
                Floats y(size_t(count * heads * n));
                layer_norm(context, x.data() + first * heads * n, weight.data(),
                           biased ? bias.data() : nullptr, 1e-5f, count * heads, n, y.data(),
                           heads);
                return y;
            };
            Doubles expected, size;
            for (int64_t t = 0; t < rows * heads; t++) {
                const float* row = x.data() + t * n;
                double mean = 0, variance = 0;
                for (int64_t i = 0; i < n; i++) mean += row[i] / double(n);
                for (int64_t i = 0; i < n; i++) variance += std::pow(row[i] - mean, 2) / double(n);
                for (int64_t i = 0; i < n; i++) {
                    const double scaled = (row[i] - mean) / std::sqrt(variance + double(1e-5f)) *
                                          weight[size_t(t % heads * n + i)];
                    const double offset = biased ? bias[size_t(i)] : 0;
                    expected.push_back(scaled + offset);
                    size.push_back(std::fabs(scaled) + std::fabs(offset));
                }
            }
            CHECK(close(steady(op, rows), expected, size));
        }
    }
}

void test_add() {
    for (int64_t n : {1, 9, 40001}) {
        const Floats x = random_floats(n), y = random_floats(n);
        for (Context* c : contexts) {
            Floats sum = x;
            add(*c, sum.data(), y.data(), n);
            bool good = true;
            for (size_t i = 0; i < sum.size(); i++) good &= sum[i] == x[i] + y[i];
            Floats scaled = x, capped = x;
            scale(*c, scaled.data(), 5.5f, n);
            softcap(*c, capped.data(), 0.75f, n);
            for (size_t i = 0; i < scaled.size(); i++) good &= scaled[i] == x[i] * 5.5f;
            Floats product = x;
            multiply(*c, product.data(), y.data(), n);
            for (size_t i = 0; i < product.size(); i++) good &= product[i] == x[i] * y[i];
            Floats gated = x, gate = y;
            gate_by(*c, GateBy::sigmoid, gated.data(), gate.data(), n);
            for (size_t i = 0; i < gated.size(); i++) {
                const double want = x[i] / (1 + std::exp(-double(y[i])));
                good &= std::fabs(gated[i] - want) <= 4e-7 * std::fabs(want);
            }
            for (const auto& [by, width] :
                 {std::pair(GateBy::softplus, 1), {GateBy::softplus, 3}, {GateBy::sigmoid, 3}}) {
                Floats wide;
                for (const float v : x) wide.insert(wide.end(), size_t(width), v);
                gate = y;
                gate_by(*c, by, wide.data(), gate.data(), n, width);
                for (size_t i = 0; i < wide.size(); i++) {
                    const double g = y[i / size_t(width)], e = std::exp(-std::fabs(g));
                    const double factor = by == GateBy::sigmoid ? 1 / (1 + std::exp(-g))
                                                                : std::max(g, 0.0) + std::log1p(e);
                    const double want = x[i / size_t(width)] * factor;
                    good &= std::fabs(wide[i] - want) <= 4e-7 * std::fabs(want);
                }
            }
            for (size_t i = 0; i < capped.size(); i++) {
                const double want = 0.75 * std::tanh(double(x[i]) / 0.75);
                good &= std::fabs(capped[i] - want) <= 4e-7 * std::fabs(want);
            }
            CHECK(good);
        }
    }
}

double activated(Activation act, double g, double u) {
    const double relu = g > 0 ? g : 0;
    switch (act) {
        case Activation::relu:
            return relu * u;
        case Activation::drelu:
            return relu * (u > 0 ? u : 0);
        case Activation::relu2:
            return relu * relu * u;
        case Activation::silu:
            return g / (1 + std::exp(-g)) * u;
        case Activation::gelu:
            return 0.5 * g * (1 + std::erf(g / std::sqrt(2.0))) * u;
        case Activation::gelu_tanh: {
            const double inner = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
            return 0.5 * g * (1 + std::tanh(inner)) * u;
        }
        case Activation::swiglu_oai:
            g = std::min(g, 7.0);
            return g / (1 + std::exp(-1.702 * g)) * (std::clamp(u, -7.0, 7.0) + 1);
        case Activation::xielu:
            break;  // see test_xielu
    }
    return NAN;
}

void test_limited_activation() {
    const Floats gate = random_floats(9001, 3), up = random_floats(9001, 3);
    for (bool before : {false, true}) {
        for (Context* c : contexts) {
            Floats y = gate;
            y[0] = NAN;
            limited_activation(*c, Activation::silu, {0.5f, before}, y.data(), up.data(), 9001);
            CHECK(std::isnan(y[0]));
            for (size_t i = 1; i < y.size(); i++) {
                const double g = before ? std::min(double(gate[i]), 0.5) : double(gate[i]);
                const double value = std::min(activated(Activation::silu, g, 1), 0.5);
                const double size = std::clamp(double(up[i]), -0.5, 0.5);
                CHECK(std::fabs(y[i] - value * size) <= 1e-6 * std::fabs(gate[i]));
            }
        }
    }
}

void test_xielu() {
    const auto softplus = [](double v) { return std::log1p(std::exp(v)); };
    for (const Xielu& how : {Xielu{0.5f, -0.8f, 0.5f, -1e-6f}, Xielu{-3, 4, 0.25f, -0.5f}}) {
        Floats x = random_floats(5003, 3);
        const Floats ends = {0.0f, -0.0f, -1e-8f, -0.3f, -0.9999f, -1.0001f, -100.0f, 100.0f};
        std::copy(ends.begin(), ends.end(), x.begin());
        const double p = softplus(how.alpha_p), n = how.beta + softplus(how.alpha_n);
        for (Context* c : contexts) {
            Floats y = x;
            xielu(*c, how, y.data(), int64_t(y.size()));
            bool good = true;
            for (size_t i = 0; i < x.size(); i++) {
                const double v = x[i], least = std::min(v, double(how.eps));
                const double curve = v > 0 ? p * v * v : n * (std::expm1(least) - v);
                const double size = std::fabs(curve) + std::fabs(how.beta * v);
                good &= std::fabs(y[i] - (curve + how.beta * v)) <= 3e-7 * size;
            }
            CHECK(good);
        }
    }
}

void test_gated_activation() {
    for (Activation act : {Activation::relu, Activation::drelu, Activation::relu2, Activation::silu,
                           Activation::gelu, Activation::gelu_tanh, Activation::swiglu_oai}) {
        const bool is_gelu = act == Activation::gelu || act == Activation::gelu_tanh;
        const bool is_oai = act == Activation::swiglu_oai;
        for (int64_t n : {1, 333, 9001}) {
            const int64_t rows = n == 333 ? 3 : 1;
            Floats gate = random_floats(rows * n, 3);
            Floats up = random_floats(rows * n, 3);
            const Floats extremes = {0.0f, -0.0f, 100.0f, -100.0f, 1e4f, -1e4f};
            for (size_t i = 0; i < extremes.size() && i < gate.size(); i++) gate[i] = extremes[i];
            for (size_t i = 20; i < up.size(); i += 50) up[i] *= 10;
            const auto op = [&](Context& context, int64_t first, int64_t count) {
                Floats g(gate.begin() + first * n, gate.begin() + (first + count) * n);
                gated_activation(context, act, g.data(), up.data() + first * n, count * n);
                return g;
            };
            Doubles expected, size;
            for (size_t i = 0; i < gate.size(); i++) {
                expected.push_back(activated(act, gate[i], up[i]));
                // In GELU 1 + erf cancels for negative gates, so the error is relative to |gate *
                // up|. So it does in the reference of its approximation.
                size.push_back(is_gelu  ? std::fabs(double(gate[i]) * up[i])
                               : is_oai ? std::fabs(double(gate[i])) * 8
                                        : std::fabs(expected.back()));
            }
            CHECK(close(steady(op, rows), expected, size));

            // Without a gate: the same function, times 1.
            const auto alone = [&](Context& context, int64_t first, int64_t count) {
                Floats g(gate.begin() + first * n, gate.begin() + (first + count) * n);
                activation(context, act, g.data(), count * n);
                return g;
            };
            for (size_t i = 0; i < gate.size(); i++) {
                expected[i] = activated(act, gate[i], is_oai ? 0 : 1);
                size[i] = is_gelu || is_oai ? std::fabs(double(gate[i])) : std::fabs(expected[i]);
            }
            CHECK(close(steady(alone, rows), expected, size));
        }
    }
}

void test_rope(RopePairs kind) {
    const int64_t rows = 4;
    for (int64_t head_dim : {2, 6, 16, 80}) {
        for (int64_t heads : {1, 3}) {
            for (int64_t pairs : {head_dim / 2, std::max<int64_t>(1, head_dim / 4)}) {
                const int64_t width = heads * head_dim;
                const Floats x = random_floats(rows * width);
                Floats table;  // any angles; rope_table computes the real ones
                for (int64_t i = 0; i < rows * pairs; i++) {
                    const double angle = double(rng() % 100000) / 100;
                    table.push_back(float(std::cos(angle)));
                    table.push_back(float(std::sin(angle)));
                }
                const auto op = [&](Context& context, int64_t first, int64_t count) {
                    Floats y(x.begin() + first * width, x.begin() + (first + count) * width);
                    rope(context, y.data(), count, heads, head_dim,
                         table.data() + first * pairs * 2, pairs, kind);
                    return y;
                };
                Doubles expected(x.begin(), x.end()), size(x.size(), 0);
                for (int64_t t = 0; t < rows; t++) {
                    for (int64_t h = 0; h < heads; h++) {
                        for (int64_t i = 0; i < pairs; i++) {
                            const bool adjacent = kind == RopePairs::adjacent;
                            const size_t at =
                                size_t((t * heads + h) * head_dim + (adjacent ? 2 * i : i));
                            const size_t other = at + size_t(adjacent ? 1 : pairs);
                            const double c = table[size_t(t * pairs + i) * 2],
                                         s = table[size_t(t * pairs + i) * 2 + 1];
                            const double a = x[at], b = x[other];
                            expected[at] = a * c - b * s;
                            expected[other] = a * s + b * c;
                            size[at] = size[other] = std::fabs(a) + std::fabs(b);
                        }
                    }
                }
                CHECK(close(steady(op, rows), expected, size));
            }
        }
    }
}

// Tables and turns of texts that begin anywhere, over several pages of positions: whole heads and
// parts of them, with frequencies as models have them, and ones that are stretched one by one.
void test_rope_of_texts(RopePairs kind) {
    constexpr int64_t kRows = 136;
    struct Shape {
        int64_t heads, head_dim, pairs;
    };
    for (const Shape& shape : {Shape{2, 32, 16}, Shape{1, 80, 10}, Shape{3, 14, 7}}) {
        const int64_t width = shape.heads * shape.head_dim, pairs = shape.pairs;
        std::vector<double> frequency;
        for (int64_t i = 0; i < pairs; i++) {
            const double stretch = shape.heads == 2 ? 1 : 1 + double(rng() % 64) / 8;
            frequency.push_back(std::pow(10000.0, -double(i) / double(pairs)) / stretch);
        }
        const Floats x = random_floats(kRows * width);
        for (const int32_t begin : {0, 60, 500, 4000, 100000}) {
            std::vector<int32_t> position;
            for (int32_t t = 0; t < kRows; t++) position.push_back(begin + t);
            const auto op = [&](Context& context, int64_t first, int64_t count) {
                Floats y(x.begin() + first * width, x.begin() + (first + count) * width);
                Floats table(size_t(count * pairs) * 2, NAN);
                rope_table(context, frequency.data(), pairs, 1.5, position.data() + first, count,
                           table.data());
                rope(context, y.data(), count, shape.heads, shape.head_dim, table.data(), pairs,
                     kind);
                return y;
            };
            Doubles expected(x.begin(), x.end()), size(x.size(), 0);
            for (int64_t t = 0; t < kRows; t++) {
                for (int64_t i = 0; i < pairs; i++) {
                    const auto angle = (long double)(double(begin + t) * frequency[size_t(i)]);
                    const double c = 1.5 * double(std::cos(angle));
                    const double s = 1.5 * double(std::sin(angle));
                    for (int64_t h = 0; h < shape.heads; h++) {
                        const bool adjacent = kind == RopePairs::adjacent;
                        const int64_t head = (t * shape.heads + h) * shape.head_dim;
                        const size_t at = size_t(head + (adjacent ? 2 * i : i));
                        const size_t other = at + size_t(adjacent ? 1 : pairs);
                        const double a = x[at], b = x[other];
                        expected[at] = a * c - b * s;
                        expected[other] = a * s + b * c;
                        size[at] = size[other] = 1.5 * (std::fabs(a) + std::fabs(b));
                    }
                }
            }
            CHECK(close(steady(op, kRows), expected, size));
        }
    }
}

void test_all() {
    for (DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0}) {
        test_matmul(type);
        test_matmul_heads(type);
    }
    test_rms_norm();
    test_rms_norm_apart();
    test_layer_norm();
    test_add();
    test_gated_activation();
    test_limited_activation();
    test_xielu();
    test_rope(RopePairs::adjacent);
    test_rope(RopePairs::halves);
    test_rope_of_texts(RopePairs::adjacent);
    test_rope_of_texts(RopePairs::halves);
}

// Makes a Context with a value of GGML_ISA and returns the name of its kernels.
std::string chosen(const char* isa) {
    setenv("GGML_ISA", isa, 1);
    return isa_name(Context(1).kernels);
}

void test_choice() {
    for (const char* isa : {"avx3", "AVX2", " generic", "generic ", "avx512,avx2", "%s%n"}) {
        CHECK_THROWS(unsupported, chosen(isa));
        CHECK_THROWS(unsupported, select_kernels());
    }
    CHECK(chosen("generic") == "generic");
    const std::string best = chosen("");  // empty means not set
    unsetenv("GGML_ISA");
    CHECK(isa_name(select_kernels()) == best);
}

// Several steps read the same rows: they are quantised once, and only if a step wants that.
void test_shared_input(Context& context) {
    constexpr int64_t kRows = 5, kCols = 96;
    const Floats x = random_floats(kRows * kCols, 11), others = random_floats(kRows * kCols, 12);
    Carved<InputBuffer> alone("input", kRows, kCols), copies("copies", kRows, kCols);
    Carved<SharedInput> shared("shared", kRows, kCols);
    shared->set(x.data(), kRows, kCols);
    CHECK(!shared->get(context, false).q8.q && shared->get(context, false).x == x.data());
    context.profile.entries.clear();
    context.profile.on = true;
    const Input first = shared->get(context, true), second = shared->get(context, true);
    context.profile.on = false;
    CHECK(context.profile.entries.size() == 1 && context.profile.entries[0].calls == 1);
    CHECK(!first.stale() && first.q8.q == second.q8.q && second.x == x.data());
    CHECK(shared->get(context, false).q8.q);  // it is there

    // Rows in another order, a row twice, and ranges: the bits of the rows themselves.
    const std::vector<int32_t> rows = {4, 0, 4};
    const Input some = copies->gather(context, first, rows.data(), 3);
    CHECK(some.rows == 3 && some.cols == kCols && !some.x);
    for (int64_t i = 0; i < 3; i++) {
        const Input row =
            alone->prepare(context, x.data() + rows[size_t(i)] * kCols, 1, kCols, true);
        const Input copy = some.part(i * kCols, 1, kCols);
        const auto equal = [](const auto* a, const auto* b, int64_t n) {
            return !std::memcmp(a, b, size_t(n) * sizeof(*a));
        };
        CHECK(equal(row.q8.q, copy.q8.q, kCols) && equal(row.q8.d, copy.q8.d, kCols / kQ));
        CHECK(equal(row.q8.s8, copy.q8.s8, kCols / kQ) && equal(row.q8.ds, copy.q8.ds, kCols / kQ));
        CHECK(equal(row.q8.s16, copy.q8.s16, kCols / kQ * 2));
    }
    // An input whose buffer was given other rows can be told.
    const Input before = alone->prepare(context, x.data(), kRows, kCols, true);
    alone->prepare(context, others.data(), kRows, kCols, false);
    CHECK(!before.stale());
    alone->prepare(context, others.data(), kRows, kCols, true);
    CHECK(before.stale() && before.part(kCols, 1, kCols).stale());
    const Weight w(DType::Q8_0, 8, kCols, true);
    Floats y(kRows * 8);
    CHECK_THROWS(internal, matmul(context, before, {{w.matrix, y.data()}}));
    shared->set(others.data(), kRows, kCols);
    CHECK(!first.stale());
    shared->get(context, true);
    CHECK(first.stale() && !shared->get(context, true).stale());
}

// A timer has its place before the operator runs: its end takes no memory, and so cannot fail.
void test_profile() {
    Profile profile;
    { const OpTimer off(profile, "matmul"); }
    CHECK(profile.entries.empty());
    profile.on = true;
    for (const char* part : {"attention", "ffn", "attention"}) {
        profile.part = part;
        OpTimer timer(profile, "matmul");
        const size_t n = profile.entries.size();
        CHECK(n == (profile.part == std::string("ffn") ? 2 : profile.entries[0].calls ? 2 : 1));
        timer.read(10);
    }
    CHECK(profile.entries.size() == 2);
    CHECK(profile.entries[0].calls == 2 && profile.entries[0].bytes == 20);
    CHECK(profile.entries[1].calls == 1 && profile.entries[1].bytes == 10);
    CHECK(profile.entries[0].part == std::string("attention"));
}

}  // namespace

int main() {
    test_choice();
    test_profile();
    for_each_isa([](const char* isa) {
        CHECK(chosen(isa) == isa);
        test_shared_input(*contexts[0]);
        test_all();
    });
    return check::summary("test_ops");
}
