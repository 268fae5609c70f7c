#include "forward/nextn.h"

#include <algorithm>

#include "forward/cpu_layer.h"
#include "forward/embed.h"
#include "forward/parts/attention.h"
#include "forward/parts/recurrent.h"

namespace powerinfer {

using ggml::Input;

namespace {

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
    p.norm(b.x, p.model.output_norm, b.batch.n, b.normed);
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
    keep_entering(rows, layout, layout.entering[size_t(nextn_layer(p))], {{{b.normed, n_embd}}});
}

// Stores the keys and values of the rows: all that later guesses need of them.
void keep_keys(const Pass& p) {
    Workspace& b = p.work;
    const int64_t n = b.batch.n, i = nextn_layer(p);
    const LayerPart& part = p.model.layers[size_t(i)].parts.front();
    const Attention& a = std::get<Attention>(part.op);
    p.norm(b.x, *part.norm, n, b.normed);
    const bool q8 = a.k.quantised() || a.v.quantised();
    const Input input = b.input.prepare(p.context, b.normed, n, p.model.config.n_embd, q8);
    p.multiply(input, {{a.k, b.heads.k, a.k_bias}, {a.v, b.heads.v, a.v_bias}});
    norm_and_rope(p, a, HeadsOf::keys, b.heads.k);
    ggml::store_kv(p.context, p.kv.layer(i), b.batch.slot, n, b.heads.k, b.heads.v);
}

}  // namespace

void keep_for_guesses(const Pass& p) {
    p.context.profile.part = name(Part::attention);
    keep_rows(p);
    join(p);
    keep_keys(p);
}

void guess(const Pass& p, const float* row, float* logits) {
    const Model& m = p.model;
    const Config& c = m.config;
    Workspace& b = p.work;
    embed(p);
    std::copy_n(row, c.n_embd, b.ffn_out);
    join(p);
    compute_layer(p, nextn_layer(p));
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

}  // namespace powerinfer
