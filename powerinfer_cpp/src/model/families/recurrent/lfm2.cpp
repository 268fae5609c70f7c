// LFM2: short convolutions in the place of attention in most layers, which have no key heads then.
// The last norm is called token_embd_norm.
#include "ggml/recurrence.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

void convolve(Weights& w, int64_t i, int64_t taps) {
    const int64_t n = w.m.config.n_embd;
    ShortConvolution& s = w.add_state(i, "attn_norm", ShortConvolution());
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
}

void weights_lfm2(Model& m, std::vector<WeightSpec>& specs) {
    const ggml::Gguf& gguf = m.file.gguf;
    Weights w(m, specs);
    w.embedding_and_head("token_embd_norm");
    const int64_t taps =
        gguf.integer(m.config.architecture + ".shortconv.l_cache", 2, ggml::kMostTaps);
    const std::vector<int64_t> windows = read_windows(m, {0, 0});
    LayerForm form;
    form.head_norms = Attention::Norms::by_head;
    form.gating = ggml::Gating::sigmoid;
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        if (layer_sizes(gguf, m.config, i).n_head_kv) {
            w.attend(i, form);
            m.layers[size_t(i)].find<Attention>()->window = windows[size_t(i)];
        } else {
            convolve(w, i, taps);
        }
        w.feed_forward(i, form);
    }
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
};

}  // namespace powerinfer
