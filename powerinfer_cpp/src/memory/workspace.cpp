#include "memory/workspace.h"

#include <algorithm>

namespace powerinfer {

namespace {

// The widest input of a product, rounded up to whole blocks of activations.
int64_t widest(const Config& c) {
    const int64_t n = std::max({c.n_embd, c.q_dim(), c.n_ff, c.predictor_rank});
    return (n + ggml::kQ - 1) / ggml::kQ * ggml::kQ;
}

}  // namespace

Workspace::Workspace(ggml::Carver& carver, const Config& c, const pi_session_params& p, int threads,
                     bool in_store)
    : batch(carver, p.n_ubatch), input(carver, p.n_ubatch, widest(c)) {
    const int64_t rows = p.n_ubatch;
    carver.take(attention_rows, {rows});
    for (float** to : {&x, &normed, &out, &ffn_out}) carver.take(*to, {rows, c.n_embd});
    for (float** to : {&q, &attended}) carver.take(*to, {rows, c.q_dim()});
    for (float** to : {&k, &v}) carver.take(*to, {rows, c.kv_dim()});
    if (!in_store) {
        for (float** to : {&gate, &up}) carver.take(*to, {rows, c.n_ff});
    }
    carver.take(cos_sin, {rows, c.n_rot});
    if (c.local_rope_base > 0) carver.take(local_cos_sin, {rows, c.n_rot});
    if (c.n_expert) {
        for (float** to : {&router, &share}) carver.take(*to, {rows, c.n_expert});
        carver.take(expert_rows.first, {c.n_expert + 1});
        carver.take(expert_rows.rows, {rows, c.n_expert_used});
        carver.take(expert_rows.share, {rows, c.n_expert_used});
        for (float** to : {&gathered, &gathered_residual, &expert_out}) {
            carver.take(*to, {rows, c.n_embd});
        }
    }
    if (c.neuron_aware) {
        neurons = ggml::NeuronScratch(carver, rows, c.n_ff, c.n_embd, threads, in_store);
        if (in_store) stored = StoredScratch(carver, rows, c.n_ff, c.n_embd);
        candidates = ggml::Candidates(carver, c.n_ff);
        carver.take(sums, {ggml::kSegments, c.n_embd});
    }
    if (c.has_predictors) {
        if (c.sketches) sketch = ggml::SketchScratch(carver, rows, c.n_embd);
        carver.take(hidden, {rows, c.predictor_rank});
        const int64_t scored = std::max(rows, c.n_expert_used);
        carver.take(score, {scored, c.n_ff});
        carver.take(masked, {scored});
        carver.take(audited, {rows});
    }
    if (p.record && p.record != PI_RECORD_SQUARES) carver.take(flags, {rows, c.n_ff});
}

}  // namespace powerinfer
