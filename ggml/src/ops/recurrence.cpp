// Layers that fold positions into a state. A piece of work is a head of a sequence (or channels of
// it), with all rows: its state stays in a core's cache.
#include "ggml/recurrence.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "ops/grain.h"

namespace ggml {

namespace {

constexpr int kFloats = int(DType::F32);

// Calls each(sequence, i) for `parts` parts of each sequence, of `size` values.
template <typename F>
void each_part(Context& context, const StateRows* sequences, int64_t n_sequences, int64_t parts,
               int64_t size, const F& each) {
    int64_t most = 1;  // rows of a sequence
    for (int64_t s = 0; s < n_sequences; s++) most = std::max(most, sequences[s].n);
    const int64_t grain = cpu::row_grain(size * most);
    context.threads.run(n_sequences * parts, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) each(sequences[i / parts], i % parts);
    });
}

// x /= sqrt(sum of squares + eps) * more.
void divide_by_length(const cpu::Kernels& kernels, float* x, float eps, float more, int64_t n) {
    const auto size = double(n);
    kernels.rms_norm[kFloats](x, nullptr, float(double(eps) / size), n, x);
    const auto factor = float(1 / (std::sqrt(size) * double(more)));
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

}  // namespace

void convolve(Context& context, const Convolution& how, const StateRows* sequences,
              int64_t n_sequences, const float* x, int64_t x_row, float* y, int64_t y_row) {
    const OpTimer timer(context.profile, "convolve");
    const int64_t width = cpu::kConvolved, parts = (how.channels + width - 1) / width;
    each_part(context, sequences, n_sequences, parts, width * how.taps,
              [&](const StateRows& sequence, int64_t part) {
                  const int64_t first = part * width, n = std::min(width, how.channels - first);
                  context.kernels.convolve[kFloats](how, first, n, sequence, x, x_row, y, y_row);
              });
}

void mamba2_scan(Context& context, const Mamba2Scan& how, const StateRows* sequences,
                 int64_t n_sequences, const Heads& y) {
    OpTimer timer(context.profile, "mamba2_scan");
    timer.read(uint64_t(n_sequences * how.state()) * sizeof(float));
    each_part(context, sequences, n_sequences, how.n_head, how.head_dim * how.n_state,
              [&](const StateRows& sequence, int64_t head) {
                  context.kernels.scan[kFloats](how, head, sequence, y);
              });
}

void delta_rule(Context& context, const DeltaRule& how, const StateRows* sequences,
                int64_t n_sequences, const Heads& y) {
    OpTimer timer(context.profile, "delta_rule");
    timer.read(uint64_t(n_sequences * how.state()) * sizeof(float));
    // Heads of v share those of k.
    each_part(context, sequences, n_sequences, how.n_k_head, 8 * how.head_dim,
              [&](const StateRows& sequence, int64_t head) {
                  const auto root = float(std::sqrt(double(how.head_dim)));
                  for (int64_t t = 0; t < sequence.n; t++) {
                      const int64_t row = sequence.rows[t];
                      float* const q = how.q.x + row * how.q.row + head * how.q.head;
                      float* const k = how.k.x + row * how.k.row + head * how.k.head;
                      divide_by_length(context.kernels, q, how.eps, root, how.head_dim);
                      divide_by_length(context.kernels, k, how.eps, 1, how.head_dim);
                  }
              });
    each_part(context, sequences, n_sequences, how.n_v_head, how.head_dim * how.v_head_dim,
              [&](const StateRows& sequence, int64_t head) {
                  context.kernels.delta[kFloats](how, head, sequence, y);
              });
}

void gated_norm(Context& context, const GatedNorm& how, int64_t rows, const Heads& x,
                const Heads& z, const Heads& y) {
    const OpTimer timer(context.profile, "gated_norm");
    const int64_t n = how.group;
    const auto& kernels = context.kernels;
    context.threads.run(
        rows * how.n_group, cpu::row_grain(8 * n), [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; i++) {
                const int64_t row = i / how.n_group, g = i % how.n_group;
                const float* from = x.x + row * x.row + g * x.head;
                float* const gate = z.x + row * z.row + g * z.head;
                float* const to = y.x + row * y.row + g * y.head;
                const float* weight = how.weight ? how.weight + g % how.n_weights * n : nullptr;
                if (weight && !how.gate_first) {
                    kernels.rms_norm[kFloats](from, weight, how.eps, n, to);
                    from = to;
                }
                if (how.sigmoid) {
                    if (from != to) std::copy_n(from, n, to);
                    kernels.sigmoid_gate[kFloats](to, gate, n);
                    from = to;
                } else {
                    kernels.gate[kFloats](Activation::silu, gate, from, n);
                    from = gate;
                }
                if (weight && how.gate_first) {
                    kernels.rms_norm[kFloats](from, weight, how.eps, n, to);
                } else if (from != to) {
                    std::copy_n(from, n, to);
                }
            }
        });
}

}  // namespace ggml
