// SmallThinker (PowerInfer's own models, arXiv 2507.20984): experts with ReLU gates. The router
// reads the layer's input before attention. In models with a sliding window, every fourth layer,
// starting with the first, sees all positions and has no RoPE.
#include <algorithm>

#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

constexpr int64_t kPeriod = 4;  // distance between global layers

void configure(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
    c.route_layer_input = true;
    const std::string key = c.architecture + ".expert_gating_func";
    const int64_t gating = gguf.integer(key, 0, 255, 1);
    // 0: not said. 3: softmax over the chosen experts, whose shares sum to 1 in any case.
    if (gating > 3) {
        throw ggml::Error(ggml::Code::unsupported,
                          ggml::format("%s: %s %lld is not supported", gguf.path().c_str(),
                                       key.c_str(), (long long)gating));
    }
    c.gating = gating == 2 ? ggml::Gating::sigmoid : ggml::Gating::softmax;
    require_experts(gguf, c);
}

void weights(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    read_windows(m, {0, kPeriod, true});
    const bool slides =
        std::any_of(m.layers.begin(), m.layers.end(), [](const Layer& l) { return l.window > 0; });
    for (int64_t i = 0; i < c.n_layer; i++) {
        Layer& l = m.layers[size_t(i)];
        l.rotates = !slides || l.window > 0;
        w.norm(blk(i, "attn_norm"), &l.attn_norm, c.n_embd);
        w.attention(i);
        w.norm(blk(i, "ffn_norm"), &l.ffn_norm, c.n_embd);
        w.experts(i);
    }
}

}  // namespace

const std::vector<Family> kSmallThinkerFamilies = {
    {"smallthinker", ggml::Activation::relu, ggml::Activation::relu, configure, weights}};

}  // namespace powerinfer
