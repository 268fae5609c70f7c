// GPT-2: learned positions, LayerNorm, biases everywhere, queries, keys and values in one tensor,
// no gate. The head is usually tied to the embedding.
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure_gpt2(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    learn_positions(gguf, c, 0);
}

void weights_gpt2(Model& m, std::vector<WeightSpec>& specs) {
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

const std::vector<Family> kGpt2Families = {
    Family{"gpt2", configure_gpt2, weights_gpt2}.with(ggml::Activation::gelu_tanh)};

}  // namespace powerinfer
