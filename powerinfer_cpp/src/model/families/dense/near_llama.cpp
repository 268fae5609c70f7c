// Dense families that differ from Llama in where norms stand, in which layers rotate or see a
// window, in biases, or in one factor.
#include <cmath>

#include "ggml/math.h"
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

constexpr int64_t kDensePeriod = 4;  // of layers of another kind, where the file does not say

using Specs = std::vector<WeightSpec>;

// SmolLM3: every fourth layer has no positions.
void weights_smollm3(Model& m, Specs& specs) {
    llama_weights(m, specs, {}, {0, 0}, [&](int64_t i, Attention& a) {
        if (!rotates(m, i, (i + 1) % kDensePeriod != 0)) a.rope = -1;
    });
}

// Ministral 3: queries grow behind the context of the training. YaRN's factor of cosine and sine is
// divided by what it would be with this multiplier of its logarithm, as in DeepSeek's.
void configure_mistral3(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    RopeScaling& r = c.rope_scaling;
    const double multiplier =
        gguf.number(c.architecture + ".rope.scaling.yarn_log_multiplier", 0, 1e3, 0);
    if (multiplier > 0 && r.kind == RopeScaling::Kind::yarn && r.factor > 1) {
        r.attention_factor /= 0.1 * multiplier * ggml::log_f64(r.factor) + 1;
    }
}

void weights_mistral3(Model& m, Specs& specs) {
    const std::string key = m.config.architecture + ".attention.temperature_scale";
    const double growth = m.file.gguf.number(key, 0, 1e3, 0);
    llama_weights(m, specs, {}, {0, 0}, [&](int64_t, Attention& a) {
        a.growth = growth;
        a.growth_ctx = int64_t(m.config.rope_scaling.original_ctx);
    });
}

// Seed-OSS: the norm before the feed-forward block has another name.
void weights_seed_oss(Model& m, Specs& specs) {
    LayerForm form;
    form.ffn_norm = "post_attention_norm";
    llama_weights(m, specs, form);
}

// GLM-4: norms before and behind both parts.
void weights_glm4(Model& m, Specs& specs) {
    LayerForm form;
    form.attention_post_norm = "post_attention_norm";
    form.ffn_post_norm = "post_ffw_norm";
    llama_weights(m, specs, form);
}

// OLMo 3, with windows, has a rotation of its own there, which is not scaled.
void configure_olmo2(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    add_window_rope(gguf, c, c.ropes[0], c.ropes[0].n_rot);
}

void weights_olmo2(Model& m, Specs& specs) {
    llama_weights(m, specs, norms_behind(Attention::Norms::whole_row), {0, kDensePeriod},
                  [](int64_t, Attention& a) {
                      if (a.window) a.rope = 1;
                  });
}

// EXAONE 4: a model with windows rotates only there.
void weights_exaone4(Model& m, Specs& specs) {
    const bool windows = has_windows(m, {0, kDensePeriod});
    llama_weights(m, specs, norms_behind(Attention::Norms::by_head), {0, kDensePeriod},
                  [&](int64_t i, Attention& a) {
                      if (!rotates(m, i, !windows || a.window)) a.rope = -1;
                  });
}

// Command R7B and later (Cohere 2): attention and feed-forward block read the same norm, a
// LayerNorm without bias. Layers with a window rotate, others do not.
void configure_cohere2(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    c.norm_bias = false;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    const double scale = gguf.number(c.architecture + ".logit_scale", 0, 1e6, 0);
    if (scale > 0) c.logit_scale = float(scale);
}

void weights_cohere2(Model& m, Specs& specs) {
    LayerForm form;
    form.ffn_norm = form.attention_norm;
    form.parallel = true;
    llama_weights(m, specs, form, {0, kDensePeriod}, [&](int64_t i, Attention& a) {
        if (!rotates(m, i, a.window > 0)) a.rope = -1;
    });
}

// Apertus: no gate, and an activation with parameters of each layer.
void weights_apertus(Model& m, Specs& specs) {
    LayerForm form;
    form.gated = false;
    form.head_norms = Attention::Norms::by_head;
    llama_weights(m, specs, form);
    if (m.config.activation != Activation::xielu) return;
    const auto read = [&](const char* key) {
        if (!m.file.gguf.find(key)) {
            throw ggml::Error(ggml::Code::format,
                              m.file.gguf.path() + ": key \"" + key + "\" is missing");
        }
        return per_layer(m.file.gguf, key, m.config.n_layer);
    };
    const std::vector<float> alpha_p = read("xielu.alpha_p"), alpha_n = read("xielu.alpha_n"),
                             beta = read("xielu.beta"), eps = read("xielu.eps");
    for (size_t i = 0; i < m.layers.size(); i++) {
        m.layers[i].find<FeedForward>()->xielu = {alpha_p[i], alpha_n[i], beta[i], eps[i]};
    }
}

// StarCoder 2: LayerNorm, biases everywhere, no gate.
void configure_starcoder2(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
}

void weights_starcoder2(Model& m, Specs& specs) {
    LayerForm form;
    form.gated = false;
    llama_weights(m, specs, form);
}

}  // namespace

const std::vector<Family> kDenseFamilies = {
    Family{"smollm3", configure_llama, weights_smollm3},
    Family{"mistral3", configure_mistral3, weights_mistral3},
    Family{"seed_oss", configure_halves, weights_seed_oss},
    Family{"glm4", configure_llama, weights_glm4},
    Family{"olmo2", configure_olmo2, weights_olmo2},
    Family{"exaone4", configure_halves, weights_exaone4},
    Family{"cohere2", configure_cohere2, weights_cohere2},
    Family{"apertus", configure_halves, weights_apertus}.with(Activation::xielu),
    Family{"starcoder2", configure_starcoder2, weights_starcoder2}.with(Activation::gelu_tanh),
};

}  // namespace powerinfer
