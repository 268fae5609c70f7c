// Gated delta nets (model/layer.h): a convolution, the delta rule and a gated norm between
// products.
#include "forward/parts/recurrent.h"

namespace powerinfer {

namespace {

// Alpha and beta of all rows, [n, 2 n_v_head], are at Workspace::beside: their place must not
// depend on the number of rows, which is another one when states are computed once more.
ggml::Heads alphas(const Workspace& w, const DeltaNet& s) {
    return {w.state.beside, 2 * s.n_v_head, 1};
}
ggml::Heads betas(const Workspace& w, const DeltaNet& s) {
    return {w.state.beside + s.n_v_head, 2 * s.n_v_head, 1};
}

// z of all rows, [n, v_dim].
float* gates(const Workspace& w, const DeltaNet& s) {
    return w.state.beside + w.batch.n * 2 * s.n_v_head;
}

// Copies queries, keys, values and gates, of which the file has those of each head of keys
// together.
void take_by_head(const Pass& p, const DeltaNet& s) {
    Workspace& w = p.work;
    const int64_t row = s.by_head_dim(), head = row / s.n_k_head, d = s.head_dim;
    const int64_t values = s.v_dim() / s.n_k_head;
    int64_t at = 0;
    const auto take = [&](int64_t width, float* to, int64_t to_row) {
        ggml::copy_heads(p.context, {w.state.folded + at, row, head}, w.batch.n, s.n_k_head, width,
                         {to, to_row, width});
        at += width;
    };
    take(d, w.state.entering, s.channels());
    take(d, w.state.entering + s.k_dim(), s.channels());
    take(values, w.state.entering + 2 * s.k_dim(), s.channels());
    take(values, gates(w, s), s.v_dim());
}

// Copies alpha and beta of all rows from `both`: alpha behind beta, or those of each head of keys
// together, beta first.
void take_steps(const Pass& p, const DeltaNet& s, float* both) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n, heads = s.n_v_head;
    const auto take = [&](const ggml::Heads& from, int64_t n_head, const ggml::Heads& to) {
        const int64_t width = heads / n_head;
        ggml::copy_heads(p.context, from, n, n_head, width, {to.x, to.row, width});
    };
    if (s.beta_alpha) {
        const int64_t head = 2 * heads / s.n_k_head;
        take({both, 2 * heads, head}, s.n_k_head, betas(w, s));
        take({both + head / 2, 2 * heads, head}, s.n_k_head, alphas(w, s));
    } else {
        take({both, heads, heads}, 1, betas(w, s));
        take({both + n * heads, heads, heads}, 1, alphas(w, s));
    }
}

}  // namespace

void project(const Pass& p, const DeltaNet& s, ggml::SharedInput& x) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n;
    bool q8 = false;
    for (const auto* m : {&s.qkv, &s.gate, &s.by_head, &s.beta, &s.alpha, &s.beta_alpha}) {
        q8 |= m->quantised();
    }
    // A file has some of these matrices. Alpha and beta are small and need no region of their own.
    float* const both = w.state.folded + n * s.by_head_dim();
    p.multiply(x.get(p.context, q8), {{s.qkv, w.state.entering},
                                      {s.gate, gates(w, s)},
                                      {s.by_head, w.state.folded},
                                      {s.beta, both},
                                      {s.alpha, both + n * s.n_v_head},
                                      {s.beta_alpha, both}});
    if (s.by_head) take_by_head(p, s);
    take_steps(p, s, both);
}

Entering entering(const Workspace& work, const DeltaNet& s) {
    return {{{work.state.entering, s.channels()}, {work.state.beside, 2 * s.n_v_head}}};
}

void fold(const Folding& f, const DeltaNet& s) {
    const int64_t channels = s.channels();
    const auto* sequences = convolve_first(f, {channels, s.taps, s.conv, nullptr, true});
    float* const q = f.work.state.entering;
    ggml::DeltaRule rule;
    rule.n_k_head = s.n_k_head;
    rule.n_v_head = s.n_v_head;
    rule.head_dim = s.head_dim;
    rule.v_head_dim = s.v_head_dim;
    rule.tiled = s.tiled;
    rule.dt_bias = s.dt_bias;
    rule.a = s.a;
    rule.eps = kUnitEps;
    rule.beta_scale = s.beta_scale;
    rule.q = {q, channels, s.head_dim};
    rule.k = {q + s.k_dim(), channels, s.head_dim};
    rule.v = {q + 2 * s.k_dim(), channels, s.v_head_dim};
    rule.alpha = alphas(f.work, s);
    rule.beta = betas(f.work, s);
    ggml::delta_rule(f.context, rule, sequences, f.work.state.by_sequence.n,
                     {f.work.state.folded, s.v_dim(), s.v_head_dim});
}

void finish(const Pass& p, const DeltaNet& s, float* y) {
    ggml::GatedNorm norm;
    norm.n_group = s.n_v_head;
    norm.group = s.v_head_dim;
    norm.weight = s.norm;
    norm.eps = s.norm_eps;
    norm.gate_first = false;
    finish_gated(p, norm, gates(p.work, s), s.out, y);
}

}  // namespace powerinfer
