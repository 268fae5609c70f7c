// Falcon: LayerNorm; queries, keys and values in one tensor; attention and FFN in parallel; no
// gate. Models like Falcon 40B have separate norms for attention and FFN.
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure_falcon(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
}

void weights_falcon(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.embedding_and_head();
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        const bool two_norms = w.has(blk(i, "attn_norm_2.weight"));
        w.add_attention(i, two_norms ? "attn_norm_2" : "attn_norm").add = LayerPart::Add::with_next;
        w.attention(i);
        w.add_feed_forward(i, "attn_norm");
        w.ffn(i, false);
    }
}

}  // namespace

// Files do not name the activation: llama.cpp's use GELU, PowerInfer's ReLU.
const std::vector<Family> kFalconFamilies = {
    Family{"falcon", configure_falcon, weights_falcon}.with(ggml::Activation::gelu)};

}  // namespace powerinfer
