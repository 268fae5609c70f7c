// The forward pass: tokens in, logits out, over rows of (token, position, sequence).
#include <algorithm>
#include <cmath>

#include "ffn.h"
#include "session.h"

namespace powerinfer {

namespace {

using ggml::Input;

// x[t] = row of the embedding table, plus the position's row where positions are learned.
void embed(Session& s, const Row* rows, int64_t n) {
    const Model& m = *s.model;
    const int64_t n_embd = m.config.n_embd;
    float* position = s.scratch.normed;
    s.context.threads.run(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            ggml::decode_row(m.token_embd, rows[t].token, s.scratch.x + t * n_embd);
            if (!m.position_embd) continue;
            ggml::decode_row(m.position_embd, rows[t].pos + m.config.position_offset,
                             position + t * n_embd);
            for (int64_t i = 0; i < n_embd; i++)
                s.scratch.x[t * n_embd + i] += position[t * n_embd + i];
        }
    });
}

// y = norm(x), n rows.
void norm(Session& s, const float* x, const NormWeights& w, int64_t n, float* y) {
    const Config& c = s.model->config;
    if (c.norm == Config::Norm::layer) {
        ggml::layer_norm(s.context, x, w.weight, w.bias, c.norm_eps, n, c.n_embd, y);
    } else {
        ggml::rms_norm(s.context, x, w.weight, c.norm_eps, n, c.n_embd, y);
    }
}

// Each head of queries or keys: its own norm, then its position.
void place_heads(Session& s, const Layer& l, const float* head_norm, int64_t n, int64_t n_head,
                 float* x) {
    const Config& c = s.model->config;
    if (head_norm) {
        ggml::rms_norm(s.context, x, head_norm, c.norm_eps, n * n_head, c.head_dim, x);
    }
    if (c.n_rot && l.rotates) {
        ggml::rope(s.context, x, n, n_head, c.head_dim, s.scratch.cos_sin, c.n_rot / 2,
                   c.rope_pairs);
    }
}

// y = Wo . attention(Wq . x, Wk . x, Wv . x)
void attention(Session& s, int64_t layer, const Row* rows, const float* x, int64_t n, float* y) {
    const Config& c = s.model->config;
    const Layer& l = s.model->layers[size_t(layer)];
    Scratch& b = s.scratch;

    const bool q8 = l.q.quantised() || l.k.quantised() || l.v.quantised();
    const Input input = b.input.prepare(s.context, x, n, c.n_embd, q8);
    ggml::matmul(s.context, input,
                 {{l.q, b.q, l.q_bias}, {l.k, b.k, l.k_bias}, {l.v, b.v, l.v_bias}});
    place_heads(s, l, l.q_norm, n, c.n_head, b.q);
    place_heads(s, l, l.k_norm, n, c.n_head_kv, b.k);

    s.context.threads.run(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            s.kv.store(layer, rows[t].seq, rows[t].pos, b.k + t * c.kv_dim(), b.v + t * c.kv_dim());
        }
    });
    for (int64_t t = 0; t < n; t++) {
        b.attention_rows[size_t(t)] = s.kv.row(layer, rows[t].seq, rows[t].pos, l.window);
    }
    const ggml::AttentionShape shape{
        s.kv.type(), c.n_head,           c.n_head_kv,
        c.head_dim,  s.kv.head_stride(), float(1.0 / std::sqrt(double(c.head_dim)))};
    ggml::attention(s.context, shape, b.attention_rows.data(), n, b.q, b.attended);

    const Input attended = b.input.prepare(s.context, b.attended, n, c.q_dim(), l.o.quantised());
    ggml::matmul(s.context, attended, {{l.o, y, l.o_bias}});
}

// y = the layer's FFN, or its mixture of experts, of x, the norm of the residual stream.
void feed_forward(Session& s, int64_t i, const Row* rows, const float* x, int64_t n, float* y) {
    const Config& c = s.model->config;
    const Layer& l = s.model->layers[size_t(i)];
    for (int64_t t = 0; t < n; t++) {
        s.scratch.masking[t] = rows[t].masked ? s.audit.masking(i, rows[t].pos) : Masking::none;
    }
    const FfnInput in{x, s.scratch.x, s.scratch.masking, n, s.record.flags()};
    const float* seen = c.predict_from_normed ? in.x : in.residual;
    for (int64_t t = 0; in.fired && t < n; t++) s.record.input(i, t, seen + t * c.n_embd);
    if (l.experts.empty()) {
        ffn(s, i, l.ffn, in, y);
        for (int64_t t = 0; in.fired && t < n; t++) s.record.fired(i, 0, t, in.fired + t * c.n_ff);
        return;
    }
    if (!c.route_layer_input) route(s, l, x, n);
    mixture(s, i, in, y);
}

// x += attention(norm(x)); x += ffn(norm(x)); or both of the same x where the family has them side
// by side.
void layer(Session& s, int64_t i, const Row* rows, int64_t n) {
    const Config& c = s.model->config;
    const Layer& l = s.model->layers[size_t(i)];
    Scratch& b = s.scratch;

    s.context.profile.part = "ffn";
    if (c.route_layer_input) route(s, l, b.x, n);
    s.context.profile.part = "attention";
    norm(s, b.x, l.attn_norm, n, b.normed);
    attention(s, i, rows, b.normed, n, b.out);
    if (!c.parallel_ffn) ggml::add(s.context, b.x, b.out, n * c.n_embd);

    s.context.profile.part = "ffn";
    norm(s, b.x, l.ffn_norm, n, b.normed);
    feed_forward(s, i, rows, b.normed, n, b.ffn_out);
    if (c.parallel_ffn) ggml::add(s.context, b.x, b.out, n * c.n_embd);
    ggml::add(s.context, b.x, b.ffn_out, n * c.n_embd);
}

// Logits, or embeddings, of the rows that want them.
void head(Session& s, const Row* rows, int64_t n) {
    const Model& m = *s.model;
    const int64_t n_embd = m.config.n_embd;
    s.context.profile.part = "head";
    for (int64_t t = 0; t < n;) {
        // Neighbouring rows whose results are neighbours too share one product.
        int64_t end = t;
        while (end < n && rows[end].result &&
               rows[end].result == rows[t].result + (end - t) * s.result_width()) {
            end++;
        }
        if (end > t) {
            float* normed = s.params.embedding ? rows[t].result : s.scratch.normed;
            norm(s, s.scratch.x + t * n_embd, m.output_norm, end - t, normed);
            if (!s.params.embedding) {
                const Input input = s.scratch.input.prepare(s.context, normed, end - t, n_embd,
                                                            m.output.quantised());
                ggml::matmul(s.context, input, {{m.output, rows[t].result}});
            }
        }
        t = std::max(end, t + 1);
    }
}

}  // namespace

void forward(Session& s, const Row* rows, int64_t n) {
    embed(s, rows, n);
    for (int64_t t = 0; t < n; t++) {
        s.rope.fill(rows[t].pos, s.scratch.cos_sin + t * s.model->config.n_rot);
    }
    for (int64_t i = 0; i < s.model->config.n_layer; i++) {
        s.check_stop();
        layer(s, i, rows, n);
    }
    head(s, rows, n);
}

}  // namespace powerinfer
