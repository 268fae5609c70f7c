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

void configure_mixture(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    require_experts(gguf, c);
}

void configure_ernie_mixture(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    require_experts(gguf, c);
    // From the first layer with experts on, every n-th has them.
    gguf.integer(c.architecture + ".interleave_moe_layer_step", 0, INT32_MAX, 1);
}

// LayerNorm, though the key is that of RMSNorm.
void configure_phi_mixture(const ggml::Gguf& gguf, Config& c) {
    configure_mixture(gguf, c);
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

void weights_dots1(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.head_norms = Norms::by_head;
    form.gating = ggml::Gating::sigmoid;
    llama_weights(m, specs, form);
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
    {"glm4moe", Activation::silu, Activation::relu, configure_mixture, weights_glm4_moe},
    {"qwen2moe", Activation::silu, Activation::relu, configure_mixture, weights_qwen2},
    {"olmoe", Activation::silu, Activation::relu, configure_mixture, weights_olmoe},
    {"ernie4_5", Activation::silu, Activation::relu, configure_llama, weights_plain},
    {"ernie4_5-moe", Activation::silu, Activation::relu, configure_ernie_mixture,
     weights_ernie_mixture},
    {"hunyuan-dense", Activation::silu, Activation::relu, configure_halves, weights_hunyuan},
    {"hunyuan-moe", Activation::silu, Activation::relu, configure_mixture, weights_hunyuan},
    {"minimax-m2", Activation::silu, Activation::relu, configure_mixture, weights_minimax},
    {"dots1", Activation::silu, Activation::relu, configure_mixture, weights_dots1},
    {"phimoe", Activation::silu, Activation::relu, configure_phi_mixture, weights_phi},
};

}  // namespace powerinfer
