// StableLM: LayerNorm, RoPE of a part of each head, a gated FFN. StableLM 2 12B computes attention
// and FFN in parallel, from one norm, and normalises each head of queries and keys.
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure_stablelm(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
}

void weights_stablelm(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    // The tensor decides, as in llama.cpp, not the key, which converters write wrongly.
    m.file.gguf.find(c.architecture + ".use_parallel_residual");
    const bool parallel = !w.has("blk.0.ffn_norm.weight");
    for (int64_t i = 0; i < c.n_layer; i++) {
        const std::string q_norm = blk(i, "attn_q_norm.weight"),
                          k_norm = blk(i, "attn_k_norm.weight");
        LayerPart& attention = w.add_attention(i, "attn_norm");
        Attention& a = std::get<Attention>(attention.op);
        w.attention(i);
        if (w.has(q_norm) || w.has(k_norm)) {
            w.rows(Part::norms, q_norm, {a.head_dim, a.n_head}, 0, a.n_head, Vector{&a.q_norm});
            w.rows(Part::norms, k_norm, {a.head_dim, a.n_head_kv}, 0, a.n_head_kv,
                   Vector{&a.k_norm});
        }
        const std::string ffn_norm = blk(i, "ffn_norm.weight");
        if (parallel && w.has(ffn_norm)) {
            throw ggml::Error(ggml::Code::format, m.file.gguf.path() + ": tensor \"" + ffn_norm +
                                                      "\" is there, but not that of layer 0");
        }
        if (parallel) attention.add = LayerPart::Add::with_next;
        w.add_feed_forward(i, parallel ? "attn_norm" : "ffn_norm");
        w.ffn(i, true);
    }
}

}  // namespace

const std::vector<Family> kStableLmFamilies = {
    Family{"stablelm", configure_stablelm, weights_stablelm}};

}  // namespace powerinfer
