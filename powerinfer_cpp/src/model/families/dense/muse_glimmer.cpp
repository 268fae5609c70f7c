// Muse Glimmer (text): embeddings behind a norm without a weight, a gate for each value that the
// heads give, norms before and behind both parts, those behind with an epsilon of their own. Every
// fourth layer, counted from the last, sees all positions and does not rotate. The files hold the
// weights of norms with 1 added, and those of queries and keys, which the model does not have.
#include "model/families/family.h"

namespace powerinfer {

namespace {

constexpr int64_t kMusePeriod = 4;
constexpr double kMusePostEps = 1e-8;

void configure_muse_glimmer(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    const auto key = [&](const char* suffix) { return c.architecture + suffix; };
    const double scale = gguf.number(key(".logit_scale"), 0, 1e6, 0);
    if (scale > 0) c.logit_scale = float(scale);
    c.logit_softcap = float(gguf.number(key(".final_logit_softcapping"), 0, 1e6, 0));  // 0: none
}

void weights_muse_glimmer(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.embedding_and_head();
    m.embedding_norm = NormWeights{nullptr, nullptr, Norm::rms, m.config.norm_eps};
    LayerForm form;
    form.attention_post_norm = "post_attention_norm";
    form.ffn_post_norm = "post_ffw_norm";
    form.head_norms = Attention::Norms::by_head;
    form.output_gate = ggml::GateBy::sigmoid;
    const double post_eps = m.file.gguf.number("powerinfer.post_norm_epsilon", 0, 1, kMusePostEps);
    const std::vector<int64_t> windows =
        read_windows(m, {0, kMusePeriod, WindowPattern::Global::from_end});
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.layer(i, form);
        Layer& layer = m.layers[size_t(i)];
        for (LayerPart& part : layer.parts) part.post_norm->eps = float(post_eps);
        Attention& a = *layer.find<Attention>();
        a.window = windows[size_t(i)];
        if (!rotates(m, i, a.window > 0)) a.rope = -1;
    }
}

}  // namespace

const std::vector<Family> kMuseGlimmerFamilies = {
    Family{"muse-glimmer", configure_muse_glimmer, weights_muse_glimmer}};

}  // namespace powerinfer
