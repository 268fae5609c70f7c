#include "forward/forward.h"

#include <algorithm>

#include "forward/device_forward.h"
#include "forward/ffn.h"

namespace powerinfer {

namespace {

using ggml::Input;

// The rows of an embedding table that stays on the disk.
void embed_stored(const Pass& p) {
    const Model& m = p.model;
    Workspace& b = p.work;
    // A stored row is no longer than the floats that it becomes.
    auto* const row = reinterpret_cast<uint8_t*>(b.normed);
    ggml::Matrix one = m.token_embd;
    one.rows = 1;
    one.data = row;
    const int32_t first = 0;
    for (int64_t t = 0; t < b.batch.n; t++) {
        const uint64_t at = uint64_t(b.batch.token[t]) * uint64_t(one.row_bytes());
        m.embedding_file->read(m.embedding_offset + at, row, size_t(one.row_bytes()));
        ggml::embed_rows(p.context, one, &first, 0, 1, b.x + t * m.config.n_embd);
    }
    m.embedding_file->require_unchanged();  // neurons have checksums, these rows have none
}

// x[t] = row of the embedding table, plus the position's row for learned positions.
void embed(const Pass& p) {
    const Model& m = p.model;
    Workspace& b = p.work;
    const int64_t n = b.batch.n;
    p.context.profile.part = name(Part::embedding);
    if (m.embedding_file) {
        embed_stored(p);
    } else {
        ggml::embed_rows(p.context, m.token_embd, b.batch.token, 0, n, b.x);
    }
    if (m.config.embedding_scale != 1) {
        ggml::scale(p.context, b.x, m.config.embedding_scale, n * m.config.n_embd);
    }
    if (m.position_embd) {
        ggml::embed_rows(p.context, m.position_embd, b.batch.position, m.config.position_offset, n,
                         b.normed);
        ggml::add(p.context, b.x, b.normed, n * m.config.n_embd);
    }
    ggml::rope_table(p.context, p.rope.frequency.data(), m.config.n_rot / 2, p.rope.magnitude,
                     b.batch.position, n, b.cos_sin);
    if (b.local_cos_sin) {
        ggml::rope_table(p.context, p.local_rope.frequency.data(), m.config.n_rot / 2,
                         p.local_rope.magnitude, b.batch.position, n, b.local_cos_sin);
    }
}

// y = norm(x), n rows.
void norm(const Pass& p, const float* x, const NormWeights& w, int64_t n, float* y) {
    const Config& c = p.model.config;
    if (c.norm == Config::Norm::layer) {
        ggml::layer_norm(p.context, x, w.weight, w.bias, c.norm_eps, n, c.n_embd, y);
    } else {
        ggml::rms_norm(p.context, x, w.weight, c.norm_eps, n, c.n_embd, y);
    }
}

// For each head of queries or keys: its norm (if any), then RoPE.
void place_heads(const Pass& p, const Layer& l, const float* head_norm, int64_t n_head, float* x) {
    const Config& c = p.model.config;
    const int64_t n = p.work.batch.n;
    if (head_norm && c.norm == Config::Norm::layer) {
        ggml::layer_norm(p.context, x, head_norm, nullptr, c.norm_eps, n * n_head, c.head_dim, x,
                         n_head);
    } else if (head_norm) {
        ggml::rms_norm(p.context, x, head_norm, c.norm_eps, n * n_head, c.head_dim, x);
    }
    if (c.n_rot && l.rotates) {
        const bool local = p.work.local_cos_sin && l.window;
        ggml::rope(p.context, x, n, n_head, c.head_dim,
                   local ? p.work.local_cos_sin : p.work.cos_sin, c.n_rot / 2, c.rope_pairs);
    }
}

// y = Wo . attention(Wq . x, Wk . x, Wv . x)
void attention(const Pass& p, int64_t layer, const float* x, float* y) {
    const Config& c = p.model.config;
    const Layer& l = p.model.layers[size_t(layer)];
    Workspace& b = p.work;
    const int64_t n = b.batch.n;

    p.record.squares(p.context, PI_INPUT_ATTENTION, layer, 0, x, n);
    const bool q8 = l.q.quantised() || l.k.quantised() || l.v.quantised();
    const Input input = b.input.prepare(p.context, x, n, c.n_embd, q8);
    p.multiply(input, {{l.q, b.q, l.q_bias}, {l.k, b.k, l.k_bias}, {l.v, b.v, l.v_bias}});
    place_heads(p, l, l.q_norm, c.n_head, b.q);
    place_heads(p, l, l.k_norm, c.n_head_kv, b.k);

    const ggml::KvLayer kv = p.kv.layer(layer);
    ggml::store_kv(p.context, kv, b.batch.slot, n, b.k, b.v);
    for (int64_t t = 0; t < n; t++) {
        const int64_t end = b.batch.position[t] + 1;
        b.attention_rows[t] = {b.batch.pages[t],
                               l.window ? std::max<int64_t>(0, end - l.window) : 0, end};
    }
    ggml::attention(p.context, kv, c.n_head, {c.attention_scale, c.attention_softcap},
                    b.attention_rows, n, b.q, b.attended);

    p.record.squares(p.context, PI_INPUT_ATTENTION_OUTPUT, layer, 0, b.attended, n);
    const Input attended = b.input.prepare(p.context, b.attended, n, c.q_dim(), l.o.quantised());
    p.multiply(attended, {{l.o, y, l.o_bias}});
}

// x += attention(norm(x)); x += ffn(norm(x)). In families with parallel_ffn both read the same x;
// in those with post_norms what is added is normalised, too.
void layer(const Pass& p, int64_t i) {
    const Config& c = p.model.config;
    const Layer& l = p.model.layers[size_t(i)];
    Workspace& b = p.work;
    const int64_t n = b.batch.n;

    p.context.profile.part = name(Part::ffn);
    if (c.route_layer_input) {
        route(p, l, b.x);
        request_experts(p, i);
    }
    p.context.profile.part = name(Part::attention);
    norm(p, b.x, l.attn_norm, n, b.normed);
    attention(p, i, b.normed, b.out);
    if (c.post_norms) norm(p, b.out, l.attn_post_norm, n, b.out);
    if (!c.parallel_ffn) ggml::add(p.context, b.x, b.out, n * c.n_embd);

    p.context.profile.part = name(Part::ffn);
    norm(p, b.x, l.ffn_norm, n, b.normed);
    if (!l.experts.empty() && !c.route_layer_input) route(p, l, b.normed);
    feed_forward(p, i, b.normed, b.ffn_out);
    if (c.post_norms) norm(p, b.ffn_out, l.ffn_post_norm, n, b.ffn_out);
    if (c.parallel_ffn) ggml::add(p.context, b.x, b.out, n * c.n_embd);
    ggml::add(p.context, b.x, b.ffn_out, n * c.n_embd);
}

// Logits or embeddings of the rows to keep.
void head(const Pass& p) {
    const Model& m = p.model;
    const Config& c = m.config;
    Workspace& b = p.work;
    float* const* result = b.batch.result;
    const int64_t n = b.batch.n, width = p.params.embedding ? c.n_embd : c.n_vocab;
    p.context.profile.part = name(Part::head);
    if (p.record.sums_squares()) {
        norm(p, b.x, m.output_norm, n, b.normed);
        p.record.squares(p.context, PI_INPUT_HEAD, 0, 0, b.normed, n);
    }
    for (int64_t t = 0; t < n;) {
        // Adjacent rows with adjacent results share one product.
        int64_t end = t;
        while (end < n && result[end] && result[end] == result[t] + (end - t) * width) end++;
        if (end > t) {
            float* normed = p.params.embedding ? result[t] : b.normed;
            norm(p, b.x + t * c.n_embd, m.output_norm, end - t, normed);
            if (!p.params.embedding) {
                const Input input =
                    b.input.prepare(p.context, normed, end - t, c.n_embd, m.output.quantised());
                p.multiply(input, {{m.output, result[t]}});
                if (c.logit_softcap > 0) {
                    ggml::softcap(p.context, result[t], c.logit_softcap, (end - t) * width);
                }
            }
        }
        t = std::max(end, t + 1);
    }
}

}  // namespace

void forward(const Pass& p) {
    embed(p);
    for (int64_t i = 0; i < p.model.config.n_layer - p.model.device_layers(); i++) {
        p.check_stop();
        layer(p, i);
    }
    if (p.device) p.device->run(p);
    if (!p.device || !p.device->computes_head()) head(p);
}

}  // namespace powerinfer
