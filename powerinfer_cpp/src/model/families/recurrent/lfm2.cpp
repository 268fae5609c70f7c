// LFM2 and LFM3: short convolutions in the place of attention in most layers, which have no key
// heads then. The last norm is called token_embd_norm.
#include "ggml/recurrence.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

void convolve(Weights& w, int64_t i, int64_t taps, const LayerForm& form) {
    const int64_t n = w.m.config.n_embd;
    ShortConvolution& s = w.add_state(i, form.attention_norm, ShortConvolution());
    s.channels = n;
    s.taps = taps;
    const std::string in = blk(i, "shortconv.in_proj.weight");
    int64_t row0 = 0;
    for (ggml::Matrix* to : {&s.b, &s.c, &s.u}) {
        w.rows(Part::attention, in, {n, 3 * n}, row0, n, Product{to});
        row0 += n;
    }
    w.rows(Part::attention, blk(i, "shortconv.conv.weight"), {taps, n}, 0, n, Vector{&s.conv});
    w.matrix(Part::attention, blk(i, "shortconv.out_proj.weight"), n, n, &s.out);
    const char* const post_norm = form.attention_post_norm;
    if (*post_norm) w.post_norm(i, post_norm, w.m.layers[size_t(i)].parts.back());
}

void weights_of_convolutions(Model& m, std::vector<WeightSpec>& specs, const LayerForm& form) {
    const ggml::Gguf& gguf = m.file.gguf;
    Weights w(m, specs);
    w.embedding_and_head("token_embd_norm");
    const int64_t taps =
        gguf.integer(m.config.architecture + ".shortconv.l_cache", 2, ggml::kMostTaps);
    const std::vector<int64_t> windows = read_windows(m, {0, 0});
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        if (layer_sizes(gguf, m.config, i).n_head_kv) {
            w.attend(i, form);
            Attention& a = *m.layers[size_t(i)].find<Attention>();
            a.window = windows[size_t(i)];
            if (a.window && m.config.ropes.size() > 1) a.rope = 1;
        } else {
            convolve(w, i, taps, form);
        }
        w.feed_forward(i, form);
    }
}

void weights_lfm2(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.head_norms = Attention::Norms::by_head;
    form.gating = ggml::Gating::sigmoid;
    weights_of_convolutions(m, specs, form);
}

// Layers with a window have a rotation of their own, which is not scaled.
void configure_lfm3(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    const double base = gguf.number(c.architecture + ".rope.freq_base_swa", 1e-3, 1e12, 10000);
    if (!c.ropes.empty()) c.ropes.push_back({base, c.ropes[0].n_rot, false});
}

// Gates of heads and norms behind both parts, unless the model was made without: then no layer has
// them.
void weights_lfm3(Model& m, std::vector<WeightSpec>& specs) {
    const Weights w(m, specs);
    LayerForm form;
    form.head_norms = Attention::Norms::by_head;
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        if (w.has(blk(i, "attn_gate.weight"))) form.output_gate = ggml::GateBy::sigmoid;
        if (!w.has(blk(i, "post_attention_norm.weight"))) continue;
        form.attention_post_norm = "post_attention_norm";
        form.ffn_post_norm = "post_ffw_norm";
    }
    weights_of_convolutions(m, specs, form);
}

}  // namespace

const std::vector<Family> kLfm2Families = {
    Family{"lfm2", configure_halves, weights_lfm2}
        .with(Activation::silu, Activation::silu)
        .of_hybrid_layers(),
    Family{"lfm2moe", configure_halves, weights_lfm2}
        .with(Activation::silu, Activation::silu)
        .of_experts()
        .of_hybrid_layers(),
    Family{"lfm3", configure_lfm3, weights_lfm3}
        .with(Activation::silu, Activation::silu)
        .of_hybrid_layers(),
};

}  // namespace powerinfer
