// Mamba-2 (model/layer.h): a convolution, a scan and a norm between products.
#include "forward/recurrent.h"

namespace powerinfer {

namespace {

// z of all rows: beside the time steps, whose place must not depend on the number of rows, which is
// another one when states are computed once more.
float* gates(const Workspace& w, const Mamba2& s) {
    return w.beside + w.batch.n * s.n_head;
}

}  // namespace

void project(const Pass& p, const Mamba2& s, const float* x) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n;
    const bool q8 = s.z.quantised();  // all three are rows of one matrix
    const ggml::Input input = w.input.prepare(p.context, x, n, p.model.config.n_embd, q8);
    p.multiply(input, {{s.z, gates(w, s)}, {s.ubc, w.entering}, {s.dt, w.beside}});
}

Entering entering(const Workspace& work, const Mamba2& s) {
    return {{{work.entering, s.channels()}, {work.beside, s.n_head}}};
}

void fold(const Folding& f, const Mamba2& s) {
    const int64_t channels = s.channels(), inner = s.inner(), shared = s.n_group * s.n_state;
    const auto* sequences = convolve_first(f, {channels, s.taps, s.conv, s.conv_bias, true});
    float* const u = f.work.entering;
    ggml::Mamba2Scan scan;
    scan.n_head = s.n_head;
    scan.head_dim = s.head_dim;
    scan.n_group = s.n_group;
    scan.n_state = s.n_state;
    scan.dt_bias = s.dt_bias;
    scan.a = s.a;
    scan.d = s.d;
    scan.x = {u, channels, s.head_dim};
    scan.b = {u + inner, channels, s.n_state};
    scan.c = {u + inner + shared, channels, s.n_state};
    scan.dt = {f.work.beside, s.n_head, 1};
    ggml::mamba2_scan(f.context, scan, sequences, f.work.by_sequence.n,
                      {f.work.folded, inner, s.head_dim});
}

void finish(const Pass& p, const Mamba2& s, float* y) {
    const int64_t inner = s.inner(), group = s.norm ? s.norm_group : inner;
    ggml::GatedNorm norm;
    norm.n_group = norm.n_weights = inner / group;
    norm.group = group;
    norm.weight = s.norm;
    finish_gated(p, norm, gates(p.work, s), s.out, y);
}

}  // namespace powerinfer
