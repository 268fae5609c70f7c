// Granite 3 and 4 without Mamba layers: Llama with four multipliers, dense or with experts.
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

// A multiplier; 0 and a missing key stand for `missing`.
float multiplier(const ggml::Gguf& gguf, const Config& c, const char* key, double missing = 1) {
    const double value = gguf.number(c.architecture + key, 0, 1e6, missing);
    return float(value == 0 ? missing : value);
}

void configure(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    c.embedding_scale = multiplier(gguf, c, ".embedding_scale");
    c.logit_scale = 1 / multiplier(gguf, c, ".logit_scale");
    // The models with Mamba layers were trained without positions, and so were their dense ones.
    const ggml::Value* rotates = gguf.find(c.architecture + ".rope.scaling.finetuned");
    if (rotates && !rotates->integer()) c.ropes.clear();
}

void configure_mixture(const ggml::Gguf& gguf, Config& c) {
    configure(gguf, c);
    require_experts(gguf, c);
}

void weights(Model& m, std::vector<WeightSpec>& specs) {
    const ggml::Gguf& gguf = m.file.gguf;
    LayerForm form;
    form.scale = multiplier(gguf, m.config, ".residual_scale");
    llama_weights(m, specs, form);
    for (Layer& layer : m.layers) {
        Attention& a = *layer.find<Attention>();
        a.scale = multiplier(gguf, m.config, ".attention.scale", double(a.scale));
    }
}

}  // namespace

const std::vector<Family> kGraniteFamilies = {
    {"granite", Activation::silu, Activation::relu, configure, weights},
    {"granitemoe", Activation::silu, Activation::relu, configure_mixture, weights},
};

}  // namespace powerinfer
