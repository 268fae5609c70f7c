#include "memory/workspace.h"

#include <algorithm>

namespace powerinfer {

namespace {

// The widest input of a product, rounded up to whole blocks of activations.
int64_t widest(const Model& m, const LargestSizes& sizes) {
    const Config& c = m.config;
    const int64_t n =
        std::max({c.n_embd, sizes.out_dim, sizes.by_head, sizes.n_ff, sizes.folded,
                  c.predictor_rank, m.layer_embd.width, m.guesses() ? 2 * c.n_embd : 0});
    return (n + ggml::kQ - 1) / ggml::kQ * ggml::kQ;
}

}  // namespace

Workspace::Workspace(ggml::Carver& carver, const Model& model, const pi_session_params& p,
                     int threads, bool in_store)
    : batch(carver, p.n_ubatch) {
    const Config& c = model.config;
    const LargestSizes sizes = largest_sizes(model.layers);
    const int64_t rows = p.n_ubatch, n_ff = sizes.n_ff;
    // Of a single row all experts have a place: see mixture_from_disk(), mixture_of_row().
    const int64_t by_expert = std::max(rows, sizes.n_used);
    input = ggml::InputBuffer(carver, by_expert, widest(model, sizes));
    carver.take(attention_rows, {rows});
    const int64_t latents = ggml::kKvPage * ggml::info(ggml::DType(p.type_k)).size(sizes.latent);
    attention = ggml::AttentionScratch(
        carver, threads, rows, p.n_ctx,
        {sizes.n_head, sizes.head_dim, sizes.v_head_dim, sizes.attended, latents});
    for (float** to : {&x, &normed, &out, &ffn_out}) carver.take(*to, {rows, c.n_embd});
    carver.take(q, {rows, sizes.q_dim});
    carver.take(attended, {rows, sizes.attended});
    carver.take(k, {rows, sizes.k_dim});
    carver.take(v, {rows, sizes.v_dim});
    carver.take(by_head, {rows, sizes.by_head});
    int64_t n_gate = in_store ? 0 : n_ff;  // blocks of matrices stay in memory
    for (const FeedForward* part : model.ffns) {
        if (!part->blocks[0].neurons.n) n_gate = std::max(n_gate, part->n_ff);
    }
    for (float** to : {&gate, &up}) carver.take(*to, {by_expert, n_gate});
    for (const Rope& rope : c.ropes) carver.take(cos_sin.emplace_back(), {rows, rope.n_rot});
    if (const int64_t width = model.layer_embd.width) {
        carver.take(layer_embd, {rows, c.n_layer * width});
        carver.take(layer_embd_row, {2, c.n_layer * width});
        carver.take(layer_gate, {rows, width});
    }
    if (const StateLayout layout(model.layers); layout) {
        by_sequence = RowsBySequence(carver, rows, p.n_seq, layout.n_entering);
        carver.take(entering, {rows, sizes.entering});
        carver.take(beside, {rows, sizes.beside});
        carver.take(folded, {rows, sizes.folded});
    }
    if (model.guesses()) {
        carver.take(joined, {rows, 2 * c.n_embd});
        carver.take(guessed, {c.n_vocab});
    }
    if (sizes.n_expert) {
        carver.take(router, {rows, sizes.n_expert});
        carver.take(share, {rows});
        for (float** to : {&narrow, &narrow_sum}) carver.take(*to, {rows, sizes.expert_width});
        routed = ggml::RouteScratch(carver, rows, sizes.n_expert, sizes.n_used);
        carver.take(expert_rows.first, {sizes.n_expert + 1});
        carver.take(expert_rows.rows, {rows, sizes.n_used});
        carver.take(expert_rows.expert_weights, {rows, sizes.n_used});
        carver.take(expert_out, {by_expert, c.n_embd});
        carver.take(products, {2 * sizes.n_used});
        carver.take(gathered, {rows, c.n_embd});
        if (c.has_predictors && !c.predict_from_normed) {
            carver.take(gathered_residual, {rows, c.n_embd});
        }
    }
    if (c.neuron_aware) {
        neurons = ggml::NeuronScratch(carver, rows, n_ff, c.n_embd, threads, in_store);
        if (in_store) stored = StoredScratch(carver, rows, n_ff, c.n_embd);
        candidates = ggml::Candidates(carver, n_ff);
        carver.take(sums, {ggml::kSegments, c.n_embd});
        const auto norms = [](const FeedForward* part) { return part->norms_values; };
        if (std::any_of(model.ffns.begin(), model.ffns.end(), norms)) {
            carver.take(values, {rows, n_ff});
        }
    }
    if (c.has_predictors) {
        if (c.sketches) sketch = ggml::SketchScratch(carver, rows, c.n_embd);
        carver.take(hidden, {rows, c.predictor_rank});
        carver.take(score, {by_expert, n_ff});
        carver.take(masked, {by_expert});
        carver.take(audited, {rows});
    }
    if (p.record && p.record != PI_RECORD_SQUARES) carver.take(flags, {rows, n_ff});
}

}  // namespace powerinfer
