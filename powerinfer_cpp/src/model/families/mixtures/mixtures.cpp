// Mixtures of experts that differ from Llama in the norms of heads and in how experts are chosen,
// and dense relatives of theirs. Which layers have experts is seen by their tensors.
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

using Norms = Attention::Norms;

// Score differences, as a part of the largest score, up to which Phi-3.5-MoE's router compares
// experts: twice router_jitter_noise.
constexpr double kPhiMixer = 0.02;

void configure_ernie_mixture(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    // From the first layer with experts on, every n-th has them.
    gguf.integer(c.architecture + ".interleave_moe_layer_step", 0, INT32_MAX, 1);
}

// LayerNorm, though the key is that of RMSNorm.
void configure_phi_mixture(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    c.norm = Norm::layer;
}

void weights_plain(Model& m, std::vector<WeightSpec>& specs) {
    llama_weights(m, specs, {});
}

void head_bias(Model& m, std::vector<WeightSpec>& specs) {
    Weights(m, specs).optional(Part::head, "output.bias", m.config.n_vocab, &m.output_bias);
}

void weights_ernie_mixture(Model& m, std::vector<WeightSpec>& specs) {
    llama_weights(m, specs, {});
    head_bias(m, specs);
}

// The weights of experts are what the softmax over all gives.
void weights_qwen2(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.normalise = false;
    llama_weights(m, specs, form);
}

void weights_olmoe(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.head_norms = Norms::whole_row;
    form.normalise = false;
    llama_weights(m, specs, form);
}

// GLM-4.5-Air has no norms of heads, GLM-4.5 has.
void weights_glm4_moe(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.ffn_norm = "post_attention_norm";
    form.head_norms = Norms::by_head;
    form.some_lack_norms = true;
    form.gating = ggml::Gating::sigmoid;
    llama_weights(m, specs, form);
}

// dots.llm1, Hy3, Ling 2.
LayerForm form_of_sigmoids() {
    LayerForm form;
    form.head_norms = Norms::by_head;
    form.gating = ggml::Gating::sigmoid;
    return form;
}

void weights_of_sigmoids(Model& m, std::vector<WeightSpec>& specs) {
    llama_weights(m, specs, form_of_sigmoids());
}

void nextn_of_sigmoids(Model& m, std::vector<WeightSpec>& specs) {
    Weights(m, specs).nextn(form_of_sigmoids());
}

void weights_hunyuan(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.head_norms = Norms::after_rope;
    form.some_lack_norms = true;
    llama_weights(m, specs, form);
}

void weights_minimax(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.head_norms = Norms::whole_row;
    form.gating = ggml::Gating::sigmoid;
    llama_weights(m, specs, form);
}

void weights_phi(Model& m, std::vector<WeightSpec>& specs) {
    llama_weights(m, specs, {});
    head_bias(m, specs);
    const double mixer = m.file.gguf.number("powerinfer.router.mixer", 0, 1, kPhiMixer);
    for (Layer& layer : m.layers) {
        if (auto* router = layer.find<Router>()) router->how.mixer = float(mixer);
    }
}

}  // namespace

const std::vector<Family> kMixtureFamilies = {
    Family{"glm4moe", configure_halves, weights_glm4_moe}.of_experts(),
    Family{"qwen2moe", configure_halves, weights_qwen2}.of_experts(),
    Family{"olmoe", configure_halves, weights_olmoe}.of_experts(),
    Family{"ernie4_5", configure_llama, weights_plain},
    Family{"ernie4_5-moe", configure_ernie_mixture, weights_ernie_mixture}.of_experts(),
    Family{"hunyuan-dense", configure_halves, weights_hunyuan},
    Family{"hunyuan-moe", configure_halves, weights_hunyuan}.of_experts(),
    Family{"minimax-m2", configure_halves, weights_minimax}.of_experts(),
    Family{"dots1", configure_halves, weights_of_sigmoids}.of_experts(),
    Family{"hy_v3", configure_halves, weights_of_sigmoids}.of_experts().guessing(nextn_of_sigmoids),
    Family{"bailingmoe2", configure_halves, weights_of_sigmoids}.of_experts().guessing(
        nextn_of_sigmoids),
    Family{"phimoe", configure_phi_mixture, weights_phi}.of_experts(),
};

}  // namespace powerinfer
