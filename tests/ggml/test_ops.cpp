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
#include "ggml/ops.h"
#include "kernels/kernels.h"

using namespace ggml;

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

std::mt19937 rng(7);

Floats random_floats(int64_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = normal(rng);
    return v;
}

// Bounds for sums of floats in any order: every addition rounds by at most 2^-24 of the sum of
// magnitudes. The tests add up to a few hundred terms, and errors mostly cancel.
constexpr double kRounding = 4e-6;

// The error |got - expected| relative to `size`, the sum of the magnitudes that were added.
bool close(const Floats& got, const Doubles& expected, const Doubles& size,
           double limit = kRounding) {
    for (size_t i = 0; i < got.size(); i++) {
        if (!(std::fabs(double(got[i]) - expected[i]) <= limit * size[i] + 1e-30)) return false;
    }
    return got.size() == expected.size();
}

bool same(const Floats& a, const Floats& b) {
    return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

// Contexts with 1, 2 and 3 threads and the tested instruction set.
std::vector<Context*> contexts;

// op(context, first row, rows) computes some rows. Checks that every thread count and every row
// alone give the same bits as all rows together, and returns these.
Floats steady(const std::function<Floats(Context&, int64_t, int64_t)>& op, int64_t rows) {
    const Floats all = op(*contexts[0], 0, rows);
    for (Context* c : contexts) CHECK(same(op(*c, 0, rows), all));
    const size_t width = all.size() / size_t(rows);
    for (int64_t t = 0; t < rows; t++) {
        const auto from = all.begin() + ptrdiff_t(size_t(t) * width);
        CHECK(same(op(*contexts[size_t(t) % 3], t, 1), Floats(from, from + ptrdiff_t(width))));
    }
    return all;
}

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
    }
    return NAN;
}

void test_gated_activation() {
    for (Activation act : {Activation::relu, Activation::drelu, Activation::relu2, Activation::silu,
                           Activation::gelu, Activation::gelu_tanh}) {
        const bool is_gelu = act == Activation::gelu || act == Activation::gelu_tanh;
        for (int64_t n : {1, 333, 9001}) {
            const int64_t rows = n == 333 ? 3 : 1;
            Floats gate = random_floats(rows * n, 3);
            const Floats up = random_floats(rows * n, 3);
            const Floats extremes = {0.0f, -0.0f, 100.0f, -100.0f, 1e4f, -1e4f};
            for (size_t i = 0; i < extremes.size() && i < gate.size(); i++) gate[i] = extremes[i];
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
                size.push_back(is_gelu ? std::fabs(double(gate[i]) * up[i])
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
                expected[i] = activated(act, gate[i], 1);
                size[i] = is_gelu ? std::fabs(double(gate[i])) : std::fabs(expected[i]);
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

// Keys and values of two sequences on unordered pages, stored by store_kv, and their decoded
// values.
struct Pages {
    static constexpr int64_t kPositions = 200, kPages = (kPositions + kKvPage - 1) / kKvPage;

    Pages(DType type, int64_t n_head_kv, int64_t head_dim)
        : width(n_head_kv * head_dim), k{type, n_head_kv, head_dim, nullptr, nullptr, 0} {
        const int64_t half = n_head_kv * k.head_bytes();
        k.page_stride = 2 * half + 64;  // a gap, as for another layer
        bytes.resize(size_t(2 * kPages * k.page_stride));
        k.k = bytes.data();
        k.v = bytes.data() + half;
        for (int32_t s = 0; s < 2; s++) {
            for (int32_t i = 0; i < kPages; i++) pages[s][i] = 2 * (kPages - 1 - i) + s;
            key[s] = rounded(random_floats(kPositions * width, 2), type);
            value[s] = rounded(random_floats(kPositions * width, 2), type);
            std::vector<KvSlot> slots;
            for (int64_t p = 0; p < kPositions; p++) {
                slots.push_back({pages[s][p / kKvPage], int32_t(p % kKvPage)});
            }
            Context context(1 + s);
            store_kv(context, k, slots.data(), 70, key[s].data(), value[s].data());
            store_kv(context, k, slots.data() + 70, kPositions - 70, key[s].data() + 70 * width,
                     value[s].data() + 70 * width);
        }
    }
    // Values after encoding and decoding; encoding these again is exact.
    static Floats rounded(Floats values, DType type) {
        std::vector<uint8_t> stored(size_t(info(type).size(int64_t(values.size()))));
        info(type).encode(values.data(), stored.data(), int64_t(values.size()));
        info(type).decode(stored.data(), values.data(), int64_t(values.size()));
        return values;
    }

    int64_t width;
    KvLayer k;
    std::vector<uint8_t> bytes;
    int32_t pages[2][kPages];
    Floats key[2], value[2];  // [positions, n_head_kv, head_dim]
};

void test_attention(DType type, int64_t n_head, int64_t n_head_kv, int64_t head_dim,
                    int64_t window = 0, float softcap = 0) {
    const Pages kv(type, n_head_kv, head_dim);
    // The first position, positions around the ends of pages, several pages, of both sequences in
    // turn; then rows that follow each other, as in a prompt.
    const std::vector<int64_t> positions = {1, 2, 63, 64, 65, 128, 129, 200, 126, 127, 128, 129};
    const auto sequence = [](int64_t t) { return t < 8 ? t % 2 : 0; };
    const int64_t rows = int64_t(positions.size()), width = n_head * head_dim;
    const Floats q = random_floats(rows * width, 2);
    std::vector<AttentionRow> table;
    for (int64_t t = 0; t < rows; t++) {
        const int64_t end = positions[size_t(t)];
        table.push_back(
            {kv.pages[sequence(t)], window ? std::max<int64_t>(0, end - window) : 0, end});
    }
    const float scale = float(1 / std::sqrt(double(head_dim)));
    const auto op = [&](Context& context, int64_t first, int64_t n) {
        Floats out(size_t(n * width), NAN);
        attention(context, kv.k, n_head, {scale, softcap}, table.data() + first, n,
                  q.data() + first * width, out.data());
        return out;
    };
    Doubles expected, size;
    for (int64_t t = 0; t < rows; t++) {
        const Floats &key = kv.key[sequence(t)], &value = kv.value[sequence(t)];
        const int64_t first = table[size_t(t)].first, n = table[size_t(t)].end;
        for (int64_t h = 0; h < n_head; h++) {
            const int64_t base = h / (n_head / n_head_kv) * head_dim;
            Doubles weight;
            double top = -INFINITY, sum = 0;
            for (int64_t p = first; p < n; p++) {
                double dot = 0;
                for (int64_t i = 0; i < head_dim; i++) {
                    dot += double(q[size_t(t * width + h * head_dim + i)]) *
                           key[size_t(base + p * kv.width + i)];
                }
                dot /= std::sqrt(double(head_dim));
                weight.push_back(softcap ? softcap * std::tanh(dot / softcap) : dot);
                top = std::max(top, weight.back());
            }
            for (double& w : weight) sum += w = std::exp(w - top);
            for (int64_t i = 0; i < head_dim; i++) {
                double y = 0, total = 0;
                for (int64_t p = first; p < n; p++) {
                    const double term =
                        weight[size_t(p - first)] / sum * value[size_t(base + p * kv.width + i)];
                    y += term;
                    total += std::fabs(term);
                }
                expected.push_back(y);
                size.push_back(total);
            }
        }
    }
    // Scores have magnitudes of about ten and go through exp(): a relative error of 1e-7 in a score
    // is one of about 1e-6 in its weight.
    CHECK(close(steady(op, rows), expected, size, 2e-5));
}

// Reads of keys and values are counted once for all rows and heads that share them.
void test_attention_bytes() {
    const auto read = [](int64_t n_head, int64_t n_head_kv,
                         const std::vector<std::pair<int, int64_t>>& seen) {
        const int64_t head_dim = 8;
        const Pages kv(DType::F16, n_head_kv, head_dim);
        std::vector<AttentionRow> rows;
        for (const auto& [sequence, end] : seen) rows.push_back({kv.pages[sequence], 0, end});
        const int64_t n = int64_t(rows.size());
        Floats q(size_t(n * n_head * head_dim)), out(q.size());
        Context context(2);
        context.profile.on = true;
        attention(context, kv.k, n_head, {1}, rows.data(), n, q.data(), out.data());
        // Positions read per KV head.
        return int64_t(context.profile.entries[0].bytes) / (n_head_kv * 2 * head_dim * 2);
    };
    std::vector<std::pair<int, int64_t>> prompt;
    for (int64_t end = 101; end <= 120; end++) prompt.emplace_back(0, end);
    CHECK(read(3, 3, {{0, 100}}) == 100);
    CHECK(read(3, 3, prompt) == 116 + 120);                       // 16 rows, then 4
    CHECK(read(8, 2, prompt) == 104 + 108 + 112 + 116 + 120);     // 4 rows of 4 heads
    CHECK(read(36, 2, {{0, 101}, {0, 102}}) == 2 * (101 + 102));  // 18 heads: 16, then 2
    CHECK(read(3, 3, {{0, 50}, {0, 51}, {1, 60}, {0, 52}, {0, 52}, {0, 9}}) == 51 + 60 + 52 + 9);
}

void test_all() {
    Context one(1), two(2), three(3);
    contexts = {&one, &two, &three};
    for (DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0}) {
        test_matmul(type);
    }
    test_rms_norm();
    test_layer_norm();
    test_add();
    test_gated_activation();
    test_rope(RopePairs::adjacent);
    test_rope(RopePairs::halves);
    for (DType type : {DType::F16, DType::F32}) {
        test_attention(type, 3, 3, 8);
        test_attention(type, 8, 2, 20);
        test_attention(type, 8, 2, 20, 70);  // a window that begins inside a page
        test_attention(type, 8, 2, 20, 0, 0.5f);
        test_attention(type, 36, 2, 16);  // 18 query heads per key head: two passes
    }
    test_attention_bytes();
    contexts.clear();
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

}  // namespace

int main() {
    test_choice();
    int known = 0;
    const char* const* isas = cpu::isa_names(&known);
    CHECK(known >= 1);
    for (int i = 0; i < known; i++) {
        const char* isa = isas[i];
        setenv("GGML_ISA", isa, 1);
        try {
            select_kernels();
        } catch (const Error& e) {
            CHECK(e.code() == Code::unsupported && std::strcmp(isa, "generic"));
            std::printf("skipped: %s\n", e.what());
            continue;
        }
        CHECK(chosen(isa) == isa);
        test_all();
    }
    return check::summary("test_ops");
}
