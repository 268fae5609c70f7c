#include "forward/embed.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "forward/parts/ngrams.h"
#include "ggml/streams.h"

namespace powerinfer {

using ggml::Input;

namespace {

// y [n, cols] gets the rows of tokens of a table on the disk, once it is waited for.
void ask_for(TableRows& rows, const int32_t* token, int64_t n, float* y) {
    const std::vector<int64_t> ids(token, token + n);
    rows.ask(ids.data(), n, y);
}

// For each layer a row, norm(project . x / sqrt(n_embd)); of a model with a table for that,
// (this + sqrt(width) row of the table) / sqrt(2).
void embed_for_layers(const Pass& p) {
    const Model& m = p.model;
    Workspace& b = p.work;
    const auto& e = m.layer_embd;
    const int64_t n = b.batch.n, all = e.project.rows;
    const auto ask = [&](int64_t t) {
        const int64_t rows = std::min(LayerEmbeddingRows::kAtOnce, n - t);
        ask_for(*p.rows.own, b.batch.token + t, rows, b.embedding.rows);
        return rows;
    };
    int64_t asked = e.of_tokens ? ask(0) : 0;
    const Input input = b.input.prepare(p.context, b.x, n, m.config.n_embd, e.project.quantised());
    p.multiply(input, {{e.project, b.embedding.all, nullptr}});
    const auto root = [](int64_t v) { return float(std::sqrt(double(v))); };
    ggml::scale(p.context, b.embedding.all, 1 / root(m.config.n_embd), n * all);
    ggml::rms_norm(p.context, b.embedding.all, e.norm, m.config.norm_eps, n * m.config.n_layer,
                   e.width, b.embedding.all);
    if (!e.of_tokens) return;
    for (int64_t t = 0; t < n; t += asked) {
        if (t) asked = ask(t);
        p.rows.own->wait();
        ggml::add_scaled(p.context, b.embedding.all + t * all, root(e.width), b.embedding.rows,
                         asked * all);
    }
    ggml::scale(p.context, b.embedding.all, 1 / root(2), n * all);
}

}  // namespace

void embed(const Pass& p) {
    const Model& m = p.model;
    Workspace& b = p.work;
    const int64_t n = b.batch.n, n_embd = m.config.n_embd;
    float* const rows = m.config.n_streams > 1 ? b.ffn_out : b.x;
    p.context.profile.part = name(Part::embedding);
    if (m.grams) ask_for_grams(p, *m.grams);
    if (p.rows.tokens) {
        ask_for(*p.rows.tokens, b.batch.token, n, rows);
        p.rows.tokens->wait();
    } else {
        ggml::embed_rows(p.context, m.token_embd, b.batch.token, 0, n, rows);
    }
    p.adapters.add_rows(p.context, b.batch.token, n, &m.token_embd, rows);
    if (m.config.embedding_scale != 1) {
        ggml::scale(p.context, rows, m.config.embedding_scale, n * n_embd);
    }
    const auto add_rows = [&](const ggml::Matrix& table, const int32_t* ids, int64_t offset) {
        if (!table) return;
        ggml::embed_rows(p.context, table, ids, offset, n, b.normed);
        ggml::add(p.context, rows, b.normed, n * n_embd);
    };
    add_rows(m.token_types, b.batch.type, 0);
    p.adapters.add_rows(p.context, b.batch.type, n, &m.token_types, rows);
    add_rows(m.position_embd, b.batch.position, m.config.position_offset);
    if (m.embedding_norm) p.norm(rows, *m.embedding_norm, n, rows);
    if (rows != b.x) {
        ggml::repeat_in_streams(p.context, {n, m.config.n_streams, n_embd}, rows, b.x);
    }
    if (m.layer_embd.width) embed_for_layers(p);
    for (size_t i = 0; i < p.ropes.size(); i++) {
        const std::vector<double>& frequency = p.ropes[i].frequency;
        ggml::rope_table(p.context, frequency.data(), int64_t(frequency.size()),
                         p.ropes[i].magnitude, b.batch.position, n, b.heads.cos_sin[i]);
    }
}

}  // namespace powerinfer
