// SmallThinker (PowerInfer's own models, arXiv 2507.20984): experts with ReLU gates. The router
// reads the layer's input before attention. In models with a sliding window, every fourth layer,
// starting with the first, sees all positions and has no RoPE.
#include <algorithm>

#include "model/families/family.h"

namespace powerinfer {

namespace {

constexpr int64_t kSmallThinkerPeriod = 4;  // distance between global layers

void configure_smallthinker(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
}

void weights_smallthinker(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    const std::vector<int64_t> windows =
        read_windows(m, {0, kSmallThinkerPeriod, WindowPattern::Global::first});
    const bool slides =
        std::any_of(windows.begin(), windows.end(), [](int64_t n) { return n > 0; });
    for (int64_t i = 0; i < c.n_layer; i++) {
        w.add_router(i, "");
        Attention& a = std::get<Attention>(w.add_attention(i, "attn_norm").op);
        a.window = windows[size_t(i)];
        if (slides && !a.window) a.rope = -1;
        w.attention(i);
        w.add_feed_forward(i, "ffn_norm");
        w.router(i);
        w.experts(i);
    }
}

}  // namespace

const std::vector<Family> kSmallThinkerFamilies = {
    Family{"smallthinker", configure_smallthinker, weights_smallthinker}
        .with(ggml::Activation::relu)
        .of_experts()};

}  // namespace powerinfer
