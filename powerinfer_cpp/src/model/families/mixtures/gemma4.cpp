// Gemma 4 (text). Layers with a window and those that see all positions have heads of two widths,
// and a RoPE each; queries, keys and values are normalised, and scores are not scaled. Mixtures
// have a dense block beside the experts. The smallest models have embeddings for each layer, and
// their last layers read the keys and values of earlier ones. EmbeddingGemma 2 is one of them whose
// rows see both sides.
#include <algorithm>
#include <cmath>

#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

constexpr int64_t kGemma4Period = 6, kGemma4Widest = 1 << 16;

int64_t window_head_dim(const ggml::Gguf& gguf, const Config& c) {
    const std::string key = c.architecture + ".attention.key_length", swa = key + "_swa";
    const int64_t width = gguf.integer(swa, 2, kGemma4Widest, gguf.integer(key, 2, kGemma4Widest));
    gguf.integer(c.architecture + ".attention.value_length_swa", width, width, width);
    return width;
}

void configure_body(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
    c.embedding_scale = std::sqrt(float(c.n_embd));
    const int64_t width = window_head_dim(gguf, c);
    add_window_rope(gguf, c, {10000, width / 2 * 2}, width);
}

void configure_gemma4(const ggml::Gguf& gguf, Config& c) {
    configure_body(gguf, c);
    c.logit_softcap =
        float(gguf.number(c.architecture + ".final_logit_softcapping", 0, 1e6, 30));  // 0: none
}

void configure_gemma_embedding2(const ggml::Gguf& gguf, Config& c) {
    configure_body(gguf, c);
    encode(gguf, c);
}

// Layers from `first` on read the keys and values of the last layer before it of their kind: the
// one that sees all positions, or that has a window; -1: there is none.
struct SharedHeads {
    int64_t first, of_kind[2] = {-1, -1};
};

SharedHeads shared_heads(const Model& m, const std::vector<int64_t>& windows) {
    const Config& c = m.config;
    SharedHeads s{c.n_layer};
    if (c.encoder) return s;  // keys and values of one layer make room for the next one's
    const std::string key = c.architecture + ".attention.shared_kv_layers";
    s.first -= m.file.gguf.integer(key, 0, c.n_layer - 1, 0);
    for (int64_t i = 0; i < s.first; i++) s.of_kind[windows[size_t(i)] > 0] = i;
    return s;
}

int64_t owner_of_heads(const Model& m, int64_t i, const SharedHeads& shared, bool window) {
    if (const int64_t owner = shared.of_kind[window]; owner >= 0) return owner;
    throw ggml::Error(ggml::Code::format,
                      ggml::format("%s: key \"gemma4.attention.shared_kv_layers\": layer %lld has "
                                   "no earlier layer of its kind",
                                   m.file.gguf.path().c_str(), (long long)i));
}

void add_attention(Weights& w, int64_t i, const std::vector<int64_t>& windows,
                   const SharedHeads& shared) {
    const ggml::Gguf& gguf = w.m.file.gguf;
    const Config& c = w.m.config;
    LayerPart& part = w.add_attention(i, "attn_norm");
    Attention& a = std::get<Attention>(part.op);
    a.scale = float(gguf.number(c.architecture + ".attention.scale", 1e-6, 1e6, 1));
    a.window = windows[size_t(i)];
    a.v_norm = true;
    if (a.window) {
        a.head_dim = a.v_head_dim = window_head_dim(gguf, c);
        a.rope = 1;
    }
    if (i >= shared.first) {
        a.kv_of = owner_of_heads(w.m, i, shared, a.window > 0);
        const auto& owner = *w.m.layers[size_t(a.kv_of)].find<Attention>();
        if (owner.n_head_kv != a.n_head_kv) {
            throw ggml::Error(ggml::Code::format,
                              ggml::format("%s: layers %lld and %lld share %s, but have %lld and "
                                           "%lld key heads",
                                           gguf.path().c_str(), (long long)a.kv_of, (long long)i,
                                           "keys and values", (long long)owner.n_head_kv,
                                           (long long)a.n_head_kv));
        }
    }
    w.attention_without_values(i);
    w.head_norms(i);
    if (c.encoder) see_both_sides(a);
    w.post_norm(i, "post_attention_norm", part);
}

// A dense block and experts, each between norms of its own, and a norm of their sum. The router
// reads the stream behind a norm without a weight, times a scale / sqrt(n_embd).
void add_experts(Weights& w, int64_t i) {
    const Config& c = w.m.config;
    LayerPart& dense = w.add_feed_forward(i, "ffn_norm");
    std::get<FeedForward>(dense.op).n_ff = layer_sizes(w.m.file.gguf, c, i).n_ff_dense;
    dense.add = LayerPart::Add::with_next;
    w.ffn(i, true);
    w.post_norm(i, "post_ffw_norm_1", dense);
    LayerPart& chooser = w.add_router(i, "");
    Router& router = std::get<Router>(chooser.op);
    router.scale = float(1 / std::sqrt(double(c.n_embd)));
    w.norm_of(blk(i, "ffn_gate_inp.scale"), &chooser.norm.emplace(), c.n_embd);
    w.router(i);
    w.optional(Part::ffn, blk(i, "ffn_down_exps.scale"), router.how.n_expert,
               &router.how.expert_scale);
    LayerPart& experts = w.add_feed_forward(i, "pre_ffw_norm_2");
    w.experts(i);
    w.post_norm(i, "post_ffw_norm_2", experts);
    w.norm(blk(i, "post_ffw_norm"), &experts.sum_norm.emplace(), c.n_embd);
}

// What layers get of each token: what is made of its embedding, and but for EmbeddingGemma 2 a row
// of a table.
void read_layer_embeddings(Weights& w) {
    const Config& c = w.m.config;
    auto& e = w.m.layer_embd;
    e.width = w.m.file.gguf.integer(c.architecture + ".embedding_length_per_layer_input", 0,
                                    kGemma4Widest, 0);
    if (!e.width) return;
    e.of_tokens = !c.encoder;
    const int64_t all = c.n_layer * e.width;
    if (e.of_tokens) {
        w.rows(Part::embedding, "per_layer_token_embd.weight", {all, c.n_vocab}, 0, c.n_vocab,
               Table{&e.tokens, &w.m.own_rows_stored, true});
    }
    w.matrix(Part::embedding, "per_layer_model_proj.weight", all, c.n_embd, &e.project);
    w.vector(Part::norms, "per_layer_proj_norm.weight", e.width, &e.norm);
}

void add_layer_embedding(Weights& w, int64_t i) {
    const int64_t width = w.m.layer_embd.width, n_embd = w.m.config.n_embd;
    LayerPart& part = w.m.layers[size_t(i)].parts.emplace_back();
    auto& e = part.op.emplace<LayerEmbedding>();
    w.matrix(Part::ffn, blk(i, "inp_gate.weight"), width, n_embd, &e.gate);
    w.matrix(Part::ffn, blk(i, "proj.weight"), n_embd, width, &e.project);
    w.post_norm(i, "post_norm", part);
}

void weights_gemma4(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    read_layer_embeddings(w);
    const std::vector<int64_t> windows = read_windows(m, {0, kGemma4Period});
    const SharedHeads shared = shared_heads(m, windows);
    for (int64_t i = 0; i < c.n_layer; i++) {
        add_attention(w, i, windows, shared);
        if (w.has_experts(i)) {
            add_experts(w, i);
        } else if (w.has(blk(i, "ffn_gate_inp.weight"))) {
            throw ggml::Error(
                ggml::Code::format,
                ggml::format("%s: layer %lld has a router, but no experts by the keys "
                             "%s.expert_count and leading_dense_block_count",
                             m.file.gguf.path().c_str(), (long long)i, c.architecture.c_str()));
        } else {
            LayerPart& ffn = w.add_feed_forward(i, "ffn_norm");
            w.ffn(i, true);
            w.post_norm(i, "post_ffw_norm", ffn);
        }
        if (m.layer_embd.width) add_layer_embedding(w, i);
        w.optional(Part::norms, blk(i, "layer_output_scale.weight"), 1, &m.layers[size_t(i)].scale);
    }
}

}  // namespace

const std::vector<Family> kGemma4Families = {
    Family{"gemma4", configure_gemma4, weights_gemma4}.with(ggml::Activation::gelu_tanh),
    Family{"gemma-embedding2", configure_gemma_embedding2, weights_gemma4}.with(
        ggml::Activation::gelu_tanh)};

}  // namespace powerinfer
