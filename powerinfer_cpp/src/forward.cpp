// The forward pass: tokens in, logits out, over rows of (token, position, sequence).
#include <cmath>
#include <cstring>

#include "session.h"

namespace powerinfer {

namespace {

using ggml::Input;
using ggml::Matrix;

bool quantised(const Matrix& w) {
    return ggml::info(w.type).is_quantised();
}

// x[t] = row of the embedding table.
void embed(Session& s, const Row* rows, int64_t n) {
    const int64_t n_embd = s.model->config.n_embd;
    s.context.threads.run(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            ggml::decode_row(s.model->token_embd, rows[t].token, s.scratch.x + t * n_embd);
        }
    });
}

// Angles of every row: position times frequency, the same for all layers and heads.
void rotations(Session& s, const Row* rows, int64_t n) {
    const int64_t n_pairs = int64_t(s.inverse_frequency.size());
    for (int64_t t = 0; t < n; t++) {
        float* row = s.scratch.cos_sin + t * n_pairs * 2;
        for (int64_t i = 0; i < n_pairs; i++) {
            const double angle = double(rows[t].pos) * s.inverse_frequency[i];
            row[2 * i] = float(std::cos(angle));
            row[2 * i + 1] = float(std::sin(angle));
        }
    }
}

// out = Wo . attention(rope(Wq . norm(x)), rope(Wk . norm(x)), Wv . norm(x))
void attention_block(Session& s, int64_t layer, const Row* rows, int64_t n) {
    const Config& c = s.model->config;
    const Layer& l = s.model->layers[layer];
    Scratch& b = s.scratch;

    ggml::rms_norm(s.context, b.x, l.attn_norm, c.norm_eps, n, c.n_embd, b.normed);
    const bool q8 = quantised(l.q) || quantised(l.k) || quantised(l.v);
    const Input normed = b.input.prepare(s.context, b.normed, n, c.n_embd, q8);
    ggml::matmul(s.context, normed,
                 {{l.q, b.q, l.q_bias}, {l.k, b.k, l.k_bias}, {l.v, b.v, l.v_bias}});

    ggml::rope(s.context, b.q, n, c.n_head, c.head_dim, b.cos_sin, c.n_rot / 2);
    ggml::rope(s.context, b.k, n, c.n_head_kv, c.head_dim, b.cos_sin, c.n_rot / 2);
    s.context.threads.run(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            s.kv.store(layer, rows[t].seq, rows[t].pos, b.k + t * c.kv_dim(), b.v + t * c.kv_dim());
        }
    });
    for (int64_t t = 0; t < n; t++) b.attention_rows[t] = s.kv.row(layer, rows[t].seq, rows[t].pos);
    const ggml::AttentionShape shape{
        s.kv.type(), c.n_head,           c.n_head_kv,
        c.head_dim,  s.kv.head_stride(), float(1.0 / std::sqrt(double(c.head_dim)))};
    ggml::attention(s.context, shape, b.attention_rows.data(), n, b.q, b.attended);

    const Input attended = b.input.prepare(s.context, b.attended, n, c.q_dim(), quantised(l.o));
    ggml::matmul(s.context, attended, {{l.o, b.out, l.o_bias}});
}

// out = Wdown . (act(Wgate . norm(x)) * Wup . norm(x))
void ffn_block(Session& s, const Layer& l, int64_t n) {
    const Config& c = s.model->config;
    Scratch& b = s.scratch;

    ggml::rms_norm(s.context, b.x, l.ffn_norm, c.norm_eps, n, c.n_embd, b.normed);
    const Input normed =
        b.input.prepare(s.context, b.normed, n, c.n_embd, quantised(l.gate) || quantised(l.up));
    ggml::matmul(s.context, normed, {{l.gate, b.gate, l.gate_bias}, {l.up, b.up, l.up_bias}});
    ggml::gated_activation(s.context, c.activation, b.gate, b.up, n * c.n_ff);
    if (l.down_t) {
        ggml::matmul_transposed(s.context, l.down_t, b.gate, n, b.out, l.down_bias);
    } else {
        const Input fired = b.input.prepare(s.context, b.gate, n, c.n_ff, quantised(l.down));
        ggml::matmul(s.context, fired, {{l.down, b.out, l.down_bias}});
    }
}

// Logits of the rows that want them.
void head(Session& s, const Row* rows, int64_t n) {
    const Model& m = *s.model;
    const int64_t n_embd = m.config.n_embd;
    for (int64_t t = 0; t < n;) {
        // Neighbouring rows whose logits are neighbours too share one product.
        int64_t end = t;
        while (end < n && rows[end].logits &&
               rows[end].logits == rows[t].logits + (end - t) * m.config.n_vocab)
            end++;
        if (end > t) {
            float* normed = s.scratch.normed;
            ggml::rms_norm(s.context, s.scratch.x + t * n_embd, m.output_norm, m.config.norm_eps,
                           end - t, n_embd, normed);
            const Input input =
                s.scratch.input.prepare(s.context, normed, end - t, n_embd, quantised(m.output));
            ggml::matmul(s.context, input, {{m.output, rows[t].logits}});
        }
        t = std::max(end, t + 1);
    }
}

}  // namespace

void forward(Session& s, const Row* rows, int64_t n) {
    const int64_t n_embd = s.model->config.n_embd;
    embed(s, rows, n);
    rotations(s, rows, n);
    for (size_t layer = 0; layer < s.model->layers.size(); layer++) {
        s.check_stop();
        attention_block(s, int64_t(layer), rows, n);
        ggml::add(s.context, s.scratch.x, s.scratch.out, n * n_embd);
        ffn_block(s, s.model->layers[layer], n);
        ggml::add(s.context, s.scratch.x, s.scratch.out, n * n_embd);
    }
    head(s, rows, n);
}

}  // namespace powerinfer
