#include "forward/parts/attention.h"

#include <algorithm>

#include "forward/parts/latent.h"
#include "ggml/math.h"

namespace powerinfer {

using ggml::Input;

namespace {

// Scales the queries of each row by its position.
void grow(const Pass& p, const Attention& a, float* q) {
    const Batch& batch = p.work.batch;
    for (int64_t t = 0; t < batch.n; t++) {
        const auto periods = double(batch.position[t] / a.growth_ctx);
        const double factor = 1 + a.growth * ggml::log_f64(1 + periods);
        ggml::scale(p.context, q + t * a.q_dim(), float(factor), a.q_dim());
    }
}

// Queries, and keys and values unless another layer has them. With gates queries are in by_head,
// each with its gate behind it.
void project_heads(const Pass& p, const Attention& a, const Input& x) {
    Workspace& b = p.work;
    // Some of the others are not there: keys and values of another layer, values, gates.
    p.multiply(x, {{a.q, a.gated ? b.heads.by_head : b.heads.q, a.q_bias},
                   {a.k, b.heads.k, a.k_bias},
                   {a.v, b.heads.v, a.v_bias},
                   {a.gate, b.heads.gate}});
    if (a.kv_of >= 0) return;
    if (!a.v) std::copy_n(b.heads.k, b.batch.n * a.k_dim(), b.heads.v);
    norm_and_rope(p, a, HeadsOf::keys, b.heads.k);
    if (a.v_norm) {
        ggml::rms_norm(p.context, b.heads.v, nullptr, a.norm_eps, b.batch.n * a.n_head_kv,
                       a.v_head_dim, b.heads.v);
    }
}

// The queries of by_head, or their gates, in b.heads.q.
void take_queries(const Pass& p, const Attention& a, bool gates) {
    Workspace& b = p.work;
    const int64_t d = a.head_dim;
    float* const from = b.heads.by_head + (gates ? d : 0);
    ggml::copy_heads(p.context, {from, a.q_rows(), 2 * d}, b.batch.n, a.n_head, d,
                     {b.heads.q, a.q_dim(), d});
}

}  // namespace

void norm_and_rope(const Pass& p, const Attention& a, HeadsOf heads, float* x) {
    const Config& c = p.model.config;
    const int64_t n = p.work.batch.n;
    const bool keys = heads == HeadsOf::keys, whole = a.norms == Attention::Norms::whole_row;
    const float* const weight = keys ? a.k_norm : a.q_norm;
    const float* const bias = keys ? a.k_norm_bias : a.q_norm_bias;
    const int64_t n_head = keys ? a.n_head_kv : a.n_head;
    const auto normalise = [&] {
        if (!weight) return;
        if (a.norm == Norm::layer && whole) {
            ggml::layer_norm(p.context, x, weight, bias, a.norm_eps, n, n_head * a.head_dim, x);
        } else if (a.norm == Norm::layer) {
            ggml::layer_norm(p.context, x, weight, nullptr, a.norm_eps, n * n_head, a.head_dim, x,
                             n_head);
        } else if (whole) {
            ggml::rms_norm(p.context, x, weight, a.norm_eps, n, n_head * a.head_dim, x);
        } else {
            ggml::rms_norm(p.context, x, weight, a.norm_eps, n * n_head, a.head_dim, x);
        }
    };
    if (a.norms != Attention::Norms::after_rope) normalise();
    if (a.rope >= 0) {
        const auto table = size_t(a.rope);
        ggml::rope(p.context, x, n, n_head, a.head_dim, p.work.heads.cos_sin[table],
                   c.ropes[table].n_rot / 2, c.ropes[table].pairs);
    }
    if (a.norms == Attention::Norms::after_rope) normalise();
}

void attention(const Pass& p, int64_t layer, const Attention& a, ggml::SharedInput& x, float* y) {
    Workspace& b = p.work;
    const int64_t n = b.batch.n;

    p.record.squares(p.context, PI_INPUT_ATTENTION, layer, 0, x.x(), n);
    if (a.latent) {
        latent_queries_and_keys(p, a, x);
    } else {
        const bool q8 = a.q.quantised() || a.k.quantised() || a.v.quantised() || a.gate.quantised();
        project_heads(p, a, x.get(p.context, q8));
        if (a.gated) take_queries(p, a, false);
        norm_and_rope(p, a, HeadsOf::queries, b.heads.q);
    }
    if (a.growth != 0) grow(p, a, b.heads.q);

    const int64_t owner = a.kv_of >= 0 ? a.kv_of : layer, kind = p.kv.kind(owner);
    const ggml::KvLayer kv = p.kv.layer(owner);
    if (a.kv_of < 0) {
        ggml::store_kv(p.context, kv, b.batch.slots_of(kind), n, b.heads.k, b.heads.v);
    }
    const int32_t* const* const pages = b.batch.pages_of(kind);
    for (int64_t t = 0; t < n; t++) {
        const int64_t at = b.batch.position[t], all = b.batch.end[t];
        const int64_t begin = std::max(a.first, a.window ? at + 1 - a.window : 0);
        const int64_t end = !a.both ? at + 1 : a.window ? std::min(at + a.window, all) : all;
        b.heads.rows[t] = {pages[t], std::min(begin, at), end, at};
    }
    const ggml::AttentionScores how{a.scale, a.softcap, a.sinks, b.heads.score_bias,
                                    p.params.n_ctx - 1};
    ggml::attention(p.context, kv, a.n_head, how, b.heads.rows, n, b.heads.q, b.heads.scratch,
                    b.heads.attended);
    if (a.latent) latent_results(p, a);

    if (a.gated) {
        take_queries(p, a, true);
        ggml::gate_by(p.context, ggml::GateBy::sigmoid, b.heads.attended, b.heads.q,
                      n * a.out_dim());
    }
    if (a.n_gate) {
        ggml::gate_by(p.context, a.gate_by, b.heads.attended, b.heads.gate, n * a.n_gate,
                      a.out_dim() / a.n_gate);
    }
    if (a.out_norm) {
        ggml::rms_norm(p.context, b.heads.attended, a.out_norm, a.norm_eps, n, a.out_dim(),
                       b.heads.attended);
    }
    p.record.squares(p.context, PI_INPUT_ATTENTION_OUTPUT, layer, 0, b.heads.attended, n);
    const Input attended =
        b.input.prepare(p.context, b.heads.attended, n, a.out_dim(), a.o.quantised());
    p.multiply(attended, {{a.o, y, a.o_bias}});
}

}  // namespace powerinfer
