// ModernBERT (arXiv 2412.13663): LayerNorm before both parts, but not before attention in the first
// layer, RoPE, a gated feed-forward block. Two of three layers see a window on both sides, and have
// a RoPE of their own.
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

constexpr WindowPattern kPattern{128, 3, WindowPattern::Global::first};

void configure_modern_bert(const ggml::Gguf& gguf, Config& c) {
    const auto key = [&](const char* suffix) { return c.architecture + suffix; };
    c.norm = Norm::layer;
    c.norm_bias = gguf.find_tensor("output_norm.bias") != nullptr;
    c.norm_eps = float(gguf.number(key(".attention.layer_norm_epsilon"), 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
    // Of the models of IBM.
    const std::string_view act = gguf.string(key(".hidden_activation"), "gelu");
    if (act == "silu") {
        c.activation = Activation::silu;
    } else if (act != "gelu") {
        throw ggml::Error(ggml::Code::unsupported, gguf.path() + ": " + key(".hidden_activation") +
                                                       ": \"" + std::string(act.substr(0, 40)) +
                                                       "\" is not supported");
    }
    c.ropes.push_back(
        {gguf.number(key(".rope.freq_base_swa"), 1e-3, 1e12, 10000), c.ropes[0].n_rot, false});
    const auto kind = gguf.integer(key(".classifier.pooling_type"), 1, 2, 1);
    c.rank_pooling = Pooling(kind);
    encode(gguf, c);
}

void weights_modern_bert(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.encoder_embedding();
    w.norm("output_norm", &m.output_norm, m.config.n_embd);
    const std::vector<int64_t> windows = read_windows(m, kPattern);
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        const bool normed = i > 0 || w.has(blk(i, "attn_norm.weight"));
        auto& a = std::get<Attention>(w.add_attention(i, normed ? "attn_norm" : "").op);
        a.window = windows[size_t(i)];
        if (a.window) a.rope = 1;
        see_both_sides(a);
        w.attention(i);
        w.add_feed_forward(i, "ffn_norm");
        w.ffn(i, true);
    }
}

}  // namespace

const std::vector<Family> kModernBertFamilies = {
    Family{"modern-bert", configure_modern_bert, weights_modern_bert}.with(Activation::gelu)};

}  // namespace powerinfer
