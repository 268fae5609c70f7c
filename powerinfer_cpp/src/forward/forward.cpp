#include "forward/forward.h"

#include <algorithm>
#include <cmath>

#include "forward/device_forward.h"
#include "forward/ffn.h"
#include "forward/latent.h"
#include "forward/recurrent.h"
#include "ggml/math.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

using ggml::Input;

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

// x[t] = row of the embedding table, plus the position's row for learned positions.
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

// y = norm(x), n rows.
void norm(const Pass& p, const float* x, const NormWeights& w, int64_t n, float* y) {
    const Config& c = p.model.config;
    if (c.norm == Config::Norm::layer) {
        ggml::layer_norm(p.context, x, w.weight, w.bias, c.norm_eps, n, c.n_embd, y);
    } else {
        ggml::rms_norm(p.context, x, w.weight, c.norm_eps, n, c.n_embd, y);
    }
}

// For each head of queries or keys: its norm (if any), then RoPE; or first RoPE.
void norm_and_rope(const Pass& p, const Attention& a, const float* weight, int64_t n_head,
                   float* x) {
    const Config& c = p.model.config;
    const int64_t n = p.work.batch.n;
    const auto normalise = [&] {
        if (!weight) return;
        if (c.norm == Config::Norm::layer) {
            ggml::layer_norm(p.context, x, weight, nullptr, c.norm_eps, n * n_head, a.head_dim, x,
                             n_head);
        } else if (a.norms == Attention::Norms::whole_row) {
            ggml::rms_norm(p.context, x, weight, c.norm_eps, n, n_head * a.head_dim, x);
        } else {
            ggml::rms_norm(p.context, x, weight, c.norm_eps, n * n_head, a.head_dim, x);
        }
    };
    if (a.norms != Attention::Norms::after_rope) normalise();
    if (a.rope >= 0) {
        const auto table = size_t(a.rope);
        ggml::rope(p.context, x, n, n_head, a.head_dim, p.work.heads.cos_sin[table],
                   c.ropes[table].n_rot / 2, c.rope_pairs);
    }
    if (a.norms == Attention::Norms::after_rope) normalise();
}

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
    const ggml::Product q{a.q, a.gated ? b.heads.by_head : b.heads.q, a.q_bias, a.q_scale};
    if (a.kv_of >= 0) return p.multiply(x, {q});
    if (a.v) {
        p.multiply(
            x, {q, {a.k, b.heads.k, a.k_bias, a.k_scale}, {a.v, b.heads.v, a.v_bias, a.v_scale}});
    } else {
        p.multiply(x, {q, {a.k, b.heads.k, a.k_bias, a.k_scale}});
        std::copy_n(b.heads.k, b.batch.n * a.k_dim(), b.heads.v);
    }
    norm_and_rope(p, a, a.k_norm, a.n_head_kv, b.heads.k);
    if (a.v_norm) {
        ggml::rms_norm(p.context, b.heads.v, nullptr, p.model.config.norm_eps,
                       b.batch.n * a.n_head_kv, a.v_head_dim, b.heads.v);
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

// y = Wo . attention(Wq . x, Wk . x, Wv . x)
void attention(const Pass& p, int64_t layer, const Attention& a, ggml::SharedInput& x, float* y) {
    Workspace& b = p.work;
    const int64_t n = b.batch.n;

    p.record.squares(p.context, PI_INPUT_ATTENTION, layer, 0, x.x(), n);
    if (a.latent) {
        latent_queries_and_keys(p, a, x);
    } else {
        const bool q8 = a.q.quantised() || a.k.quantised() || a.v.quantised();
        project_heads(p, a, x.get(p.context, q8));
        if (a.gated) take_queries(p, a, false);
        norm_and_rope(p, a, a.q_norm, a.n_head, b.heads.q);
    }
    if (a.growth != 0) grow(p, a, b.heads.q);

    const ggml::KvLayer kv = p.kv.layer(a.kv_of >= 0 ? a.kv_of : layer);
    if (a.kv_of < 0) ggml::store_kv(p.context, kv, b.batch.slot, n, b.heads.k, b.heads.v);
    for (int64_t t = 0; t < n; t++) {
        const int64_t end = b.batch.position[t] + 1;
        const int64_t begin = std::max(a.first, a.window ? end - a.window : 0);
        b.heads.rows[t] = {b.batch.pages[t], std::min(begin, end - 1), end};
    }
    ggml::attention(p.context, kv, a.n_head, {a.scale, a.softcap, a.sinks}, b.heads.rows, n,
                    b.heads.q, b.heads.scratch, b.heads.attended);
    if (a.latent) latent_results(p, a);

    if (a.gated) {
        take_queries(p, a, true);
        ggml::gate_by_sigmoid(p.context, b.heads.attended, b.heads.q, n * a.out_dim());
    }
    if (a.out_norm) {
        ggml::rms_norm(p.context, b.heads.attended, a.out_norm, p.model.config.norm_eps, n,
                       a.out_dim(), b.heads.attended);
    }
    p.record.squares(p.context, PI_INPUT_ATTENTION_OUTPUT, layer, 0, b.heads.attended, n);
    const Input attended =
        b.input.prepare(p.context, b.heads.attended, n, a.out_dim(), a.o.quantised());
    p.multiply(attended, {{a.o, y, a.o_bias, a.o_scale}});
}

// The experts that the router at `k` chooses from.
const FeedForward& experts_after(const std::deque<LayerPart>& parts, size_t k) {
    for (k++; k < parts.size(); k++) {
        const auto* f = std::get_if<FeedForward>(&parts[k].op);
        if (f && f->routed()) return *f;
    }
    throw ggml::Error(ggml::Code::internal, "a router has no experts");
}

// Asks for the experts that a layer will choose, if its router gets about the stream of the layer
// before. `room`: [n_embd].
void guess_experts(const Pass& p, int64_t layer, float* room) {
    const Model& m = p.model;
    if (!p.source.guesses_experts() || p.work.batch.n > 1) return;
    if (layer >= m.config.n_layer - m.device_layers()) return;
    const auto& parts = m.layers[size_t(layer)].parts;
    for (size_t k = 0; k < parts.size(); k++) {
        const auto* router = std::get_if<Router>(&parts[k].op);
        if (!router) continue;
        const float* x = p.work.x;
        if (parts[k].norm) norm(p, x, *parts[k].norm, 1, room);
        if (parts[k].norm) x = room;
        const Input input =
            p.work.input.prepare(p.context, x, 1, m.config.n_embd, router->w.quantised());
        p.multiply(input, {{router->w, p.work.mixture.scores, router->bias}});
        if (router->scale != 1) {
            ggml::scale(p.context, p.work.mixture.scores, router->scale, router->w.rows);
        }
        ggml::choose_experts(router->how, p.work.mixture.scores, p.work.mixture.routed);
        p.source.guess_experts(experts_after(parts, k), p.work.mixture.routed.chosen);
    }
}

// y = project . (act(gate . x) * the tokens' embeddings for layer i)
void embed_in_layer(const Pass& p, int64_t i, const LayerEmbedding& e, ggml::SharedInput& x,
                    float* y) {
    Workspace& b = p.work;
    const Config& c = p.model.config;
    const int64_t n = b.batch.n, width = e.gate.rows;
    p.multiply(x.get(p.context, e.gate.quantised()), {{e.gate, b.embedding.gate, nullptr}});
    for (int64_t t = 0; t < n; t++) {
        const float* const own = b.embedding.all + (t * c.n_layer + i) * width;
        ggml::gated_activation(p.context, c.activation, b.embedding.gate + t * width, own, width);
    }
    const Input gated =
        b.input.prepare(p.context, b.embedding.gate, n, width, e.project.quantised());
    p.multiply(gated, {{e.project, y, nullptr}});
}

// Layers with a state have it in the place of attention.
Part part_of(const LayerPart& part) {
    return std::visit(ByKind{[](const FeedForward&) { return Part::ffn; },
                             [](const Router&) { return Part::ffn; },
                             [](const LayerEmbedding&) { return Part::ffn; },
                             [](const auto&) { return Part::attention; }},
                      part.op);
}

// The parts of a layer, in order: each reads the residual stream x, or what the part before has
// read, and what it gives is added to x, at once or with that of the next part (model/layer.h).
void layer(const Pass& p, int64_t i) {
    const auto& parts = p.model.layers[size_t(i)].parts;
    Workspace& b = p.work;
    const int64_t n = b.batch.n, n_embd = p.model.config.n_embd;
    ggml::SharedInput& x = b.read;          // what a part reads
    const FeedForward* computed = nullptr;  // a part that was computed beside the one before
    float* waiting = nullptr;  // what the part before gave, to be added with this one's
    for (size_t k = 0; k < parts.size(); k++) {
        const LayerPart& part = parts[k];
        p.context.profile.part = name(part_of(part));
        if (part.input == LayerPart::Input::stream) {
            if (part.norm) norm(p, b.x, *part.norm, n, b.normed);
            x.set(part.norm ? b.normed : b.x, n, n_embd);
        }
        float* const y = waiting ? b.ffn_out : b.out;
        const auto attend = [&](const Attention& a) { attention(p, i, a, x, y); };
        const auto choose = [&](const Router& router) {
            route(p, router, x);
            // What they need may be read while other parts are computed.
            const FeedForward& chosen = experts_after(parts, k);
            const bool later = &chosen != std::get_if<FeedForward>(&parts[k + 1].op);
            if (later || p.source.pages_experts()) request_experts(p, chosen);
            guess_experts(p, i + 1, y);
        };
        const auto feed = [&](const FeedForward& f) {
            if (&f == computed) return;
            // What is beside experts that wait for the next part's sum.
            const bool waits = part.add == LayerPart::Add::with_next && !waiting;
            computed = waits ? part_beside(p.model.layers[size_t(i)], k) : nullptr;
            feed_forward(p, f, x, y, {computed, &x, b.ffn_out});
        };
        const auto convolve = [&](const ShortConvolution& s) { recurrent(p, i, s, x, y); };
        const auto scan = [&](const Mamba2& s) { recurrent(p, i, s, x, y); };
        const auto delta = [&](const DeltaNet& s) { recurrent(p, i, s, x, y); };
        const auto embed_here = [&](const LayerEmbedding& e) { embed_in_layer(p, i, e, x, y); };
        std::visit(ByKind{attend, choose, feed, embed_here, convolve, scan, delta}, part.op);
        if (std::holds_alternative<Router>(part.op)) continue;  // it has nothing to add
        if (part.post_norm) norm(p, y, *part.post_norm, n, y);
        if (part.scale != 1) ggml::scale(p.context, y, part.scale, n * n_embd);
        if (part.add == LayerPart::Add::with_next) {
            if (waiting) ggml::add(p.context, waiting, y, n * n_embd);
            if (!waiting) waiting = y;
            continue;
        }
        float* sum = y;
        if (waiting && part.sum_norm) {
            ggml::add(p.context, waiting, y, n * n_embd);
            norm(p, waiting, *part.sum_norm, n, waiting);
            sum = waiting;
        } else if (waiting) {
            ggml::add(p.context, b.x, waiting, n * n_embd);
        }
        ggml::add(p.context, b.x, sum, n * n_embd);
        waiting = nullptr;
    }
    if (const float* scale = p.model.layers[size_t(i)].scale) {
        ggml::scale(p.context, b.x, *scale, n * n_embd);
    }
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
                p.multiply(input, {{m.output, result[t], m.output_bias}});
                if (c.logit_scale != 1) {
                    ggml::scale(p.context, result[t], c.logit_scale, (end - t) * width);
                }
                if (c.logit_softcap > 0) {
                    ggml::softcap(p.context, result[t], c.logit_softcap, (end - t) * width);
                }
            }
        }
        t = std::max(end, t + 1);
    }
}

// ---- The layer that guesses tokens (Model::nextn) ----

// Its keys and values of a position are those of the token there and of the row before, so that the
// cache has them at the same place as those of the other layers.

int64_t nextn_layer(const Pass& p) {
    return p.model.config.n_layer;
}

// x = join . [norm(embedding of the token), norm(row)], the rows before in b.ffn_out.
void join(const Pass& p) {
    const Model& m = p.model;
    Workspace& b = p.work;
    const int64_t n = b.batch.n, n_embd = m.config.n_embd;
    const float eps = m.config.norm_eps;
    const ggml::Matrix& table = m.nextn.token_embd ? m.nextn.token_embd : m.token_embd;
    ggml::embed_rows(p.context, table, b.batch.token, 0, n, b.out);
    ggml::rms_norm(p.context, b.out, m.nextn.token_norm, eps, n, n_embd, b.out);
    ggml::rms_norm(p.context, b.ffn_out, m.nextn.row_norm, eps, n, n_embd, b.ffn_out);
    for (int64_t t = 0; t < n; t++) {
        float* const to = b.guess.joined + t * 2 * n_embd;
        std::copy_n(b.out + t * n_embd, n_embd, to);
        std::copy_n(b.ffn_out + t * n_embd, n_embd, to + n_embd);
    }
    const Input input =
        b.input.prepare(p.context, b.guess.joined, n, 2 * n_embd, m.nextn.join.quantised());
    p.multiply(input, {{m.nextn.join, b.x, nullptr}});
}

// Keeps the rows behind the last norm, of which the last one of a sequence waits for the next
// token. The rows before are in b.ffn_out then.
void keep_rows(const Pass& p) {
    Workspace& b = p.work;
    const int64_t n_embd = p.model.config.n_embd;
    const StateLayout& layout = p.states.layout();
    const int64_t state = layout.state[size_t(nextn_layer(p))];
    norm(p, b.x, p.model.output_norm, b.batch.n, b.normed);
    const RowsBySequence& rows = b.state.by_sequence;
    for (int64_t i = 0; i < rows.n; i++) {
        const SequenceRows& s = rows.sequences[i];
        for (int64_t k = 0; k < s.n; k++) {
            float* const to = b.ffn_out + rows.rows[s.first + k] * n_embd;
            const float* before = s.before ? s.before + state : nullptr;
            if (k) before = b.normed + rows.rows[s.first + k - 1] * n_embd;
            before ? std::copy_n(before, n_embd, to) : std::fill_n(to, n_embd, 0.0f);
        }
        std::copy_n(b.normed + rows.rows[s.first + s.n - 1] * n_embd, n_embd, s.after + state);
    }
    keep_entering(rows, layout.entering[size_t(nextn_layer(p))], {{{b.normed, n_embd}}});
}

// Stores the keys and values of the rows: all that later guesses need of them.
void keep_keys(const Pass& p) {
    Workspace& b = p.work;
    const int64_t n = b.batch.n, i = nextn_layer(p);
    const LayerPart& part = p.model.layers[size_t(i)].parts.front();
    const Attention& a = std::get<Attention>(part.op);
    norm(p, b.x, *part.norm, n, b.normed);
    const bool q8 = a.k.quantised() || a.v.quantised();
    const Input input = b.input.prepare(p.context, b.normed, n, p.model.config.n_embd, q8);
    p.multiply(input,
               {{a.k, b.heads.k, a.k_bias, a.k_scale}, {a.v, b.heads.v, a.v_bias, a.v_scale}});
    norm_and_rope(p, a, a.k_norm, a.n_head_kv, b.heads.k);
    ggml::store_kv(p.context, p.kv.layer(i), b.batch.slot, n, b.heads.k, b.heads.v);
}

}  // namespace

void guess(const Pass& p, const float* row, float* logits) {
    const Model& m = p.model;
    const Config& c = m.config;
    Workspace& b = p.work;
    embed(p);
    std::copy_n(row, c.n_embd, b.ffn_out);
    join(p);
    layer(p, nextn_layer(p));
    p.context.profile.part = name(Part::head);
    const float* const weight = m.nextn.last_norm ? m.nextn.last_norm : m.output_norm.weight;
    if (m.nextn.centred) {
        ggml::layer_norm(p.context, b.x, weight, nullptr, m.nextn.last_eps, 1, c.n_embd, b.normed);
    } else {
        ggml::rms_norm(p.context, b.x, weight, m.nextn.last_eps, 1, c.n_embd, b.normed);
    }
    const ggml::Matrix& output = m.nextn.output ? m.nextn.output : m.output;
    const Input input = b.input.prepare(p.context, b.normed, 1, c.n_embd, output.quantised());
    p.multiply(input, {{output, logits, m.output_bias}});
}

void forward(const Pass& p) {
    embed(p);
    for (int64_t i = 0; i < p.model.config.n_layer - p.model.device_layers(); i++) {
        p.check_stop();
        layer(p, i);
    }
    if (p.device) p.device->run(p);
    if (!p.device || !p.device->computes_head()) head(p);
    if (!p.model.guesses()) return;
    p.context.profile.part = name(Part::attention);
    keep_rows(p);
    join(p);
    keep_keys(p);
}

}  // namespace powerinfer
