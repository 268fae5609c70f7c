// Granite 3 and 4: Llama with four multipliers, dense or with experts. In hybrid ones most layers
// have Mamba-2 in the place of attention.
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

// Where the file does not say: the first layer of each sees all positions.
constexpr int64_t kGranitePeriod = 4;

// A multiplier; 0 and a missing key stand for `missing`.
float multiplier(const ggml::Gguf& gguf, const Config& c, const char* key, double missing = 1) {
    const double value = gguf.number(c.architecture + key, 0, 1e6, missing);
    return float(value == 0 ? missing : value);
}

void configure_granite(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    c.embedding_scale = multiplier(gguf, c, ".embedding_scale");
    c.logit_scale = 1 / multiplier(gguf, c, ".logit_scale");
    // The models with Mamba layers were trained without positions, and so were their dense ones.
    const ggml::Value* rotates = gguf.find(c.architecture + ".rope.scaling.finetuned");
    if (rotates && !rotates->integer()) c.ropes.clear();
    // Without experts the only block is the shared one, whose width is feed_forward_length, too.
    const std::string shared = c.architecture + ".expert_shared_feed_forward_length";
    if (!layer_sizes(gguf, c, 0).n_expert) gguf.integer(shared, 0, INT32_MAX, 0);
}

void weights_granite(Model& m, std::vector<WeightSpec>& specs) {
    const ggml::Gguf& gguf = m.file.gguf;
    Weights w(m, specs);
    w.embedding_and_head();
    LayerForm form;
    form.scale = multiplier(gguf, m.config, ".residual_scale");
    const std::vector<int64_t> windows = read_windows(m, {0, 0});
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        if (m.config.hybrid && w.has(blk(i, "ssm_in.weight"))) {
            w.mamba2(i, "attn_norm").scale = form.scale;
        } else {
            w.attend(i, form);
            Attention& a = *m.layers[size_t(i)].find<Attention>();
            a.scale = multiplier(gguf, m.config, ".attention.scale", double(a.scale));
            a.window = windows[size_t(i)];
        }
        w.feed_forward(i, form);
    }
}

// Granite with windows: every head has a sink, and the file says which layers rotate.
void weights_granite_swa(Model& m, std::vector<WeightSpec>& specs) {
    const ggml::Gguf& gguf = m.file.gguf;
    Weights w(m, specs);
    LayerForm form;
    form.scale = multiplier(gguf, m.config, ".residual_scale");
    const ggml::Value* const rotates =
        layer_flags(m, m.config.architecture + ".attention.rope_pattern");
    const WindowPattern missing{0, kGranitePeriod, WindowPattern::Global::first};
    llama_weights(m, specs, form, missing, [&](int64_t i, Attention& a) {
        a.scale = multiplier(gguf, m.config, ".attention.scale", double(a.scale));
        if (rotates && !rotates->integer(uint64_t(i))) a.rope = -1;
        w.vector(Part::attention, blk(i, "attn_sinks.weight"), a.n_head, &a.sinks);
    });
}

}  // namespace

const std::vector<Family> kGraniteFamilies = {
    Family{"granite", configure_granite, weights_granite},
    Family{"granitemoe", configure_granite, weights_granite}.of_experts(),
    Family{"granitehybrid", configure_granite, weights_granite}.of_hybrid_layers(),
    Family{"granite_swa", configure_granite, weights_granite_swa},
};

}  // namespace powerinfer
