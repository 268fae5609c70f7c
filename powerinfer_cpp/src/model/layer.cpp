#include "model/layer.h"

#include <algorithm>

namespace powerinfer {

LargestSizes largest_sizes(const std::vector<Layer>& layers) {
    LargestSizes most;
    const auto raise = [](int64_t& to, int64_t value) { to = std::max(to, value); };
    for (const Layer& layer : layers) {
        for (const LayerPart& part : layer.parts) {
            if (const auto* a = std::get_if<Attention>(&part.op)) {
                raise(most.q_dim, a->q_dim());
                raise(most.k_dim, a->k_dim());
                raise(most.v_dim, a->v_dim());
                raise(most.out_dim, a->out_dim());
            } else if (const auto* r = std::get_if<Router>(&part.op)) {
                raise(most.n_expert, r->n_expert);
                raise(most.n_used, r->n_used);
            } else if (const auto* f = std::get_if<FeedForward>(&part.op)) {
                raise(most.n_ff, f->n_ff);
            }
        }
    }
    return most;
}

}  // namespace powerinfer
