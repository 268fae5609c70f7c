// Matrix products and element-wise operators, and how they are split among threads.
#include "ggml/ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "ggml/gate_limit.h"
#include "ggml/math.h"
#include "ggml/status.h"
#include "kernels/kernels.h"
#include "ops/grain.h"

namespace ggml {

namespace {

constexpr int kF32 = int(DType::F32);

// Small pieces in a thread's share of the work, at most. Enough that the others do not wait long
// for a core that is busy with something else.
constexpr int64_t kPieces = 8;
// Bytes of weights that a piece has at least, for one row. The processor's prefetchers begin again
// in every piece: SmolLM2's products of 200 and 340 KB take 12 us in 16 pieces, 9 in two and four.
constexpr int64_t kLeastBytes = 1 << 16;

// Strips that kernels of several rows compute together, at most. Others at the end of a piece take
// up to twice as long.
constexpr int64_t kStripsOfTile = 4;

// Strips of a piece, of n that read so many bytes, counted for each row. Kernels of one row compute
// two together at most.
int64_t grain_for(const Context& context, int64_t n, int64_t bytes, bool one_row) {
    const int64_t threads = context.threads.active();
    const int64_t pieces =
        threads * std::clamp<int64_t>(bytes / (threads * kLeastBytes), 1, kPieces);
    const int64_t grain = (n + pieces - 1) / pieces;
    return one_row ? grain + grain % 2
                   : std::max(kStripsOfTile,
                              (grain + kStripsOfTile / 2) / kStripsOfTile * kStripsOfTile);
}

// Strips of a call, in pieces. The processor's prefetchers begin again in every piece, so each
// thread first takes a large one, three quarters of its share. The small ones behind these are for
// whoever is done first: a core may be busy with something else, and rows of experts differ. With
// small pieces alone mixtures are 6 to 7% slower.
struct Pieces {
    int64_t total, threads, small, large = 0;

    Pieces(int64_t strips, int64_t n_threads, int64_t grain)
        : total(strips), threads(n_threads), small(grain) {
        large = std::max(small, total * 3 / (4 * threads * small) * small);
    }
    int64_t n() const {
        const int64_t rest = total - threads * large;
        return rest < 0 ? (total + large - 1) / large : threads + (rest + small - 1) / small;
    }
    int64_t begin(int64_t i) const {
        const int64_t at = i < threads ? i * large : threads * large + (i - threads) * small;
        return std::min(at, total);
    }
};

// Calls compute(begin, end) for all strips of a call, by pieces.
template <typename F>
void run_pieces(Context& context, int64_t strips, int64_t grain, const F& compute) {
    const Pieces pieces(strips, context.threads.active(), grain);
    context.threads.run(pieces.n(), 1, [&](int64_t first, int64_t last, int) {
        for (int64_t i = first; i < last; i++) compute(pieces.begin(i), pieces.begin(i + 1));
    });
}

// Tokens whose activations stay in a core's cache while it walks over a piece of the rows. Weights
// are unpacked once for all of them.
constexpr int64_t kTokens = 256;
// Results after which what follows a product is done: as many stay in the L2 cache. They are those
// of kManyStrips strips or a multiple, which the kernels read in one go.
constexpr int64_t kResults = 1 << 15, kManyStrips = 16;

int64_t strips_of(const Matrix& w) {
    return (w.rows + kStrip - 1) / kStrip;
}

// The rows [first, first + n) of an input, and where their results begin, `ldy` values apart.
struct Rows {
    int64_t first, n;
    float* y;
    int64_t ldy;
};

// What follows a product, in place.
struct After {
    const float* bias = nullptr;
    std::optional<Activation> act = {};
};

// Computes strips [first, first + n) of one weight (eight rows each, fewer at the end).
void few_strips(const cpu::Kernels& kernels, const Matrix& w, const After& after, int64_t first,
                int64_t n, const Input& x, const Rows& of) {
    const int64_t row = first * kStrip, ldy = of.ldy;
    const int64_t rows = std::min(n * kStrip, w.rows - row), whole = rows / kStrip;
    const uint8_t* data = w.data + row * w.row_bytes();
    for (int64_t t0 = 0; t0 < of.n; t0 += kTokens) {
        const int64_t nt = std::min(kTokens, of.n - t0), t = of.first + t0;
        float* y = of.y + t0 * ldy + row;
        if (w.layout == Layout::rows) {
            kernels.matmul[int(w.type)](data, w.row_bytes(), rows, w.cols, x.x + t * x.cols, x.cols,
                                        nt, y, ldy);
        } else {
            kernels.strip[int(w.type)](data, whole, x.q8, t, nt, y, ldy);
        }
    }
    if (w.layout != Layout::rows && whole < n) {  // the last strip has padding rows
        data += whole * kStrip * w.row_bytes();
        float part[64 * kStrip], *y = of.y + row + whole * kStrip;
        for (int64_t t0 = 0; t0 < of.n; t0 += 64) {
            const int64_t nt = std::min<int64_t>(64, of.n - t0);
            kernels.strip[int(w.type)](data, 1, x.q8, of.first + t0, nt, part, kStrip);
            for (int64_t t = 0; t < nt; t++) {
                std::copy_n(part + t * kStrip, rows % kStrip, y + (t0 + t) * ldy);
            }
        }
    }
    if (!w.scale && !after.bias && !after.act) return;
    for (int64_t t = 0; t < of.n; t++) {
        float* const y = of.y + t * ldy + row;
        if (w.scale) {
            for (int64_t i = 0; i < rows; i++) y[i] *= *w.scale;
        }
        if (after.bias) kernels.add_scaled[kF32](y, 1, after.bias + row, rows);
        if (after.act) kernels.activate[kF32](*after.act, 0, y, rows);
    }
}

// The same. Where something follows the product of many tokens, it is done while the results are in
// the L2 cache.
void some_strips(const cpu::Kernels& kernels, const Matrix& w, const After& after, int64_t first,
                 int64_t n, const Input& x, const Rows& of) {
    const bool apart = of.n > 1 && (w.scale || after.bias || after.act);
    if (!apart) return few_strips(kernels, w, after, first, n, x, of);
    for (int64_t t = 0; t < of.n; t += kTokens) {
        const int64_t nt = std::min(kTokens, of.n - t);
        const Rows some{of.first + t, nt, of.y + t * of.ldy, of.ldy};
        const int64_t strips =
            std::max<int64_t>(1, kResults / (nt * kStrip * kManyStrips)) * kManyStrips;
        for (int64_t i = 0; i < n; i += strips) {
            few_strips(kernels, w, after, first + i, std::min(strips, n - i), x, some);
        }
    }
}

void require_fresh(const Input& x) {
    if (x.stale()) throw Error(Code::internal, "an input's buffer was filled with other rows");
}

// What a call multiplies: a matrix, and rows of an input.
struct Factors {
    const Matrix& w;
    const Input& x;
    After after;
    Rows rows;
};

// Computes `n` products in one region. of(i): the factors of product i.
template <typename F>
void multiply_all(Context& context, int64_t n, const F& of) {
    OpTimer timer(context.profile, "matmul");
    int64_t total = 0, bytes = 0, of_rows = 0;
    bool one_row = true;
    for (int64_t i = 0; i < n; i++) {
        const Factors f = of(i);
        require_fresh(f.x);
        total += strips_of(f.w);
        bytes += f.w.bytes();
        of_rows += f.w.bytes() * f.rows.n;
        one_row = one_row && f.rows.n == 1;
    }
    timer.read(uint64_t(bytes));
    const int64_t grain = grain_for(context, total, of_rows, one_row);
    run_pieces(context, total, grain, [&](int64_t begin, int64_t end) {
        int64_t first = 0;
        for (int64_t i = 0; i < n && first < end; i++) {
            const Factors f = of(i);
            const int64_t strips = strips_of(f.w);
            const int64_t from = std::max(begin, first), to = std::min(end, first + strips);
            if (from < to) {
                some_strips(context.kernels, f.w, f.after, from - first, to - from, f.x, f.rows);
            }
            first += strips;
        }
    });
}

}  // namespace

void matmul(Context& context, const Input& x, std::initializer_list<Product> products) {
    multiply_all(context, int64_t(products.size()), [&](int64_t i) {
        const Product& p = products.begin()[i];
        return Factors{p.w, x, {p.bias}, {0, x.rows, p.y, p.w.rows}};
    });
}

void matmul_each(Context& context, const OwnProduct* products, int64_t n) {
    multiply_all(context, n, [&](int64_t i) {
        const OwnProduct& p = products[i];
        return Factors{*p.w, p.x, {p.bias, p.act}, {0, p.x.rows, p.y, p.w->rows}};
    });
}

void matmul_heads(Context& context, const Input& x, const Matrix* w, int64_t n_head,
                  const Heads& y) {
    OpTimer timer(context.profile, "matmul_heads");
    const int64_t strips = strips_of(w[0]), rows = x.rows / n_head, bytes = n_head * w[0].bytes();
    timer.read(uint64_t(bytes));
    require_fresh(x);
    const int64_t grain = grain_for(context, n_head * strips, bytes * rows, rows == 1);
    context.threads.run(n_head * strips, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t h = begin / strips; h * strips < end; h++) {
            const int64_t from = std::max<int64_t>(begin - h * strips, 0);
            const int64_t to = std::min(end - h * strips, strips);
            some_strips(context.kernels, w[h], {}, from, to - from, x,
                        {h * rows, rows, y.x + h * y.head, y.row});
        }
    });
}

void copy_heads(Context& context, const Heads& from, int64_t n, int64_t n_head, int64_t width,
                const Heads& to) {
    const OpTimer timer(context.profile, "copy_heads");
    context.threads.run(n, cpu::row_grain(n_head * width), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            for (int64_t h = 0; h < n_head; h++) {
                std::copy_n(from.x + t * from.row + h * from.head, width,
                            to.x + t * to.row + h * to.head);
            }
        }
    });
}

uint64_t read_memory(Context& context, const uint8_t* data, int64_t n) {
    std::atomic<uint64_t> total{0};
    context.threads.run(n / 64, 1 << 14, [&](int64_t begin, int64_t end, int) {
        uint64_t part[8] = {};
        const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
        for (int64_t i = 8 * begin; i < 8 * end; i += 8) {
            for (int j = 0; j < 8; j++) part[j] += words[i + j];
        }
        for (uint64_t p : part) total += p;
    });
    return total;
}

Q8Rows Q8Rows::carve(Carver& carver, int64_t rows, int64_t max_cols) {
    const int64_t blocks = (max_cols + kQ - 1) / kQ;
    Q8Rows q8;
    carver.take(q8.q, {rows, blocks, kQ});
    carver.take(q8.d, {rows, blocks});
    carver.take(q8.s8, {rows, blocks});
    carver.take(q8.ds, {rows, blocks});
    carver.take(q8.s16, {rows, blocks, 2});
    return q8;
}

InputBuffer::InputBuffer(Carver& carver, int64_t max_rows, int64_t max_cols)
    : q8_(Q8Rows::carve(carver, max_rows, max_cols)) {}

Input Input::part(int64_t first, int64_t n_rows, int64_t n_cols) const {
    Input some = *this;
    some.rows = n_rows;
    some.cols = n_cols;
    if (x) some.x += first;
    if (!q8.q) return some;
    const int64_t block = first / kQ;
    some.q8 = {n_cols,        q8.q + first,  q8.d + block,
               q8.s8 + block, q8.ds + block, q8.s16 + 2 * block};
    return some;
}

Input InputBuffer::filled(const float* x, int64_t rows, int64_t cols) {
    Input input{x, rows, cols, q8_, &fillings_, ++fillings_};
    input.q8.cols = cols;
    return input;
}

Input InputBuffer::prepare(Context& context, const float* x, int64_t rows, int64_t cols,
                           bool quantise) {
    if (!quantise) return {x, rows, cols, {}};
    const OpTimer timer(context.profile, "quantise");
    const Input input = filled(x, rows, cols);
    context.threads.run(rows, cpu::row_grain(cols), [&](int64_t begin, int64_t end, int) {
        context.kernels.quantize[kF32](x, begin, end - begin, input.q8);
    });
    return input;
}

Input InputBuffer::gather(Context& context, const Input& from, const int32_t* rows, int64_t n) {
    require_fresh(from);
    const OpTimer timer(context.profile, "gather_rows");
    const Input input = filled(nullptr, n, from.cols);
    const int64_t cols = from.cols, blocks = cols / kQ;
    const Q8Rows &to = input.q8, &of = from.q8;
    context.threads.run(n, 1 + 16384 / cols, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t t = rows[i];
            std::copy_n(of.q + t * cols, cols, to.q + i * cols);
            std::copy_n(of.d + t * blocks, blocks, to.d + i * blocks);
            std::copy_n(of.s8 + t * blocks, blocks, to.s8 + i * blocks);
            std::copy_n(of.ds + t * blocks, blocks, to.ds + i * blocks);
            std::copy_n(of.s16 + 2 * t * blocks, 2 * blocks, to.s16 + 2 * i * blocks);
        }
    });
    return input;
}

void rms_norm(Context& context, const float* x, const float* weight, float eps, int64_t rows,
              int64_t n, float* y, int64_t stride, int64_t n_weights) {
    const OpTimer timer(context.profile, "rms_norm");
    if (stride == 0) stride = n;
    context.threads.run(rows, cpu::row_grain(n), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            const float* const own = weight ? weight + t % n_weights * n : nullptr;
            context.kernels.rms_norm[kF32](x + t * stride, own, eps, n, y + t * stride);
        }
    });
}

void divide_by_rms(Context& context, const float* x, float eps, int64_t rows, int64_t n,
                   int64_t width, float* y) {
    const OpTimer timer(context.profile, "divide_by_rms");
    constexpr int64_t kLanes = 8;  // sums side by side, which do not wait for each other
    context.threads.run(rows, cpu::row_grain(n), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            double squares[kLanes] = {};
            for (int64_t i = 0; i < n; i++) {
                squares[i % kLanes] += double(x[t * n + i]) * double(x[t * n + i]);
            }
            const double sum = std::accumulate(squares, squares + kLanes, 0.0);
            const auto factor = float(1 / std::sqrt(sum / double(n) + double(eps)));
            for (int64_t c = 0; c < width; c++) y[t * width + c] *= factor;
        }
    });
}

void layer_norm(Context& context, const float* x, const float* weight, const float* bias, float eps,
                int64_t rows, int64_t n, float* y, int64_t n_weights) {
    const OpTimer timer(context.profile, "layer_norm");
    context.threads.run(rows, cpu::row_grain(n), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            const int64_t at = t % n_weights * n;
            context.kernels.layer_norm[kF32](x + t * n, weight + at, bias ? bias + at : nullptr,
                                             eps, n, y + t * n);
        }
    });
}

void scale(Context& context, float* x, float factor, int64_t n) {
    const OpTimer timer(context.profile, "scale");
    context.threads.run(n, 1 << 14, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) x[i] *= factor;
    });
}

void multiply(Context& context, float* x, const float* y, int64_t n) {
    const OpTimer timer(context.profile, "multiply");
    context.threads.run(n, 1 << 14, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) x[i] *= y[i];
    });
}

void softcap(Context& context, float* x, float cap, int64_t n) {
    const OpTimer timer(context.profile, "softcap");
    context.threads.run(n, 1 << 12, [&](int64_t begin, int64_t end, int) {
        context.kernels.softcap[kF32](x + begin, cap, end - begin);
    });
}

void add_scaled(Context& context, float* x, float scale, const float* y, int64_t n) {
    const OpTimer timer(context.profile, "add_scaled");
    context.threads.run(n, 1 << 14, [&](int64_t begin, int64_t end, int) {
        context.kernels.add_scaled[kF32](x + begin, scale, y + begin, end - begin);
    });
}

void add(Context& context, float* x, const float* y, int64_t n) {
    const OpTimer timer(context.profile, "add");
    context.threads.run(n, 1 << 14, [&](int64_t begin, int64_t end, int) {
        context.kernels.add_scaled[kF32](x + begin, 1, y + begin, end - begin);
    });
}

void gated_activation(Context& context, Activation act, float* gate, const float* up, int64_t n) {
    const OpTimer timer(context.profile, "gated_activation");
    context.threads.run(n, 1 << 12, [&](int64_t begin, int64_t end, int) {
        context.kernels.gate[kF32](act, gate + begin, up + begin, end - begin);
    });
}

void limited_activation(Context& context, Activation act, const GateLimit& limit, float* gate,
                        const float* up, int64_t n) {
    if (limit.most == 0) return gated_activation(context, act, gate, up, n);
    const OpTimer timer(context.profile, "limited_activation");
    const float most = limit.most;
    context.threads.run(n, 1 << 12, [&](int64_t begin, int64_t end, int) {
        const auto limit_gates = [&] {
            for (int64_t i = begin; i < end; i++) gate[i] = at_most(gate[i], most);
        };
        if (limit.before) limit_gates();
        context.kernels.activate[kF32](act, 0, gate + begin, end - begin);
        if (!limit.before) limit_gates();
        for (int64_t i = begin; i < end; i++) gate[i] *= within(up[i], most);
    });
}

void gate_by(Context& context, GateBy by, float* x, float* gate, int64_t n, int64_t width) {
    const OpTimer timer(context.profile, "gate_by");
    context.threads.run(
        n, std::max<int64_t>(1, (1 << 12) / width), [&](int64_t begin, int64_t end, int) {
            if (by == GateBy::sigmoid && width == 1) {
                return context.kernels.sigmoid_gate[kF32](x + begin, gate + begin, end - begin);
            }
            for (int64_t i = begin; i < end; i++) {
                const float factor =
                    by == GateBy::sigmoid ? sigmoid(gate[i]) : float(softplus_f64(double(gate[i])));
                for (int64_t k = i * width; k < (i + 1) * width; k++) x[k] *= factor;
            }
        });
}

void activation(Context& context, Activation act, float* x, int64_t n) {
    const OpTimer timer(context.profile, "activation");
    context.threads.run(n, 1 << 12, [&](int64_t begin, int64_t end, int) {
        context.kernels.activate[kF32](act, 0, x + begin, end - begin);
    });
}

void xielu(Context& context, const Xielu& how, float* x, int64_t n) {
    const OpTimer timer(context.profile, "xielu");
    context.threads.run(n, 1 << 12, [&](int64_t begin, int64_t end, int) {
        context.kernels.xielu[kF32](how, x + begin, end - begin);
    });
}

}  // namespace ggml
