// Mamba-2 (model/layer.h): a convolution, a scan and a norm between products.
#include "forward/parts/recurrent.h"

namespace powerinfer {

namespace {

// z of all rows: beside the time steps, whose place must not depend on the number of rows, which is
// another one when states are computed once more.
float* gates(const Workspace& w, const Mamba2& s) {
    return w.state.beside + w.batch.n * s.n_head;
}

}  // namespace

void project(const Pass& p, const Mamba2& s, ggml::SharedInput& x) {
    Workspace& w = p.work;
    const bool q8 = s.z.quantised();  // all three are rows of one matrix
    p.multiply(x.get(p.context, q8),
               {{s.z, gates(w, s)}, {s.ubc, w.state.entering}, {s.dt, w.state.beside}});
}

Entering entering(const Workspace& work, const Mamba2& s) {
    return {{{work.state.entering, s.channels()}, {work.state.beside, s.n_head}}};
}

void fold(const Folding& f, const Mamba2& s) {
    const int64_t channels = s.channels(), inner = s.inner(), shared = s.n_group * s.n_state;
    const RowsBySequence& rows = f.work.state.by_sequence;
    float* const u = f.work.state.entering;
    const int64_t at = convolve_in_place(f, {channels, s.taps, s.conv, s.conv_bias, true}, u, f.at);
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
    scan.dt = {f.work.state.beside, s.n_head, 1};
    ggml::mamba2_scan(f.context, scan, rows.at(at), rows.n,
                      {f.work.state.folded, inner, s.head_dim});
}

void finish(const Pass& p, const Mamba2& s, float* y) {
    const int64_t inner = s.inner(), group = s.norm ? s.norm_group : inner;
    ggml::GatedNorm norm;
    norm.n_group = norm.n_weights = inner / group;
    norm.group = group;
    norm.weight = s.norm;
    norm.eps = s.norm_eps;
    finish_gated(p, norm, gates(p.work, s), s.out, y);
}

}  // namespace powerinfer
