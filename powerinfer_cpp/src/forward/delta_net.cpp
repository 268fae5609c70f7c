// Gated delta nets (model/layer.h): a convolution, the delta rule and a gated norm between
// products.
#include "forward/recurrent.h"

namespace powerinfer {

namespace {

// Of queries and keys that are made as long as 1, whatever the eps of norms: transformers has this
// one, llama.cpp that of norms. Published models have the same.
constexpr float kUnitEps = 1e-6f;

// Alpha and beta of all rows, [n, 2 n_v_head], are at Workspace::beside: their place must not
// depend on the number of rows, which is another one when states are computed once more.
ggml::Heads alphas(const Workspace& w, const DeltaNet& s) {
    return {w.beside, 2 * s.n_v_head, 1};
}
ggml::Heads betas(const Workspace& w, const DeltaNet& s) {
    return {w.beside + s.n_v_head, 2 * s.n_v_head, 1};
}

// z of all rows, [n, v_dim].
float* gates(const Workspace& w, const DeltaNet& s) {
    return w.beside + w.batch.n * 2 * s.n_v_head;
}

// Queries, keys, values and gates of which the file has those of each head of keys together.
void project_by_head(const Pass& p, const DeltaNet& s, const ggml::Input& x) {
    Workspace& w = p.work;
    const int64_t row = s.by_head_dim(), head = row / s.n_k_head, d = s.head_dim;
    const int64_t values = s.v_dim() / s.n_k_head;
    p.multiply(x, {{s.by_head, w.folded}});
    int64_t at = 0;
    const auto take = [&](int64_t width, float* to, int64_t to_row) {
        ggml::copy_heads(p.context, {w.folded + at, row, head}, w.batch.n, s.n_k_head, width,
                         {to, to_row, width});
        at += width;
    };
    take(d, w.entering, s.channels());
    take(d, w.entering + s.k_dim(), s.channels());
    take(values, w.entering + 2 * s.k_dim(), s.channels());
    take(values, gates(w, s), s.v_dim());
}

// Alpha and beta of the rows, from matrices of each, or from one that has those of each head of
// keys together, beta first.
void project_steps(const Pass& p, const DeltaNet& s, const ggml::Input& x) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n, heads = s.n_v_head, both = 2 * heads;
    const auto take = [&](const ggml::Heads& from, int64_t n_head, const ggml::Heads& to) {
        const int64_t width = heads / n_head;
        ggml::copy_heads(p.context, from, n, n_head, width, {to.x, to.row, width});
    };
    if (s.beta_alpha) {
        p.multiply(x, {{s.beta_alpha, w.folded}});
        const int64_t head = both / s.n_k_head;
        take({w.folded, both, head}, s.n_k_head, betas(w, s));
        take({w.folded + head / 2, both, head}, s.n_k_head, alphas(w, s));
    } else {
        float* const alpha = w.folded + n * heads;
        p.multiply(x, {{s.beta, w.folded}, {s.alpha, alpha}});
        take({w.folded, heads, heads}, 1, betas(w, s));
        take({alpha, heads, heads}, 1, alphas(w, s));
    }
}

}  // namespace

void project(const Pass& p, const DeltaNet& s, const float* x) {
    Workspace& w = p.work;
    bool q8 = false;
    for (const auto* m : {&s.qkv, &s.gate, &s.by_head, &s.beta, &s.alpha, &s.beta_alpha}) {
        q8 |= m->quantised();
    }
    const ggml::Input input = w.input.prepare(p.context, x, w.batch.n, p.model.config.n_embd, q8);
    if (s.by_head) {
        project_by_head(p, s, input);
    } else {
        p.multiply(input, {{s.qkv, w.entering}, {s.gate, gates(w, s)}});
    }
    project_steps(p, s, input);
}

Entering entering(const Workspace& work, const DeltaNet& s) {
    return {{{work.entering, s.channels()}, {work.beside, 2 * s.n_v_head}}};
}

void fold(const Folding& f, const DeltaNet& s) {
    const int64_t channels = s.channels();
    const auto* sequences = convolve_first(f, {channels, s.taps, s.conv, nullptr, true});
    float* const q = f.work.entering;
    ggml::DeltaRule rule;
    rule.n_k_head = s.n_k_head;
    rule.n_v_head = s.n_v_head;
    rule.head_dim = s.head_dim;
    rule.v_head_dim = s.v_head_dim;
    rule.tiled = s.tiled;
    rule.dt_bias = s.dt_bias;
    rule.a = s.a;
    rule.eps = kUnitEps;
    rule.q = {q, channels, s.head_dim};
    rule.k = {q + s.k_dim(), channels, s.head_dim};
    rule.v = {q + 2 * s.k_dim(), channels, s.v_head_dim};
    rule.alpha = alphas(f.work, s);
    rule.beta = betas(f.work, s);
    ggml::delta_rule(f.context, rule, sequences, f.work.by_sequence.n,
                     {f.work.folded, s.v_dim(), s.v_head_dim});
}

void finish(const Pass& p, const DeltaNet& s, float* y) {
    ggml::GatedNorm norm;
    norm.n_group = s.n_v_head;
    norm.group = s.v_head_dim;
    norm.weight = s.norm;
    norm.gate_first = false;
    finish_gated(p, norm, gates(p.work, s), s.out, y);
}

}  // namespace powerinfer
