// Gemma, Gemma 2 and Gemma 3 (text): like Llama, with embeddings scaled by sqrt(n_embd) and an
// approximation of GELU. The files hold the weights of norms with 1 added, which the models add.
//
// Gemma 2 and 3 normalise what attention and FFN give before it is added to x, and most layers see
// a window. Gemma 2 caps attention scores and logits. Gemma 3 has norms of queries and keys, and
// layers with a window have a RoPE of their own.
#include <cmath>

#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

void configure(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
    c.embedding_scale = std::sqrt(float(c.n_embd));
}

// `wide_heads`: layers of the models whose scores are scaled by n_embd / n_head, not head_dim,
// where the file does not say. They are recognised as llama.cpp does.
void configure_with_caps(const ggml::Gguf& gguf, Config& c, int64_t wide_heads, double score_cap,
                         double logit_cap) {
    configure(gguf, c);
    c.post_norms = true;
    const int64_t width = c.n_layer == wide_heads ? c.n_embd / c.n_head : c.head_dim;
    c.attention_scale = float(
        gguf.number(c.architecture + ".attention.scale", 1e-6, 1e6, 1 / std::sqrt(double(width))));
    // 0 for none.
    c.attention_softcap =
        float(gguf.number(c.architecture + ".attn_logit_softcapping", 0, 1e6, score_cap));
    c.logit_softcap =
        float(gguf.number(c.architecture + ".final_logit_softcapping", 0, 1e6, logit_cap));
}

void configure_gemma2(const ggml::Gguf& gguf, Config& c) {
    configure_with_caps(gguf, c, 46, 50, 30);
}

void configure_gemma3(const ggml::Gguf& gguf, Config& c) {
    configure_with_caps(gguf, c, 62, 0, 0);
    c.local_rope_base = gguf.number(c.architecture + ".rope.freq_base_swa", 1e-3, 1e12, 10000);
}

void weights(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    for (int64_t i = 0; i < c.n_layer; i++) {
        Layer& l = m.layers[size_t(i)];
        w.norm(blk(i, "attn_norm"), &l.attn_norm, c.n_embd);
        w.attention(i);
        if (c.post_norms) w.norm(blk(i, "post_attention_norm"), &l.attn_post_norm, c.n_embd);
        w.norm(blk(i, "ffn_norm"), &l.ffn_norm, c.n_embd);
        w.ffn(i, true);
        if (c.post_norms) w.norm(blk(i, "post_ffw_norm"), &l.ffn_post_norm, c.n_embd);
    }
}

// Layers in turn have a window and see all positions.
void weights_gemma2(Model& m, std::vector<WeightSpec>& specs) {
    read_windows(m, {4096, 2});
    weights(m, specs);
}

// Every sixth layer sees all positions.
void weights_gemma3(Model& m, std::vector<WeightSpec>& specs) {
    read_windows(m, {0, 6});
    weights(m, specs);
    Weights w(m, specs);
    for (int64_t i = 0; i < m.config.n_layer; i++) w.head_norms(i);
}

}  // namespace

const std::vector<Family> kGemmaFamilies = {
    {"gemma", Activation::gelu_tanh, Activation::relu, configure, weights},
    {"gemma2", Activation::gelu_tanh, Activation::relu, configure_gemma2, weights_gemma2},
    {"gemma3", Activation::gelu_tanh, Activation::relu, configure_gemma3, weights_gemma3},
};

}  // namespace powerinfer
