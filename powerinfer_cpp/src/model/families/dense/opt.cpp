// OPT: learned positions, LayerNorm, biases everywhere, no gate, head tied to the embedding.
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure_opt(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    // PowerInfer's converter writes no epsilon; the checkpoints use 1e-5.
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1, 1e-5));
    // The first two rows are padding, which PowerInfer's context_length counts.
    learn_positions(gguf, c, 2);
}

void weights_opt(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.embedding_and_head();
    w.positions();
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.add_attention(i, "attn_norm");
        w.attention(i);
        w.add_feed_forward(i, "ffn_norm");
        w.ffn(i, false);
    }
}

}  // namespace

const std::vector<Family> kOptFamilies = {
    Family{"opt", configure_opt, weights_opt}.with(ggml::Activation::relu)};

}  // namespace powerinfer
