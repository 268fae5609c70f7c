// Laguna: a gate for each head, or for each value that the heads give, by softplus. Layers with a
// window have another number of heads and a RoPE of their own; a model may have no windows. Without
// a pattern in the file the first of every four layers sees all positions.
#include <algorithm>

#include "model/families/family.h"

namespace powerinfer {

namespace {

constexpr int64_t kLagunaPeriod = 4;

void configure_laguna(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    int64_t width = layer_sizes(gguf, c, 0).head_dim;
    for (int64_t i = 1; i < c.n_layer; i++) {
        width = std::min(width, layer_sizes(gguf, c, i).head_dim);
    }
    add_window_rope(gguf, c, c.ropes[0], width);
}

void weights_laguna(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.embedding_and_head();
    LayerForm form;
    form.head_norms = Attention::Norms::by_head;
    form.output_gate = ggml::GateBy::softplus;
    form.gating = ggml::Gating::sigmoid;
    const std::vector<int64_t> windows =
        read_windows(m, {0, kLagunaPeriod, WindowPattern::Global::first});
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.layer(i, form);
        Attention& a = *m.layers[size_t(i)].find<Attention>();
        a.window = windows[size_t(i)];
        if (a.window) a.rope = 1;
    }
}

}  // namespace

const std::vector<Family> kLagunaFamilies = {
    Family{"laguna", configure_laguna, weights_laguna}.of_experts()};

}  // namespace powerinfer
