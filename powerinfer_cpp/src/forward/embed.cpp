#include "forward/embed.h"

#include <cmath>

namespace powerinfer {

using ggml::Input;

namespace {

// The rows of n tokens of a table that stays on the disk, [n, table.cols]. room: for one of them.
void embed_stored(const Pass& p, const ggml::Matrix& table, const StoredTable& stored,
                  const int32_t* token, int64_t n, float* room, float* y) {
    // A stored row is no longer than the floats that it becomes.
    auto* const row = reinterpret_cast<uint8_t*>(room);
    ggml::Matrix one = table;
    one.rows = 1;
    one.data = row;
    const int32_t first = 0;
    for (int64_t t = 0; t < n; t++) {
        const uint64_t at = uint64_t(token[t]) * uint64_t(one.row_bytes());
        stored.file->read(stored.offset + at, row, size_t(one.row_bytes()));
        ggml::embed_rows(p.context, one, &first, 0, 1, y + t * one.cols);
    }
    stored.file->require_unchanged();  // neurons have checksums, these rows have none
}

// For each layer a row, (norm(project . x / sqrt(n_embd)) + sqrt(width) row of the table) /
// sqrt(2).
void embed_for_layers(const Pass& p) {
    const Model& m = p.model;
    Workspace& b = p.work;
    const auto& e = m.layer_embd;
    const int64_t n = b.batch.n, all = e.project.rows;
    const Input input = b.input.prepare(p.context, b.x, n, m.config.n_embd, e.project.quantised());
    p.multiply(input, {{e.project, b.embedding.all, nullptr}});
    const auto root = [](int64_t v) { return float(std::sqrt(double(v))); };
    ggml::scale(p.context, b.embedding.all, 1 / root(m.config.n_embd), n * all);
    ggml::rms_norm(p.context, b.embedding.all, e.norm, m.config.norm_eps, n * m.config.n_layer,
                   e.width, b.embedding.all);
    for (int64_t t = 0; t < n; t++) {
        float* const row = b.embedding.row;
        embed_stored(p, e.tokens, m.layer_embd_stored, b.batch.token + t, 1, row + all, row);
        ggml::add_scaled(p.context, b.embedding.all + t * all, root(e.width), row, all);
    }
    ggml::scale(p.context, b.embedding.all, 1 / root(2), n * all);
}

}  // namespace

void embed(const Pass& p) {
    const Model& m = p.model;
    Workspace& b = p.work;
    const int64_t n = b.batch.n;
    p.context.profile.part = name(Part::embedding);
    if (m.token_embd_stored.file) {
        embed_stored(p, m.token_embd, m.token_embd_stored, b.batch.token, n, b.normed, b.x);
    } else {
        ggml::embed_rows(p.context, m.token_embd, b.batch.token, 0, n, b.x);
    }
    if (m.config.embedding_scale != 1) {
        ggml::scale(p.context, b.x, m.config.embedding_scale, n * m.config.n_embd);
    }
    if (m.embedding_norm) p.norm(b.x, *m.embedding_norm, n, b.x);
    if (m.position_embd) {
        ggml::embed_rows(p.context, m.position_embd, b.batch.position, m.config.position_offset, n,
                         b.normed);
        ggml::add(p.context, b.x, b.normed, n * m.config.n_embd);
    }
    if (m.layer_embd.width) embed_for_layers(p);
    for (size_t i = 0; i < p.ropes.size(); i++) {
        const std::vector<double>& frequency = p.ropes[i].frequency;
        ggml::rope_table(p.context, frequency.data(), int64_t(frequency.size()),
                         p.ropes[i].magnitude, b.batch.position, n, b.heads.cos_sin[i]);
    }
}

}  // namespace powerinfer
