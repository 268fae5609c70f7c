// Mixtures with sliding windows in most layers.
#include <algorithm>
#include <cmath>

#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

using Norms = Attention::Norms;
using Specs = std::vector<WeightSpec>;

constexpr int64_t kMixturePeriod = 4;  // the last layer of each sees all positions

// Trinity: norms before and behind both parts, an output gate, and a rotation only in layers with a
// window. llama.cpp always multiplies embeddings by the root of their width and has no key for it.
void configure_afmoe(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    const double root = std::sqrt(double(c.n_embd));
    c.embedding_scale = float(gguf.number(c.architecture + ".embedding_scale", 1e-6, 1e6, root));
}

void weights_afmoe(Model& m, Specs& specs) {
    LayerForm form;
    form.attention_post_norm = "post_attention_norm";
    form.ffn_post_norm = "post_ffw_norm";
    form.output_gate = ggml::GateBy::sigmoid;
    form.head_norms = Norms::by_head;
    form.gating = ggml::Gating::sigmoid;
    llama_weights(m, specs, form, {0, kMixturePeriod}, [&](int64_t i, Attention& a) {
        if (!rotates(m, i, a.window > 0)) a.rope = -1;
    });
}

// K-EXAONE: EXAONE 4 with norms before both parts. A model with windows rotates only there.
void weights_exaone_moe(Model& m, Specs& specs) {
    LayerForm form;
    form.head_norms = Norms::by_head;
    form.gating = ggml::Gating::sigmoid;
    const WindowPattern missing{0, kMixturePeriod};
    const bool windows = has_windows(m, missing);
    llama_weights(m, specs, form, missing, [&](int64_t i, Attention& a) {
        if (!rotates(m, i, !windows || a.window)) a.rope = -1;
    });
}

// A rotation of layers with a window, for the whole width that `missing` gives.
void configure_window_rope(const ggml::Gguf& gguf, Config& c, int64_t n_rot) {
    Rope missing = c.ropes[0];
    missing.n_rot = n_rot;
    add_window_rope(gguf, c, missing, layer_sizes(gguf, c, 0).head_dim);
}

// Mellum 2 is Qwen 3's mixture with windows.
void configure_mellum(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    configure_window_rope(gguf, c, c.ropes[0].n_rot);
}

void rotate_by_window(int64_t, Attention& a) {
    if (a.window) a.rope = 1;
}

void weights_mellum(Model& m, Specs& specs) {
    LayerForm form;
    form.head_norms = Norms::by_head;
    llama_weights(m, specs, form, {0, kMixturePeriod}, rotate_by_window);
}

// MiMo V2: values are narrower than keys and multiplied by a factor, which is that of the whole
// part's result; layers with a window have sinks.
void weights_mimo2(Model& m, Specs& specs) {
    LayerForm form;
    form.gating = ggml::Gating::sigmoid;
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string key = m.config.architecture + ".attention.value_scale";
    const double factor = gguf.number(key, 0, 1e6, 0);
    Weights w(m, specs);
    llama_weights(m, specs, form, {0, 0}, [&](int64_t i, Attention& a) {
        rotate_by_window(i, a);
        w.optional(Part::attention, blk(i, "attn_sinks.weight"), a.n_head, &a.sinks);
        if (factor == 0 || factor == 1) return;
        if (w.has(blk(i, "attn_output.bias"))) {
            throw ggml::Error(ggml::Code::unsupported,
                              gguf.path() + ": " + key + " with attn_output.bias");
        }
        m.layers[size_t(i)].parts[0].scale = float(factor);
    });
}

// Step 3.5: half of each head rotates, and the whole one in layers with a window; each head has a
// gate, and the last layers limit the gates of their experts. llama.cpp's files do not say how much
// rotates.
void configure_step35(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    const int64_t whole = c.ropes[0].n_rot;
    if (!gguf.find(c.architecture + ".rope.dimension_count_swa")) {
        c.ropes[0].n_rot = std::max<int64_t>(2, whole / 4 * 2);
    }
    configure_window_rope(gguf, c, whole);
}

void weights_step35(Model& m, Specs& specs) {
    LayerForm form;
    form.head_norms = Norms::by_head;
    form.output_gate = ggml::GateBy::sigmoid;
    form.gating = ggml::Gating::sigmoid;
    form.limits_gates = true;
    llama_weights(m, specs, form, {0, 0}, rotate_by_window);
}

// Command A+: attention and feed-forward block read the same norm, a LayerNorm without bias, or
// RMSNorm where the file has its epsilon. Layers with a window rotate, and dense ones at the front.
void configure_cohere2_moe(const ggml::Gguf& gguf, Config& c) {
    const std::string eps = c.architecture + ".attention.layer_norm_";
    const bool centred = !gguf.find(eps + "rms_epsilon");
    c.norm = centred ? Norm::layer : Norm::rms;
    c.norm_bias = false;
    c.norm_eps = float(gguf.number(eps + (centred ? "epsilon" : "rms_epsilon"), 0, 1));
    const double scale = gguf.number(c.architecture + ".logit_scale", 0, 1e6, 0);
    if (scale > 0) c.logit_scale = float(scale);
}

void weights_cohere2_moe(Model& m, Specs& specs) {
    LayerForm form;
    form.ffn_norm = form.attention_norm;
    form.parallel = true;
    form.gating = ggml::Gating::sigmoid;
    form.normalise = false;
    const ggml::Gguf& gguf = m.file.gguf;
    const int64_t n_dense =
        gguf.integer(m.config.architecture + ".leading_dense_block_count", 0, INT32_MAX, 0);
    // Our own key: of models that add both, which llama.cpp's converter refuses.
    const bool averages = gguf.boolean("powerinfer.experts.average", true);
    llama_weights(m, specs, form, {0, kMixturePeriod}, [&](int64_t i, Attention& a) {
        if (!rotates(m, i, a.window || i < n_dense)) a.rope = -1;
        // What the experts give, and then what the shared ones do: the mean of both is added.
        std::deque<LayerPart>& parts = m.layers[size_t(i)].parts;
        const bool shared = parts.back().input == LayerPart::Input::as_before &&
                            !std::get<FeedForward>(parts.back().op).routed();
        if (!shared || !averages) return;
        for (LayerPart& part : parts) {
            if (std::holds_alternative<FeedForward>(part.op)) part.scale = 0.5f;
        }
    });
}

}  // namespace

const std::vector<Family> kWindowedFamilies = {
    Family{"afmoe", configure_afmoe, weights_afmoe}.of_experts(),
    Family{"exaone-moe", configure_halves, weights_exaone_moe}.of_experts(),
    Family{"mellum", configure_mellum, weights_mellum}.of_experts(),
    Family{"step35", configure_step35, weights_step35}.of_experts(),
    Family{"mimo2", configure_mellum, weights_mimo2}.of_experts(),
    Family{"cohere2moe", configure_cohere2_moe, weights_cohere2_moe}.of_experts(),
};

}  // namespace powerinfer
