// StableLM: LayerNorm, RoPE of a part of each head, a gated FFN. StableLM 2 12B computes attention
// and FFN in parallel, from one norm, and normalises each head of queries and keys.
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure(const ggml::Gguf& gguf, Config& c) {
    c.norm = Config::Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
    // The tensor decides, as in llama.cpp, not the key, which converters write wrongly.
    gguf.find(c.architecture + ".use_parallel_residual");
    c.parallel_ffn = !gguf.find_tensor("blk.0.ffn_norm.weight");
}

void weights(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    for (int64_t i = 0; i < c.n_layer; i++) {
        Layer& l = m.layers[size_t(i)];
        const std::string q_norm = blk(i, "attn_q_norm.weight"),
                          k_norm = blk(i, "attn_k_norm.weight");
        w.norm(blk(i, "attn_norm"), &l.attn_norm, c.n_embd);
        w.attention(i);
        if (w.has(q_norm) || w.has(k_norm)) {
            w.rows(Part::norms, q_norm, {c.head_dim, c.n_head}, 0, c.n_head, Vector{&l.q_norm});
            w.rows(Part::norms, k_norm, {c.head_dim, c.n_head_kv}, 0, c.n_head_kv,
                   Vector{&l.k_norm});
        }
        const std::string ffn_norm = blk(i, "ffn_norm.weight");
        if (c.parallel_ffn && w.has(ffn_norm)) {
            throw ggml::Error(ggml::Code::format, m.file.gguf.path() + ": tensor \"" + ffn_norm +
                                                      "\" is there, but not that of layer 0");
        }
        w.norm(blk(i, c.parallel_ffn ? "attn_norm" : "ffn_norm"), &l.ffn_norm, c.n_embd);
        w.ffn(i, true);
    }
}

}  // namespace

const std::vector<Family> kStableLmFamilies = {
    {"stablelm", ggml::Activation::silu, ggml::Activation::relu, configure, weights}};

}  // namespace powerinfer
