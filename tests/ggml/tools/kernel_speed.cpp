// Measures every kernel of kernels.inc in the instruction sets that this processor has:
//   kernel_speed [PART]      those whose name and instruction set, as printed, contain PART
// One row each, of the best of several calls with one thread: GB/s of what a call reads and writes,
// and of products also billions of multiply-adds per second, for one token and for 64. Weights are
// 256 rows of 4,096 columns, which mostly are in the L2 cache: this tells of kernels, not of
// memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ggml/attention.h"
#include "ggml/neurons.h"
#include "ggml/random_blocks.h"
#include "ggml/recurrence.h"
#include "kernels/kernels.h"

using namespace ggml;
using namespace ggml::cpu;

namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kRows = 256, kCols = 4096, kTokens = 64;
constexpr int64_t kHeadDim = 128, kPages = 32;  // of keys and values
constexpr double kFloat = sizeof(float), kSeconds = 0.05;

struct Subject {
    double bytes = 0;     // that a call for one token reads and writes
    double products = 0;  // multiply-adds of a token; 0: calls are not made for several tokens
    std::function<void(int64_t nt)> call = {};
    std::function<void()> prepare = [] {};  // before each call; not timed
};

std::mt19937 rng(1);

Floats floats(int64_t n, float least = -1, float most = 1) {
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = least + (most - least) * float(rng() >> 8) / float(1 << 24);
    return v;
}

// Random bytes with scales that are numbers: encoders would take longer than all kernels.
Bytes random_rows(DType type, int64_t rows, int64_t cols) {
    const DTypeInfo& format = info(type);
    if (!format.is_quantised()) return random_blocks(type, floats(rows * cols));
    Bytes bytes(size_t(rows * format.size(cols)));
    for (uint8_t& b : bytes) b = uint8_t(rng());
    for (size_t at = 0; at < bytes.size(); at += size_t(format.bytes)) {
        set_scales(type, &bytes[at], f32_to_f16(0.01f));
    }
    return bytes;
}

// kRows rows as stored, and packed as kernels want them; made once.
enum class Packed { none, strips, folded, tiles };
const uint8_t* rows_of(DType type, Packed how) {
    static std::map<std::pair<DType, Packed>, Bytes> made;
    Bytes& to = made[{type, how}];
    if (!to.empty()) return to.data();
    const bool as_stored = how == Packed::none || !info(type).is_quantised();
    to = as_stored ? random_rows(type, kRows, kCols) : Bytes();
    if (as_stored) return to.data();
    const uint8_t* const from = rows_of(type, Packed::none);
    const int64_t stride = info(type).size(kCols);
    to.resize(size_t(kRows * stride));
    for (int64_t r = 0; r < kRows; r += how == Packed::folded ? 1 : kStrip) {
        const uint8_t* const row = from + r * stride;
        uint8_t* const out = to.data() + r * stride;
        if (how == Packed::strips) pack_strip(type, row, kStrip, kCols, out);
        if (how == Packed::folded) fold_row(type, row, kCols, out);
        if (how == Packed::tiles) pack_tile(type, NeuronRows::Tiles::blocks, row, kCols, out);
    }
    return to.data();
}

// The tokens that all products share, and room for results.
struct Tokens {
    Tokens()
        : x(floats(kTokens * kCols)),
          y(size_t(kTokens * kCols)),
          q(x.size()),
          d(x.size() / kQ),
          ds(d.size()),
          s8(d.size()),
          s16(2 * d.size()),
          ids(kRows) {
        q8 = {kCols, q.data(), d.data(), s8.data(), ds.data(), s16.data()};
        kernels_for("generic")->quantize[int(DType::F32)](x.data(), 0, kTokens, q8);
        std::iota(ids.begin(), ids.end(), 0);
        for (int64_t t = 0; t <= kTokens; t++) first.push_back(int32_t(t * kMostRows));
        for (int64_t i = 0; i < kTokens * kMostRows; i++) row.push_back(int32_t(i % kMostRows));
        h = floats(int64_t(row.size()));
    }
    Floats x, y;
    std::vector<int8_t> q;
    Floats d, ds;
    std::vector<int32_t> s8;
    std::vector<int16_t> s16;
    std::vector<int32_t> ids;
    Q8Rows q8;
    std::vector<int32_t> first, row;  // of WeightedRows: each token uses all rows
    Floats h;
};
Tokens& tokens() {
    static Tokens all;
    return all;
}

double weights_bytes(DType type) {
    return double(kRows * info(type).size(kCols));
}
constexpr double kProducts = double(kRows * kCols);

// ---- One function for each operation ----------------------------------------------------------

Subject of_matmul(matmul_fn fn, DType type) {
    const uint8_t* const w = rows_of(type, Packed::none);
    return {weights_bytes(type), kProducts, [=](int64_t nt) {
                Tokens& t = tokens();
                fn(w, info(type).size(kCols), kRows, kCols, t.x.data(), kCols, nt, t.y.data(),
                   kRows);
            }};
}

Subject of_strip(strip_fn fn, DType type) {
    const uint8_t* const w = rows_of(type, Packed::strips);
    return {weights_bytes(type), kProducts, [=](int64_t nt) {
                fn(w, kRows / kStrip, tokens().q8, 0, nt, tokens().y.data(), kRows);
            }};
}

// Products and sums of neuron rows, of kMostRows at a time as operators call them. The order of
// folded columns makes no difference here.
Subject dots(dot_fn fn, DType type, Packed how) {
    const uint8_t* const w = rows_of(type, how);
    return {weights_bytes(type), kProducts, [=](int64_t nt) {
                Tokens& t = tokens();
                const NeuronInput in{t.x.data(), t.q8, t.q8, t.q8};
                for (int64_t r = 0; r < kRows; r += kMostRows) {
                    fn(w, info(type).size(kCols), &t.ids[size_t(r)], kMostRows, kCols, in,
                       t.ids.data(), nt, t.y.data());
                }
            }};
}
Subject of_dot(dot_fn fn, DType type) {
    return dots(fn, type, Packed::folded);
}
Subject of_stored_dot(stored_dot_fn fn, DType type) {
    return dots(fn, type, Packed::none);
}

Subject sums(add_fn fn, DType type, Packed how) {
    const uint8_t* const w = rows_of(type, how);
    return {weights_bytes(type), kProducts,
            [=](int64_t nt) {
                Tokens& t = tokens();
                const WeightedRows weighted{t.first.data(), t.row.data(), t.h.data()};
                for (int64_t r = 0; r < kRows; r += kMostRows) {
                    fn(w, info(type).size(kCols), &t.ids[size_t(r)], kMostRows, kCols, weighted, nt,
                       t.y.data(), kCols);
                }
            },
            [] { std::fill(tokens().y.begin(), tokens().y.end(), 0.0f); }};
}
Subject of_add(add_fn fn, DType type) {
    return sums(fn, type, Packed::folded);
}
Subject of_stored_add(stored_add_fn fn, DType type) {
    return sums(fn, type, Packed::none);
}
Subject of_tiled_add(tiled_add_fn fn, DType type) {
    return sums(fn, type, Packed::tiles);
}

// Calls over kPages pages of keys or values: each(run, next run, nt).
template <typename F>
Subject pages(DType type, bool values, const F& each) {
    const int64_t run = info(type).size(kHeadDim * kKvPage);
    const auto from = std::make_shared<Bytes>(size_t(run * kPages));
    for (int64_t p = 0; p < kPages; p++) {
        const Bytes rows = random_rows(type, kKvPage, kHeadDim);
        (values ? rows_to_values : rows_to_keys)(type, kHeadDim, rows.data(), kKvPage,
                                                 from->data() + p * run);
    }
    return {double(from->size()), double(kPages * kKvPage * kHeadDim),
            [=](int64_t nt) {
                for (int64_t p = 0; p < kPages; p++) {
                    each(from->data() + p * run, from->data() + (p + 1) % kPages * run, nt);
                }
            },
            [] { std::fill(tokens().y.begin(), tokens().y.end(), 0.0f); }};
}
Subject of_accumulate(accumulate_fn fn, DType type) {
    const auto call = [=](const uint8_t* run, const uint8_t* next, int64_t nt) {
        fn(run, next, info(type).size(kHeadDim), kKvPage, kHeadDim, tokens().x.data(), kKvPage, nt,
           tokens().y.data(), kHeadDim);
    };
    return pages(type, true, call);
}
Subject of_scores(scores_fn fn, DType type) {
    return pages(type, false, [=](const uint8_t* run, const uint8_t* next, int64_t nt) {
        fn(run, next, kHeadDim, kKvPage, tokens().x.data(), nt, tokens().y.data(), kKvPage);
    });
}
Subject of_weigh(weigh_fn fn, DType type) {
    const auto a = std::make_shared<Floats>(floats(kTokens * kKvPage, 0, 1));
    return pages(type, true, [=](const uint8_t* run, const uint8_t* next, int64_t nt) {
        fn(run, next, kHeadDim, 0, kKvPage, a->data(), kKvPage, nt, tokens().y.data(), kHeadDim);
    });
}

Subject of_quantize(quantize_fn fn, DType) {
    return {kCols * (kFloat + 1), 0, [=](int64_t) { fn(tokens().x.data(), 0, 1, tokens().q8); }};
}

// A call that may change two rows of kCols values at x. `rows`: how many are read and written.
Subject row(double rows, const std::function<void(float* x, const float* y)>& call) {
    return {rows * kCols * kFloat, 0,
            [=](int64_t) { call(tokens().y.data(), tokens().x.data() + kCols); },
            [] { std::copy_n(tokens().x.begin(), 2 * kCols, tokens().y.begin()); }};
}
Subject of_softmax(softmax_fn fn, DType) {
    return row(2, [=](float* x, const float*) {
        float top, sum;
        for (int64_t i = 0; i < kCols; i += kAttentionBlock) {
            fn(x + i, 0, kAttentionBlock, 0, &top, &sum);
        }
    });
}
Subject of_activate(activate_fn fn, DType) {
    return row(2, [=](float* x, const float*) { fn(Activation::silu, 0, x, kCols); });
}
Subject of_gate(gate_fn fn, DType) {
    return row(3, [=](float* x, const float* y) { fn(Activation::silu, x, y, kCols); });
}
Subject of_sigmoid_gate(sigmoid_gate_fn fn, DType) {
    return row(4, [=](float* x, const float*) { fn(x, x + kCols, kCols); });
}
Subject of_softcap(softcap_fn fn, DType) {
    return row(2, [=](float* x, const float*) { fn(x, 30, kCols); });
}
Subject of_xielu(xielu_fn fn, DType) {
    return row(2, [=](float* x, const float*) { fn({0.5f, -0.8f, 0.5f, -1e-6f}, x, kCols); });
}
Subject of_add_scaled(add_scaled_fn fn, DType) {
    return row(3, [=](float* x, const float* y) { fn(x, 0.3f, y, kCols); });
}
Subject of_mix(mix_fn fn, DType) {
    return row(3, [=](float* x, const float* y) { fn(x, 0.3f, y, 0.7f, kCols); });
}
Subject of_rms_norm(rms_norm_fn fn, DType) {
    return row(3, [=](float* x, const float* y) { fn(y, y + kCols, 1e-5f, kCols, x); });
}
Subject of_layer_norm(layer_norm_fn fn, DType) {
    return row(4,
               [=](float* x, const float* y) { fn(y, y + kCols, y + 2 * kCols, 1e-5f, kCols, x); });
}
Subject of_rope(rope_fn fn, DType) {
    return row(2, [=](float* x, const float* y) {
        fn(x, kCols / kHeadDim, kHeadDim, y, kHeadDim / 2, RopePairs::halves);
    });
}

// A row of a sequence, and the state, which stays as it began.
struct State {
    explicit State(int64_t n) : before(floats(n, 0.1f, 0.2f)), after(before) {}
    StateRows rows() { return {&at, 1, before.data(), after.data()}; }
    const int32_t at = 0;
    const Floats before;
    Floats after;
};
Subject of_convolve(convolve_fn fn, DType) {
    constexpr int64_t taps = 4;
    const auto state = std::make_shared<State>((taps - 1) * kCols);
    return row(2 + 2 * (taps - 1) + taps, [=](float* x, const float* y) {
        const Convolution how = {kCols, taps, y, nullptr, true};
        for (int64_t c = 0; c < kCols; c += kConvolved) {
            fn(how, c, kConvolved, state->rows(), x, kCols, x, kCols);
        }
    });
}
Subject of_scan(scan_fn fn, DType) {
    Mamba2Scan how;
    how.n_head = 64, how.head_dim = 64, how.n_group = 8, how.n_state = 128;
    const auto state = std::make_shared<State>(how.state());
    const auto a = std::make_shared<Floats>(floats(how.n_head, -1, -0.1f));
    return {2 * kFloat * double(how.state()), 0, [=](int64_t) mutable {
                float* const x = tokens().x.data();
                how.dt_bias = how.d = x, how.a = a->data();
                how.x = {x, 0, how.head_dim}, how.b = how.c = {x, 0, how.n_state};
                how.dt = {x, 0, 1};
                for (int64_t h = 0; h < how.n_head; h++) {
                    fn(how, h, state->rows(), {tokens().y.data(), 0, how.head_dim});
                }
            }};
}
Subject of_delta(delta_fn fn, DType) {
    DeltaRule how;
    how.n_k_head = 16, how.n_v_head = 32, how.head_dim = how.v_head_dim = kHeadDim;
    const auto state = std::make_shared<State>(how.state());
    const auto a = std::make_shared<Floats>(floats(how.n_v_head, -1, -0.1f));
    const auto unit = std::make_shared<Floats>(floats(how.n_k_head * kHeadDim, -0.1f, 0.1f));
    return {2 * kFloat * double(how.state()), 0, [=](int64_t) mutable {
                float* const x = tokens().x.data();
                how.dt_bias = x, how.a = a->data();
                how.q = how.k = {unit->data(), 0, kHeadDim}, how.v = {x, 0, kHeadDim};
                how.alpha = how.beta = {x, 0, 1};
                for (int64_t h = 0; h < how.n_v_head; h++) {
                    fn(how, h, state->rows(), {tokens().y.data(), 0, kHeadDim});
                }
            }};
}

Subject of_sketch(sketch_fn fn, DType) {
    constexpr int64_t rows = 4096, bytes = kCols / 8;
    const auto signs = std::make_shared<Bytes>(size_t(rows * bytes));
    for (uint8_t& b : *signs) b = uint8_t(rng());
    const auto counts = std::make_shared<std::vector<int32_t>>(rows);
    return {double(rows * bytes), 0,
            [=](int64_t) { fn(signs->data(), rows, bytes, signs->data(), counts->data()); }};
}

// ---- All of them ------------------------------------------------------------------------------

// Seconds of the best call: other work can only make one longer.
double best(const Subject& subject, int64_t nt) {
    const auto now = [] { return std::chrono::steady_clock::now(); };
    using Seconds = std::chrono::duration<double>;
    double least = 1e30;
    const auto start = now();
    for (int i = 0; i < 3 || Seconds(now() - start).count() < kSeconds; i++) {
        subject.prepare();
        const auto begin = now();
        subject.call(nt);
        least = std::min(least, Seconds(now() - begin).count());
    }
    return least;
}

void measure(const char* name, const char* isa, const Subject& subject) {
    const double one = best(subject, 1);
    std::printf("%-24s %-9s %8.2f GB/s", name, isa, subject.bytes / one / 1e9);
    if (subject.products > 0) {
        const double many = best(subject, kTokens) / kTokens;
        std::printf(" %8.2f Gmul/s %8.2f with %d tokens", subject.products / one / 1e9,
                    subject.products / many / 1e9, int(kTokens));
    }
    std::printf("\n");
    std::fflush(stdout);
}

struct Row {
    const char *name, *isa;
    Subject (*subject)(const Kernels&);
};
const Row kList[] = {
#define KERNEL(op, dtype, isa, fn) \
    {#fn, #isa, [](const Kernels& k) { return of_##op(k.op[int(DType::dtype)], DType::dtype); }},
#include "kernels/kernels.inc"
#undef KERNEL
};

}  // namespace

int main(int argc, char** argv) {
    const std::string part = argc > 1 ? argv[1] : "";
    int measured = 0;
    for (const Row& row : kList) {
        const Kernels* const kernels = kernels_for(row.isa);
        if (!kernels || (row.name + std::string(" ") + row.isa).find(part) == std::string::npos) {
            continue;
        }
        measure(row.name, row.isa, row.subject(*kernels));
        measured++;
    }
    if (!measured) std::fprintf(stderr, "no kernel of this build and processor has %s\n", argv[1]);
    return measured ? 0 : 1;
}
