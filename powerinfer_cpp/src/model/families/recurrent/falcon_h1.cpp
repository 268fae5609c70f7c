// Falcon-H1: in each layer attention and Mamba-2 read the same norm, and what they give is added
// together. The multipliers of the model are factors of the weights.
#include "model/families/family.h"

namespace powerinfer {

namespace {

void weights_falcon_h1(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.embedding_and_head();
    LayerForm form;
    form.parallel = true;
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.attend(i, form);
        w.mamba2(i, "").input = LayerPart::Input::as_before;
        // llama.cpp's files have the norm without an end of its name.
        const std::string norm = blk(i, "ffn_norm");
        const bool plain = w.has(norm);
        form.ffn_norm = plain ? "" : "ffn_norm";
        const size_t k = m.layers[size_t(i)].parts.size();
        w.feed_forward(i, form);
        LayerPart& part = m.layers[size_t(i)].parts[k];
        if (plain) w.norm_of(norm, &part.norm.emplace(), m.config.n_embd);
    }
}

}  // namespace

const std::vector<Family> kFalconH1Families = {
    Family{"falcon-h1", configure_halves, weights_falcon_h1},
};

}  // namespace powerinfer
