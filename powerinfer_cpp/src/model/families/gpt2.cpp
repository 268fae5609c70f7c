// GPT-2: learned positions, LayerNorm, biases everywhere, queries, keys and values in one tensor,
// no gate. The head is usually tied to the embedding.
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure(const ggml::Gguf& gguf, Config& c) {
    c.norm = Config::Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    learn_positions(gguf, c, 0);
}

void weights(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    w.positions();
    for (int64_t i = 0; i < c.n_layer; i++) {
        Layer& l = m.layers[size_t(i)];
        w.norm(blk(i, "attn_norm"), &l.attn_norm, c.n_embd);
        w.fused_attention(i, true);
        w.norm(blk(i, "ffn_norm"), &l.ffn_norm, c.n_embd);
        w.ffn(i, false);
    }
}

}  // namespace

const std::vector<Family> kGpt2Families = {
    {"gpt2", ggml::Activation::gelu_tanh, ggml::Activation::relu, configure, weights}};

}  // namespace powerinfer
