// Measures the operators of recurrence.h with the sizes of models: state_speed THREADS ROWS CALLS.
// Each call passes one sequence's rows through all such layers of a model, whose states do not fit
// a cache. Prints milliseconds of the best call for each operator: by the clock, and of a row by
// the clock and of all threads' CPU time, which other work beside it changes least.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

#include "ggml/context.h"
#include "ggml/file_io.h"
#include "ggml/recurrence.h"

using namespace ggml;

namespace {

using Floats = std::vector<float>;

Floats some(int64_t n, float least, float most) {
    uint32_t x = 1;
    Floats v(static_cast<size_t>(n));
    for (float& f : v) {
        x = x * 1664525 + 1013904223;
        f = least + (most - least) * float(x >> 8) / float(1 << 24);
    }
    return v;
}

struct Bench {
    Context& context;
    int64_t rows;
    int calls;

    // Times call(sequence), for states of so many floats in so many layers, after prepare().
    void run(
        const char* model, const char* what, int64_t layers, int64_t state,
        const std::function<void(const StateRows&)>& call,
        const std::function<void()>& prepare = [] {}) const {
        // As a session has them: aligned.
        const Floats start = some(std::max<int64_t>(1, layers * state), -0.1f, 0.1f);
        const Memory first(start.size() * sizeof(float), "states"), second(first.size(), "states");
        float *a = first.as<float>(), *b = second.as<float>();
        std::copy(start.begin(), start.end(), a);
        std::copy(start.begin(), start.end(), b);
        std::vector<int32_t> ids(static_cast<size_t>(rows));
        std::iota(ids.begin(), ids.end(), 0);
        double best = 1e30, best_cpu = 1e30;
        for (int i = 0; i < calls; i++, std::swap(a, b)) {
            double took = 0, cpu = 0;
            for (int64_t l = 0; l < layers; l++) {
                prepare();
                const auto begin = std::chrono::steady_clock::now();
                const double cpu_begin = cpu_seconds();
                call({ids.data(), rows, a + l * state, b + l * state});
                cpu += cpu_seconds() - cpu_begin;
                took +=
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            }
            best = std::min(best, took * 1e3);
            best_cpu = std::min(best_cpu, cpu * 1e3);
        }
        std::printf("%-16s %-12s %2d layers: %8.3f ms; a row: %7.4f, CPU %7.4f\n", model, what,
                    int(layers), best, best / double(rows), best_cpu / double(rows));
    }

    void convolution(const char* model, int64_t layers, int64_t channels, int64_t taps, bool silu,
                     int64_t width) const {
        const Floats weight = some(channels * taps, -1, 1), bias = some(channels, -1, 1);
        const Convolution how = {channels, taps, weight.data(), bias.data(), silu};
        const Floats x = some(rows * width, -1, 1);
        Floats y = x;  // in place
        run(
            model, "convolve", layers, how.state(),
            [&](const StateRows& sequence) {
                convolve(context, how, &sequence, 1, y.data(), width, y.data(), width);
            },
            [&] { y = x; });
    }

    void norm(const char* model, int64_t layers, int64_t groups, int64_t size,
              bool gate_first) const {
        const Floats weight = some(groups * size, -1, 1);
        const GatedNorm how = {groups, size, weight.data(), groups, 1e-5f, gate_first};
        const int64_t width = groups * size;
        const Floats x = some(rows * width, -1, 1);
        Floats from = x, z = x, y = x;
        run(
            model, "gated_norm", layers, 0,
            [&](const StateRows&) {
                gated_norm(context, how, rows, {from.data(), width, size}, {z.data(), width, size},
                           {y.data(), width, size});
            },
            [&] { z = x; });
    }

    void mamba2(const char* model, int64_t layers, int64_t heads, int64_t head_dim, int64_t groups,
                int64_t n_state, int64_t taps) const {
        const int64_t inner = heads * head_dim, channels = inner + 2 * groups * n_state;
        const int64_t width = inner + channels + heads;
        convolution(model, layers, channels, taps, true, width);
        const Floats bias = some(heads, -5, 0), a = some(heads, -2, -0.1f), d = some(heads, -1, 1);
        Floats x = some(rows * width, -1, 1), y(size_t(rows * inner));
        float* const from = x.data() + inner;
        Mamba2Scan how;
        how.n_head = heads, how.head_dim = head_dim, how.n_group = groups, how.n_state = n_state;
        how.dt_bias = bias.data(), how.a = a.data(), how.d = d.data();
        how.x = {from, width, head_dim};
        how.b = {from + inner, width, n_state};
        how.c = {from + inner + groups * n_state, width, n_state};
        how.dt = {from + channels, width, 1};
        run(model, "mamba2_scan", layers, how.state(), [&](const StateRows& sequence) {
            mamba2_scan(context, how, &sequence, 1, {y.data(), inner, head_dim});
        });
        norm(model, layers, groups, inner / groups, true);
    }

    void delta(const char* model, int64_t layers, int64_t k_heads, int64_t v_heads,
               int64_t dim) const {
        const int64_t v_at = 2 * k_heads * dim, out = v_heads * dim, width = v_at + out;
        convolution(model, layers, width, 4, true, width);
        const Floats bias = some(v_heads, -5, 0), a = some(v_heads, -2, -0.1f);
        Floats x = some(rows * width, -1, 1), gates = some(rows * 2 * v_heads, -1, 1),
               y(size_t(rows * out));
        DeltaRule how;
        how.n_k_head = k_heads, how.n_v_head = v_heads, how.head_dim = how.v_head_dim = dim;
        how.dt_bias = bias.data(), how.a = a.data(), how.eps = 1e-6f;
        how.q = {x.data(), width, dim};
        how.k = {x.data() + k_heads * dim, width, dim};
        how.v = {x.data() + v_at, width, dim};
        how.alpha = {gates.data(), 2 * v_heads, 1};
        how.beta = {gates.data() + v_heads, 2 * v_heads, 1};
        run(model, "delta_rule", layers, how.state(), [&](const StateRows& sequence) {
            delta_rule(context, how, &sequence, 1, {y.data(), out, dim});
        });
        norm(model, layers, v_heads, dim, false);
    }
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    Context context(std::atoi(argv[1]));
    const Bench bench{context, std::atoi(argv[2]), std::atoi(argv[3])};
    if (bench.rows < 1 || bench.calls < 1) return 2;
    std::printf("%s, %d threads, %d rows\n", isa_name(context.kernels), context.threads.size(),
                int(bench.rows));
    bench.mamba2("Nemotron 3 Nano", 23, 64, 64, 8, 128, 4);
    bench.delta("Qwen3.6 35B-A3B", 30, 16, 32, 128);
    bench.convolution("LFM2 1.2B", 10, 2048, 3, false, 2048);
    return 0;
}
