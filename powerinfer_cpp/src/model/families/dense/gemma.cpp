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

void configure_gemma(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
    c.embedding_scale = std::sqrt(float(c.n_embd));
}

void configure_with_cap(const ggml::Gguf& gguf, Config& c, double logit_cap) {
    configure_gemma(gguf, c);
    // 0 for none.
    c.logit_softcap =
        float(gguf.number(c.architecture + ".final_logit_softcapping", 0, 1e6, logit_cap));
}

void configure_gemma2(const ggml::Gguf& gguf, Config& c) {
    configure_with_cap(gguf, c, 30);
}

void configure_gemma3(const ggml::Gguf& gguf, Config& c) {
    configure_with_cap(gguf, c, 0);
    const double base = gguf.number(c.architecture + ".rope.freq_base_swa", 1e-3, 1e12, 10000);
    c.ropes.push_back({base, c.ropes[0].n_rot, false});
}

void weights_gemma(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.embedding_and_head();
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.add_attention(i, "attn_norm");
        w.attention(i);
        w.add_feed_forward(i, "ffn_norm");
        w.ffn(i, true);
    }
}

// `wide_heads`: layers of the models whose scores are scaled by n_embd / n_head, not head_dim,
// where the file does not say. They are recognised as llama.cpp does.
void weights_with_post_norms(Model& m, std::vector<WeightSpec>& specs, WindowPattern pattern,
                             int64_t wide_heads, double score_cap) {
    const ggml::Gguf& gguf = m.file.gguf;
    const Config& c = m.config;
    const std::vector<int64_t> windows = read_windows(m, pattern);
    Weights w(m, specs);
    w.embedding_and_head();
    for (int64_t i = 0; i < c.n_layer; i++) {
        LayerPart& attention = w.add_attention(i, "attn_norm");
        Attention& a = std::get<Attention>(attention.op);
        const int64_t width = c.n_layer == wide_heads ? c.n_embd / a.n_head : a.head_dim;
        a.scale = float(gguf.number(c.architecture + ".attention.scale", 1e-6, 1e6,
                                    1 / std::sqrt(double(width))));
        // 0 for none.
        a.softcap =
            float(gguf.number(c.architecture + ".attn_logit_softcapping", 0, 1e6, score_cap));
        a.window = windows[size_t(i)];
        if (a.window && c.ropes.size() > 1) a.rope = 1;
        w.attention(i);
        w.post_norm(i, "post_attention_norm", attention);
        LayerPart& ffn = w.add_feed_forward(i, "ffn_norm");
        w.ffn(i, true);
        w.post_norm(i, "post_ffw_norm", ffn);
    }
}

// Layers in turn have a window and see all positions.
void weights_gemma2(Model& m, std::vector<WeightSpec>& specs) {
    weights_with_post_norms(m, specs, {4096, 2}, 46, 50);
}

// Every sixth layer sees all positions.
void weights_gemma3(Model& m, std::vector<WeightSpec>& specs) {
    weights_with_post_norms(m, specs, {0, 6}, 62, 0);
    Weights w(m, specs);
    for (int64_t i = 0; i < m.config.n_layer; i++) w.head_norms(i);
}

// EmbeddingGemma: rows see both sides, in most layers half of the window on each.
void configure_gemma_embedding(const ggml::Gguf& gguf, Config& c) {
    configure_gemma3(gguf, c);
    encode(gguf, c);
}

void weights_gemma_embedding(Model& m, std::vector<WeightSpec>& specs) {
    weights_gemma3(m, specs);
    for (Layer& layer : m.layers) see_both_sides(*layer.find<Attention>());
}

}  // namespace

const std::vector<Family> kGemmaFamilies = {
    Family{"gemma", configure_gemma, weights_gemma}.with(Activation::gelu_tanh),
    Family{"gemma2", configure_gemma2, weights_gemma2}.with(Activation::gelu_tanh),
    Family{"gemma3", configure_gemma3, weights_gemma3}.with(Activation::gelu_tanh),
    Family{"gemma-embedding", configure_gemma_embedding, weights_gemma_embedding}.with(
        Activation::gelu_tanh),
};

}  // namespace powerinfer
