// Nemotron-H and Nemotron 3: a layer is one norm and one part, which is Mamba-2, attention without
// positions, a block whose neurons square what ReLU lets through, or experts of such blocks.
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

constexpr char kNorm[] = "attn_norm";

void configure_nemotron_h(const ggml::Gguf& gguf, Config& c) {
    const std::string eps = c.architecture + ".attention.layer_norm_epsilon";
    const std::string rms = c.architecture + ".attention.layer_norm_rms_epsilon";
    c.norm_eps = float(gguf.number(gguf.find(rms) ? rms : eps, 0, 1));
    // Sizes of Mamba-2 layers: a model without them has the keys as well.
    for (const char* key :
         {"conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count"}) {
        gguf.find(c.architecture + ".ssm." + key);
    }
}

LayerForm form_with(const char* ffn_norm) {
    LayerForm form;
    form.attention_norm = kNorm;
    form.ffn_norm = ffn_norm;
    form.gated = false;
    form.gating = ggml::Gating::sigmoid;
    form.narrow_experts = true;
    return form;
}

// Attention and experts in one layer, and a LayerNorm behind it.
void nextn_nemotron_h(Model& m, std::vector<WeightSpec>& specs) {
    Weights(m, specs).nextn(form_with("post_attention_norm"));
    const std::string eps = m.config.architecture + ".attention.layer_norm_epsilon";
    m.nextn.centred = true;
    m.nextn.last_eps = float(m.file.gguf.number(eps, 0, 1, m.config.norm_eps));
}

void weights_nemotron_h(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.embedding_and_head();
    const LayerForm form = form_with(kNorm);
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        if (w.has(blk(i, "ssm_in.weight"))) {
            w.mamba2(i, kNorm);
        } else if (w.has(blk(i, "attn_output.weight"))) {
            w.attend(i, form);
        } else {
            w.feed_forward(i, form);
        }
    }
}

}  // namespace

const std::vector<Family> kNemotronHFamilies = {
    Family{"nemotron_h", configure_nemotron_h, weights_nemotron_h}
        .with(Activation::relu2, Activation::relu2)
        .of_hybrid_layers()
        .without_rotation(),
    Family{"nemotron_h_moe", configure_nemotron_h, weights_nemotron_h}
        .with(Activation::relu2, Activation::relu2)
        .of_experts()
        .of_hybrid_layers()
        .without_rotation()
        .guessing(nextn_nemotron_h),
};

}  // namespace powerinfer
