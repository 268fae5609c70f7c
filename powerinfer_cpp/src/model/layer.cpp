#include "model/layer.h"

#include <algorithm>

#include "ggml/status.h"

namespace powerinfer {

const FeedForward& experts_after(const Layer& layer, size_t k) {
    for (k++; k < layer.parts.size(); k++) {
        const auto* f = std::get_if<FeedForward>(&layer.parts[k].op);
        if (f && f->routed()) return *f;
    }
    throw ggml::Error(ggml::Code::internal, "a router has no experts");
}

const FeedForward* part_beside(const Layer& layer, size_t k) {
    constexpr int64_t kBlock = 32;  // values that are quantised together
    if (k + 1 >= layer.parts.size()) return nullptr;
    const LayerPart& next = layer.parts[k + 1];
    const auto* const experts = std::get_if<FeedForward>(&layer.parts[k].op);
    const auto* const beside = std::get_if<FeedForward>(&next.op);
    if (!experts || !beside || !experts->routed() || beside->routed()) return nullptr;
    if (next.input != LayerPart::Input::as_before) return nullptr;
    const bool rows = experts->blocks[0].neurons.n || beside->blocks[0].neurons.n;
    return rows || experts->n_ff % kBlock ? nullptr : beside;
}

StateSizes state_sizes(const Layer& layer) {
    StateSizes found;
    for_state_parts(layer, [&](const auto& part, const StateSizes& before) {
        found = {before.state + part.state(), before.entering + part.entering(),
                 before.folded + part.folded()};
    });
    if (layer.hidden) found = {layer.hidden, layer.hidden, 0};
    return found;
}

LargestSizes largest_sizes(const std::vector<Layer>& layers) {
    LargestSizes most;
    const auto raise = [](int64_t& to, int64_t value) { to = std::max(to, value); };
    for (const Layer& layer : layers) {
        for (const LayerPart& part : layer.parts) {
            if (part.mix) raise(most.mixed, part.mix->rank);
            if (const auto* grams = std::get_if<NGrams>(&part.op)) {
                raise(most.joined, grams->joined());
                raise(most.grams, grams->n_heads());
            }
            std::visit(ByKind{[&](const Attention& a) {
                                  raise(most.n_head, a.n_head);
                                  raise(most.head_dim, a.head_dim);
                                  raise(most.q_dim, a.q_dim());
                                  raise(most.k_dim, a.k_dim());
                                  raise(most.v_head_dim, a.v_head_dim);
                                  raise(most.attended, a.attended_dim());
                                  raise(most.out_dim, a.out_dim());
                                  if (a.gated) raise(most.by_head, a.q_rows());
                                  raise(most.n_gate, a.n_gate);
                                  if (!a.latent) return raise(most.v_dim, a.v_dim());
                                  const Latent& l = *a.latent;
                                  raise(most.latent, a.v_head_dim);
                                  raise(most.attended, a.out_dim());
                                  raise(most.attended, a.n_head * (l.nope + a.rotating()));
                                  raise(most.by_head, a.attended_dim());
                                  raise(most.by_head, std::max(l.q_rank, a.n_head * l.nope));
                              },
                              [&](const Router& r) {
                                  raise(most.n_expert, r.how.n_expert);
                                  raise(most.n_used, r.how.n_used);
                              },
                              [&](const FeedForward& f) {
                                  raise(most.n_ff, f.n_ff);
                                  raise(most.expert_width, f.width);
                              },
                              [](const LayerEmbedding&) {},
                              [&](const auto& with_state) {
                                  raise(most.entering, with_state.entering());
                                  raise(most.beside, with_state.beside());
                                  raise(most.folded, with_state.room());
                              }},
                       part.op);
        }
    }
    return most;
}

}  // namespace powerinfer
