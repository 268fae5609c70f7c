#include "forward/parts/ngrams.h"

#include <algorithm>

#include "forward/parts/recurrent.h"
#include "ggml/streams.h"

namespace powerinfer {

namespace {

// The token of row t's sequence at a position.
int32_t token_of_row(const Pass& p, int64_t t, int64_t position) {
    const KvPages::Label& page = p.kv.label(p.work.batch.pages_of(0)[t][position / ggml::kKvPage]);
    return page.token[position % ggml::kKvPage];
}

// The rows that the last tokens of row t choose.
void choose_rows(const Pass& p, const NGrams& g, int64_t t, int64_t* to) {
    const Batch& batch = p.work.batch;
    const auto hashed = [&](int64_t j, int32_t token) {
        return uint64_t(int64_t(token)) * uint64_t(g.multiplier[size_t(j)]);
    };
    uint64_t hash = hashed(0, batch.token[t]);
    bool ended = false;  // there is no text of the sequence before this
    for (int64_t j = 1; j < g.order; j++) {
        const int64_t position = batch.position[t] - j;
        const int32_t token = ended || position < 0 ? g.end : token_of_row(p, t, position);
        ended = token == g.end;
        hash ^= hashed(j, token);
        for (int64_t k = 0; k < g.heads; k++) {
            const auto head = size_t((j - 1) * g.heads + k);
            const int64_t rest = int64_t(hash) % g.size[head];
            *to++ = g.offset[head] + (rest < 0 ? rest + g.size[head] : rest);
        }
    }
}

// Of all rows: v, which finish() reads, in `beside`; the norm of v in `entering`.
struct Rooms {
    Rooms(const Workspace& w, const NGrams& g)
        : key(w.state.entering),
          query(w.state.folded),
          value(query + w.batch.n * g.width()),
          gated(w.state.beside) {}
    float *key, *query, *value, *gated;
};

}  // namespace

void ask_for_grams(const Pass& p, const NGrams& g) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n, heads = g.n_heads();
    for (int64_t t = 0; t < n; t++) choose_rows(p, g, t, w.grams.id + t * heads);
    p.rows.own->ask(w.grams.id, n * heads, w.grams.joined);
}

void project(const Pass& p, const NGrams& g, ggml::SharedInput& x) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n;
    const ggml::Streams streams{n, g.n_streams, g.n_embd};
    const Rooms at(w, g);
    const auto norm = [&](const float* from, const float* weight, float* to) {
        ggml::rms_norm(p.context, from, weight, g.norm_eps, n * g.n_streams, g.n_embd, to, 0,
                       g.n_streams);
    };
    p.rows.own->wait();
    const bool q8 = g.key.quantised() || g.value.quantised();
    const ggml::Input joined = w.input.prepare(p.context, w.grams.joined, n, g.joined(), q8);
    p.multiply(joined, {{g.key, at.key}, {g.value, at.value}});
    norm(at.key, g.key_norm, at.key);
    norm(x.x(), g.query_norm, at.query);
    ggml::gate_by_likeness(p.context, streams, at.key, at.query, at.value, at.gated);
    norm(at.gated, g.conv_norm, w.state.entering);
}

Entering entering(const Workspace& work, const NGrams& g) {
    return {{{work.state.entering, g.width()}}};
}

void fold(const Folding& f, const NGrams& g) {
    const RowsBySequence& rows = f.work.state.by_sequence;
    ggml::Convolution conv{g.width(), g.taps, g.conv, nullptr, true};
    conv.dilation = g.order;
    ggml::convolve(f.context, conv, rows.at(f.at), rows.n, f.work.state.entering, g.width(),
                   f.work.state.folded, g.width());
}

void finish(const Pass& p, const NGrams& g, float* y) {
    const Workspace& w = p.work;
    const int64_t n = w.batch.n * g.width();
    std::copy_n(w.state.beside, n, y);
    ggml::add(p.context, y, w.state.folded, n);
}

}  // namespace powerinfer
