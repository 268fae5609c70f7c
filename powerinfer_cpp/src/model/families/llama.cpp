// Llama and similar families: RMSNorm before attention and FFN, RoPE, a gated FFN or experts.
// Mistral and Mixtral files are of this family too. Phi-3 has fused matrices.
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

void configure_llama(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
}

void configure_halves(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    c.rope_pairs = ggml::RopePairs::halves;
}

LayerForm norms_behind(Attention::Norms head_norms) {
    LayerForm form;
    form.attention_norm = form.ffn_norm = "";
    form.attention_post_norm = "post_attention_norm";
    form.ffn_post_norm = "post_ffw_norm";
    form.head_norms = head_norms;
    return form;
}

void llama_weights(Model& m, std::vector<WeightSpec>& specs, const LayerForm& form,
                   const WindowPattern& missing, const FinishLayer& finish) {
    Weights w(m, specs);
    w.embedding_and_head();
    const std::vector<int64_t> windows = read_windows(m, missing);
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.layer(i, form);
        Attention& a = *m.layers[size_t(i)].find<Attention>();
        a.window = windows[size_t(i)];
        if (finish) finish(i, a);
    }
}

namespace {

void weights_llama(Model& m, std::vector<WeightSpec>& specs) {
    llama_weights(m, specs, {});
}

// Qwen3 normalises the query and key of each head.
void weights_qwen3(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.head_norms = Attention::Norms::by_head;
    llama_weights(m, specs, form);
}

}  // namespace

const std::vector<Family> kLlamaFamilies = {
    Family{"llama", configure_llama, weights_llama},
    Family{"bamboo", configure_llama, weights_llama}.with(Activation::drelu, Activation::drelu),
    Family{"qwen2", configure_halves, weights_llama},
    Family{"qwen3", configure_halves, weights_qwen3},
    Family{"qwen3moe", configure_halves, weights_qwen3}.of_experts(),
    Family{"phi3", configure_halves, weights_llama},
};

}  // namespace powerinfer
