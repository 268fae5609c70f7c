#include "memory/workspace.h"

#include <algorithm>

#include "memory/kv_layout.h"

namespace powerinfer {

namespace {

// The widest input of a product, rounded up to whole blocks of activations.
int64_t widest(const Model& m, const LargestSizes& sizes, bool pools) {
    const Config& c = m.config;
    int64_t n = std::max({c.stream_width(), sizes.out_dim, sizes.by_head, sizes.n_ff, sizes.folded,
                          sizes.mixed, sizes.joined, c.predictor_rank, m.layer_embd.width,
                          m.guesses() ? 2 * c.n_embd : 0});
    for (const auto* steps : {&m.dense, &m.ranker}) {
        for (const TextStep& step : *steps) n = std::max(n, pools ? step.w.cols : 0);
    }
    return (n + ggml::kQ - 1) / ggml::kQ * ggml::kQ;
}

// The most values of blocks that are computed together, and the most blocks.
struct Together {
    int64_t values = 0, blocks = 1;
};
Together together(const Model& m, int64_t rows, bool in_store) {
    Together most;
    for (const Layer& layer : m.layers) {
        for (size_t k = 0; k < layer.parts.size(); k++) {
            const auto* const f = std::get_if<FeedForward>(&layer.parts[k].op);
            if (!f || (f->blocks[0].neurons.n && in_store)) continue;
            const int64_t of_experts = std::max(rows, f->n_used);
            const FeedForward* const beside = part_beside(layer, k);
            most.values =
                std::max(most.values, of_experts * f->n_ff + (beside ? rows * beside->n_ff : 0));
            if (f->routed()) {
                most.blocks = std::max(most.blocks, 1 + std::min(f->n_blocks(), of_experts));
            }
        }
    }
    most.values = (most.values + ggml::kQ - 1) / ggml::kQ * ggml::kQ;
    return most;
}

}  // namespace

Workspace::Workspace(ggml::Carver& carver, const Model& model, const pi_session_params& p,
                     int threads, bool in_store)
    : batch(carver, p.n_ubatch, int64_t(kv_classes(model.layers).size())) {
    const Config& c = model.config;
    const LargestSizes sizes = largest_sizes(model.layers);
    const int64_t rows = p.n_ubatch, n_ff = sizes.n_ff;
    // Of a single row all experts have a place: see Groups in forward/parts/experts.cpp.
    const int64_t by_expert = std::max(rows, sizes.n_used);
    const Together most = together(model, rows, in_store);
    for (float** to : {&x, &out}) carver.take(*to, {rows, c.stream_width()});
    for (float** to : {&normed, &ffn_out}) carver.take(*to, {rows, c.n_embd});
    read = ggml::SharedInput(carver, rows, c.n_embd);
    const int64_t width = widest(model, sizes, p.pooling != 0);
    input = ggml::InputBuffer(carver, std::max(rows, (most.values + width - 1) / width), width);

    const int64_t latents = ggml::kKvPage * ggml::info(ggml::DType(p.type_k)).size(sizes.latent);
    heads.scratch = ggml::AttentionScratch(
        carver, threads, rows, p.n_ctx,
        {sizes.n_head, sizes.head_dim, sizes.v_head_dim, sizes.attended, latents});
    carver.take(heads.rows, {rows});
    carver.take(heads.q, {rows, sizes.q_dim});
    carver.take(heads.attended, {rows, sizes.attended});
    carver.take(heads.k, {rows, sizes.k_dim});
    carver.take(heads.v, {rows, sizes.v_dim});
    carver.take(heads.by_head, {rows, sizes.by_head});
    carver.take(heads.gate, {rows, sizes.n_gate});
    for (const Rope& rope : c.ropes) {
        carver.take(heads.cos_sin.emplace_back(), {rows, rope.n_rot});
    }

    if (model.score_bias) carver.take(heads.score_bias, {sizes.n_head, 2 * int64_t(p.n_ctx) - 1});

    const bool notes_neurons = p.record && p.record != PI_RECORD_SQUARES;
    for (float** to : {&ffn.gate, &ffn.up}) carver.take(*to, {most.values});
    if (notes_neurons) carver.take(ffn.fired, {std::max(most.values, rows * n_ff)});
    carver.take(ffn.products, {3, most.blocks});
    if (sizes.n_expert) {
        MixtureRows& m = mixture;
        carver.take(ffn.share, {rows});
        carver.take(m.scores, {rows, sizes.n_expert});
        m.routed = ggml::RouteScratch(carver, rows, sizes.n_expert, sizes.n_used);
        carver.take(m.chosen.first, {sizes.n_expert + 1});
        carver.take(m.chosen.rows, {rows, sizes.n_used});
        carver.take(m.chosen.expert_weights, {rows, sizes.n_used});
        carver.take(m.computed, {sizes.n_expert});
        m.gathered_q8 = ggml::InputBuffer(carver, by_expert, c.n_embd);
        for (float** to : {&m.gathered, &m.out}) carver.take(*to, {by_expert, c.n_embd});
        if (c.has_predictors && !c.predict_from_normed) {
            carver.take(m.gathered_residual, {rows, c.n_embd});
        }
        for (float** to : {&m.narrow, &m.narrow_sum}) carver.take(*to, {rows, sizes.expert_width});
        if (sizes.expert_width) {
            m.narrow_input = ggml::SharedInput(carver, rows, sizes.expert_width);
        }
    }
    if (c.neuron_aware) {
        neurons.scratch = ggml::NeuronScratch(carver, rows, n_ff, c.n_embd, threads, in_store);
        if (in_store) neurons.stored = StoredScratch(carver, rows, n_ff, c.n_embd);
        neurons.candidates = ggml::Candidates(carver, n_ff);
        carver.take(neurons.sums, {ggml::kSegments, c.n_embd});
        const auto norms = [](const FeedForward* part) { return part->norms_values; };
        if (std::any_of(model.ffns.begin(), model.ffns.end(), norms)) {
            carver.take(neurons.values, {rows, n_ff});
        }
    }
    if (c.has_predictors) {
        if (c.sketches) predictor.sketch = ggml::SketchScratch(carver, rows, c.n_embd);
        carver.take(predictor.hidden, {rows, c.predictor_rank});
        carver.take(predictor.score, {by_expert, n_ff});
        carver.take(predictor.masked, {by_expert});
        carver.take(predictor.audited, {rows});
    }
    if (StateLayout(model.layers)) {
        state.by_sequence = RowsBySequence(carver, rows, p.n_seq);
        carver.take(state.entering, {rows, sizes.entering});
        carver.take(state.beside, {rows, sizes.beside});
        carver.take(state.folded, {rows, sizes.folded});
    }
    if (const int64_t of_layer = model.layer_embd.width) {
        carver.take(embedding.all, {rows, c.n_layer * of_layer});
        if (model.layer_embd.of_tokens) {
            carver.take(embedding.rows,
                        {std::min(rows, LayerEmbeddingRows::kAtOnce), c.n_layer * of_layer});
        }
        carver.take(embedding.gate, {rows, of_layer});
    }
    if (c.n_streams > 1) {
        for (float** to : {&mixed.normed, &mixed.gate}) carver.take(*to, {rows, c.stream_width()});
        carver.take(mixed.low, {rows, sizes.mixed});
        carver.take(mixed.score, {rows, c.n_streams});
    }
    carver.take(grams.id, {rows, sizes.grams});
    carver.take(grams.joined, {rows, sizes.joined});
    if (model.guesses()) {
        carver.take(guess.joined, {rows, 2 * c.n_embd});
        carver.take(guess.logits, {c.n_vocab});
    }
}

}  // namespace powerinfer
