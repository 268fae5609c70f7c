// gpt-oss: every second layer has a window, every head a sink, and experts have biases and an
// activation of their own. The norm before the experts is named as if it were behind attention.
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure_gpt_oss(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
}

void weights_gpt_oss(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.ffn_norm = "post_attention_norm";
    form.gating = ggml::Gating::of_chosen;
    form.normalise = false;  // a softmax sums to 1 already
    Weights w(m, specs);
    w.embedding_and_head();
    const std::vector<int64_t> windows = read_windows(m, {0, 2});
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.layer(i, form);
        Attention& a = *m.layers[size_t(i)].find<Attention>();
        a.window = windows[size_t(i)];
        w.vector(Part::attention, blk(i, "attn_sinks.weight"), a.n_head, &a.sinks);
    }
}

}  // namespace

const std::vector<Family> kGptOssFamilies = {
    Family{"gpt-oss", configure_gpt_oss, weights_gpt_oss}
        .with(ggml::Activation::swiglu_oai, ggml::Activation::swiglu_oai)
        .of_experts()};

}  // namespace powerinfer
