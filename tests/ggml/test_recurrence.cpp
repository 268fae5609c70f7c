// The operators of recurrence.h against their formulas, position by position in double precision,
// for every instruction set of this machine. Bits must depend neither on cuts, nor on threads, nor
// on other sequences, nor on where the state is kept.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "ggml/context.h"
#include "ggml/recurrence.h"
#include "operators.h"

using namespace ggml;

namespace {

// What an operator reads and writes for each position, and the floats of its state. `call` may
// overwrite the rows.
struct Op {
    int64_t width, out, state;
    std::function<void(Context&, const StateRows*, int64_t, Floats& rows, Floats& out)> call;
    // The same for one sequence in double precision; `state` is empty at the start.
    std::function<Doubles(const Floats& rows, int64_t n, Doubles& state)> formula;
};

struct Text {
    int64_t n;
    Floats rows;  // [n, width]
    Floats out, state;
};

// Floats that begin with a cache line, or beside one: new states may be stored past the caches.
class Block {
 public:
    Block(int64_t n, bool aligned) : room_(size_t(n + 32), NAN), n_(n) {
        const auto address = reinterpret_cast<uintptr_t>(room_.data()) / sizeof(float);
        first_ = (16 - address % 16) % 16 + (aligned ? 0 : 1);
    }
    float* data() { return room_.data() + first_; }
    Floats values() { return {data(), data() + n_}; }

 private:
    Floats room_;
    int64_t n_;
    size_t first_;
};

// Computes texts in passes of up to `cut` rows of each, whose rows lie in turns. In place: a
// state's block is read and written; else two blocks take turns.
void compute(Context& context, const Op& op, std::vector<Text>& texts, int64_t cut, bool in_place) {
    std::vector<Block> old, next;
    for (Text& text : texts) {
        old.emplace_back(op.state, true);
        next.emplace_back(op.state, old.size() % 2 == 1);
        text.out.clear();
    }
    bool more = true;
    for (int64_t at = 0; more; at += cut) {
        std::vector<std::vector<int32_t>> ids(texts.size());
        Floats rows;
        int32_t id = 0;
        more = false;
        for (int64_t i = 0; i < cut; i++) {
            for (size_t s = 0; s < texts.size(); s++) {
                const Text& text = texts[s];
                if (at + i >= text.n) continue;
                const auto from = text.rows.begin() + (at + i) * op.width;
                rows.insert(rows.end(), from, from + op.width);
                ids[s].push_back(id++);
                more = more || at + cut < text.n;
            }
        }
        std::vector<StateRows> sequences(texts.size());
        for (size_t s = 0; s < texts.size(); s++) {
            float* const before = old[s].data();
            sequences[s] = {ids[s].data(), int64_t(ids[s].size()), at ? before : nullptr,
                            in_place ? before : next[s].data()};
        }
        Floats out(size_t(id * op.out), NAN);
        op.call(context, sequences.data(), int64_t(sequences.size()), rows, out);
        for (size_t s = 0; s < texts.size(); s++) {
            if (!in_place) std::swap(old[s], next[s]);
            for (int32_t row : ids[s]) {
                const auto from = out.begin() + row * op.out;
                texts[s].out.insert(texts[s].out.end(), from, from + op.out);
            }
        }
    }
    for (size_t s = 0; s < texts.size(); s++) texts[s].state = old[s].values();
}

double distance(const Floats& got, const Doubles& expected) {
    if (got.size() != expected.size()) return INFINITY;
    double difference = 0, size = 1e-30;
    for (size_t i = 0; i < got.size(); i++) {
        if (!std::isfinite(got[i])) return INFINITY;
        difference = std::max(difference, std::fabs(got[i] - expected[i]));
        size = std::max(size, std::fabs(expected[i]));
    }
    return difference / size;
}

void test_op(const Op& op) {
    std::vector<Text> texts;
    for (int64_t n : {41, 1, 17, 3}) {
        Text text{n, random_floats(n * op.width), {}, {}};
        std::vector<Text> alone = {text};
        compute(*contexts[0], op, alone, n, true);
        Doubles state;
        CHECK(distance(alone[0].out, op.formula(text.rows, n, state)) < 1e-5);
        texts.push_back(alone[0]);
    }
    const std::vector<Text> expected = texts;
    for (int64_t cut : {1, 2, 5, 16, 33, 64}) {
        for (bool in_place : {false, true}) {
            compute(*contexts[size_t(cut) % 3], op, texts, cut, in_place);
            for (size_t s = 0; s < texts.size(); s++) {
                CHECK(same(texts[s].out, expected[s].out));
                CHECK(same(texts[s].state, expected[s].state));
            }
        }
    }
}

double silu_of(double x) {
    return x / (1 + std::exp(-x));
}
double softplus_of(double x) {
    return std::log1p(std::exp(x));
}

// x begins with the second value of its row, y with the third or, in place, where x does.
void test_convolve(int64_t channels, int64_t taps, bool biased, bool silu, bool in_place,
                   int64_t dilation = 1) {
    const Floats weight = random_floats(channels * taps), bias = random_floats(channels);
    const Convolution how = {channels, taps,    weight.data(), biased ? bias.data() : nullptr,
                             silu,     dilation};
    const int64_t width = channels + 3;
    Op op{width, width, how.state(), {}, {}};
    op.call = [=](Context& context, const StateRows* sequences, int64_t n, Floats& rows,
                  Floats& out) {
        if (in_place) {
            convolve(context, how, sequences, n, rows.data() + 1, width, rows.data() + 1, width);
            out = rows;
        } else {
            std::fill(out.begin(), out.end(), 0.0f);
            convolve(context, how, sequences, n, rows.data() + 1, width, out.data() + 2, width);
        }
    };
    op.formula = [=](const Floats& rows, int64_t n, Doubles&) {
        Doubles out(size_t(n * width), 0);
        if (in_place) out.assign(rows.begin(), rows.end());
        for (int64_t t = 0; t < n; t++) {
            for (int64_t c = 0; c < channels; c++) {
                double sum = biased ? bias[size_t(c)] : 0;
                for (int64_t j = 0; j < taps; j++) {
                    const int64_t from = t - (taps - 1 - j) * dilation;
                    if (from < 0) continue;
                    sum +=
                        double(weight[size_t(c * taps + j)]) * rows[size_t(from * width + c + 1)];
                }
                out[size_t(t * width + c + (in_place ? 1 : 2))] = silu ? silu_of(sum) : sum;
            }
        }
        return out;
    };
    test_op(op);
}

// Of several heads the first one keeps all and the last one forgets all, some steps of which reach
// 0: those in between fold their scale now and then.
void fade(Floats& a) {
    if (a.size() < 2) return;
    a.front() *= 1e-6f;
    a.back() *= 100;
}

void test_mamba2(int64_t n_head, int64_t head_dim, int64_t n_group, int64_t n_state,
                 bool in_place = false) {
    const Floats dt_bias = random_floats(n_head, 2), d = random_floats(n_head);
    Floats a = random_floats(n_head);
    for (float& v : a) v = -std::exp(v);
    fade(a);
    Mamba2Scan how;
    how.n_head = n_head, how.head_dim = head_dim, how.n_group = n_group, how.n_state = n_state;
    how.dt_bias = dt_bias.data(), how.a = a.data(), how.d = d.data();
    // x, B, C, dt, and two values that nothing reads.
    const int64_t inner = n_head * head_dim, b_at = inner, c_at = b_at + n_group * n_state,
                  dt_at = c_at + n_group * n_state, width = dt_at + n_head + 2;
    Op op{width, in_place ? width : inner, how.state(), {}, {}};
    op.call = [=](Context& context, const StateRows* sequences, int64_t n, Floats& rows,
                  Floats& out) {
        Mamba2Scan of = how;
        of.x = {rows.data(), width, head_dim};
        of.b = {rows.data() + b_at, width, n_state};
        of.c = {rows.data() + c_at, width, n_state};
        of.dt = {rows.data() + dt_at, width, 1};
        mamba2_scan(context, of, sequences, n,
                    in_place ? of.x : Heads{out.data(), inner, head_dim});
        if (in_place) out = rows;
    };
    op.formula = [=](const Floats& rows, int64_t n, Doubles& state) {
        state.assign(size_t(inner * n_state), 0);
        Doubles out;
        for (int64_t t = 0; t < n; t++) {
            const float* row = rows.data() + t * width;
            for (int64_t h = 0; h < n_head; h++) {
                const int64_t g = h / (n_head / n_group);
                const double dt = softplus_of(double(row[dt_at + h]) + dt_bias[size_t(h)]);
                const double decay = std::exp(dt * a[size_t(h)]);
                for (int64_t p = 0; p < head_dim; p++) {
                    const double x = row[h * head_dim + p];
                    double y = d[size_t(h)] * x;
                    for (int64_t i = 0; i < n_state; i++) {
                        double& s = state[size_t((h * head_dim + p) * n_state + i)];
                        s = decay * s + dt * x * row[b_at + g * n_state + i];
                        y += s * row[c_at + g * n_state + i];
                    }
                    out.push_back(y);
                }
            }
            if (in_place) out.insert(out.end(), row + inner, row + width);
        }
        return out;
    };
    test_op(op);
}

// What decays on its own: a state, or each of its rows, then also with a lower bound.
enum class Decay { state, rows, bounded };

void test_delta(int64_t n_k, int64_t n_v, int64_t dim, int64_t v_dim, bool tiled,
                Decay kind = Decay::state) {
    const int64_t n_decays = kind == Decay::state ? 1 : dim;  // of a head
    const Floats dt_bias = random_floats(n_v * n_decays, 2);
    Floats a = random_floats(n_v);
    for (float& v : a) v = -std::exp(v - 1);
    fade(a);
    DeltaRule how;
    how.by_row = kind != Decay::state;
    if (kind == Decay::bounded) how.lower_bound = -5;
    if (how.by_row) a.back() *= -1;  // the sign does not count
    how.n_k_head = n_k, how.n_v_head = n_v, how.head_dim = dim, how.v_head_dim = v_dim;
    how.tiled = tiled, how.dt_bias = dt_bias.data(), how.a = a.data(), how.eps = 1e-2f;
    how.beta_scale = tiled ? 1 : 1.75f;
    // q, k, v, alpha, beta, and a value that nothing reads.
    const int64_t k_at = n_k * dim, v_at = 2 * k_at, alpha_at = v_at + n_v * v_dim,
                  beta_at = alpha_at + n_v * n_decays, width = beta_at + n_v + 1,
                  out_width = n_v * v_dim;
    Op op{width, out_width, how.state(), {}, {}};
    op.call = [=](Context& context, const StateRows* sequences, int64_t n, Floats& rows,
                  Floats& out) {
        DeltaRule of = how;
        of.q = {rows.data(), width, dim};
        of.k = {rows.data() + k_at, width, dim};
        of.v = {rows.data() + v_at, width, v_dim};
        of.alpha = {rows.data() + alpha_at, width, n_decays};
        of.beta = {rows.data() + beta_at, width, 1};
        delta_rule(context, of, sequences, n, {out.data(), out_width, v_dim});
    };
    op.formula = [=](const Floats& rows, int64_t n, Doubles& state) {
        state.assign(size_t(n_v * dim * v_dim), 0);
        Doubles out;
        for (int64_t t = 0; t < n; t++) {
            const float* row = rows.data() + t * width;
            const auto normed = [&](const float* x, double by) {
                double squares = double(how.eps);
                for (int64_t i = 0; i < dim; i++) squares += double(x[i]) * x[i];
                Doubles y;
                for (int64_t i = 0; i < dim; i++) y.push_back(x[i] / std::sqrt(squares) / by);
                return y;
            };
            for (int64_t h = 0; h < n_v; h++) {
                const int64_t of_k = tiled ? h % n_k : h / (n_v / n_k);
                const Doubles q = normed(row + of_k * dim, std::sqrt(double(dim)));
                const Doubles k = normed(row + k_at + of_k * dim, 1);
                const double beta =
                    double(how.beta_scale) / (1 + std::exp(-double(row[beta_at + h])));
                Doubles decays;
                for (int64_t i = h * n_decays; i < (h + 1) * n_decays; i++) {
                    const double x = double(row[alpha_at + i]) + dt_bias[size_t(i)];
                    const double by = std::fabs(a[size_t(h)]);
                    decays.push_back(std::exp(how.lower_bound < 0
                                                  ? how.lower_bound / (1 + std::exp(-by * x))
                                                  : -by * softplus_of(x)));
                }
                double* const s = state.data() + h * dim * v_dim;
                for (int64_t c = 0; c < v_dim; c++) {
                    double seen = 0, y = 0;
                    for (int64_t i = 0; i < dim; i++) {
                        s[i * v_dim + c] *= decays[size_t(i % n_decays)];
                        seen += s[i * v_dim + c] * k[size_t(i)];
                    }
                    const double change = beta * (row[v_at + h * v_dim + c] - seen);
                    for (int64_t i = 0; i < dim; i++) {
                        s[i * v_dim + c] += k[size_t(i)] * change;
                        y += s[i * v_dim + c] * q[size_t(i)];
                    }
                    out.push_back(y);
                }
            }
        }
        return out;
    };
    test_op(op);
}

// Both orders of gate and norm, and the gate alone; x and z apart or close, and in place.
void test_gated_norm(bool sigmoid) {
    const int64_t rows = 5, n_group = 6, group = 20, width = n_group * group;
    const Floats x = random_floats(rows * (width + 4)), z = random_floats(rows * (width + 7)),
                 weight = random_floats(width);
    for (int64_t n_weights : {int64_t(0), int64_t(1), n_group}) {
        for (bool gate_first : {false, true}) {
            for (bool in_place : {false, true}) {
                const GatedNorm how = {n_group,   group, n_weights ? weight.data() : nullptr,
                                       n_weights, 1e-3f, gate_first,
                                       sigmoid};
                const auto op = [&](Context& context, int64_t first, int64_t n) {
                    Floats from(x.begin() + first * (width + 4),
                                x.begin() + (first + n) * (width + 4));
                    Floats gate(z.begin() + first * (width + 7),
                                z.begin() + (first + n) * (width + 7));
                    Floats out(size_t(n * width));
                    const Heads in = {from.data() + 2, width + 4, group};
                    gated_norm(context, how, n, in, {gate.data() + 3, width + 7, group},
                               in_place ? in : Heads{out.data(), width, group});
                    for (int64_t t = 0; t < n && in_place; t++) {
                        std::copy_n(in.x + t * in.row, width, out.begin() + t * width);
                    }
                    return out;
                };
                Doubles expected, size;
                for (int64_t i = 0; i < rows * n_group; i++) {
                    const int64_t t = i / n_group, g = i % n_group;
                    const float* from = x.data() + t * (width + 4) + 2 + g * group;
                    const float* gate = z.data() + t * (width + 7) + 3 + g * group;
                    Doubles y(from, from + group);
                    const auto times_gate = [&] {
                        for (size_t c = 0; c < y.size(); c++) {
                            y[c] *=
                                sigmoid ? 1 / (1 + std::exp(-double(gate[c]))) : silu_of(gate[c]);
                        }
                    };
                    if (gate_first || !n_weights) times_gate();
                    if (n_weights) {
                        double squares = 0;
                        for (double v : y) squares += v * v;
                        const double root = std::sqrt(squares / double(group) + double(how.eps));
                        for (size_t c = 0; c < y.size(); c++) {
                            y[c] *= weight[size_t(g % n_weights * group) + c] / root;
                        }
                        if (!gate_first) times_gate();
                    }
                    for (double v : y) {
                        expected.push_back(v);
                        size.push_back(std::fabs(v));
                    }
                }
                CHECK(close(steady(op, rows), expected, size, 1e-6));
            }
        }
    }
}

void test_all(const char*) {
    test_convolve(9, 3, false, false, false);
    test_convolve(300, 4, true, true, true);
    test_convolve(128, 4, false, true, false);
    test_convolve(33, 1, true, false, true);
    test_convolve(5, kMostTaps, true, true, true);
    test_convolve(300, 4, false, true, true, 3);
    test_convolve(7, 2, true, false, false, kMostTaps);
    test_convolve(7, 1, true, false, false, 5);
    test_mamba2(4, 16, 2, 8);
    test_mamba2(6, 24, 2, 16, true);
    test_mamba2(3, 5, 1, 7);
    test_mamba2(2, 64, 1, 128);
    test_mamba2(2, 80, 2, 37, true);
    test_delta(2, 4, 16, 16, false);
    test_delta(2, 6, 24, 24, true);
    test_delta(1, 2, 5, 7, false);
    test_delta(1, 1, 128, 128, false);
    test_delta(3, 3, 33, 40, true);
    test_delta(1, 1, 1100, 3, false);
    for (const Decay kind : {Decay::rows, Decay::bounded}) {
        test_delta(2, 2, 16, 16, false, kind);
        test_delta(2, 4, 24, 40, true, kind);
        test_delta(1, 2, 5, 7, false, kind);
        test_delta(1, 1, 128, 128, false, kind);
        test_delta(1, 1, 700, 3, false, kind);
    }
    for (const bool sigmoid : {false, true}) test_gated_norm(sigmoid);
}

}  // namespace

int main() {
    for_each_isa(test_all);
    return check::summary("test_recurrence");
}
