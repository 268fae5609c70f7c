// OPT: learned positions, LayerNorm, biases everywhere, no gate, head tied to the embedding.
#include <algorithm>

#include "families/family.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

void configure(const ggml::Gguf& gguf, Config& c) {
    c.norm = Config::Norm::layer;
    // PowerInfer's converter writes no epsilon; the checkpoints use 1e-5.
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1, 1e-5));
    c.n_rot = 0;
    c.position_offset = 2;  // the first two rows are padding
    const ggml::TensorInfo* table = gguf.find_tensor("position_embd.weight");
    if (table) {  // if it is missing, resolve_weights() reports it
        const int64_t positions = table->ne[1] - c.position_offset;
        if (positions < 1) {
            throw ggml::Error(ggml::Code::format,
                              gguf.path() + ": tensor \"position_embd.weight\" has no positions");
        }
        // PowerInfer's context_length counts the padding rows.
        c.n_ctx = std::min(c.n_ctx, positions);
    }
}

void weights(Model& m, std::vector<WeightSpec>& specs) {
    const Config& c = m.config;
    Weights w(m, specs);
    w.embedding_and_head();
    const ggml::TensorInfo* table = m.file.gguf.find_tensor("position_embd.weight");
    w.table(Part::embedding, "position_embd.weight",
            table ? table->ne[1] : c.n_ctx + c.position_offset, c.n_embd, &m.position_embd);
    for (int64_t i = 0; i < c.n_layer; i++) {
        Layer& l = m.layers[size_t(i)];
        w.norm(blk(i, "attn_norm"), &l.attn_norm, c.n_embd);
        w.attention(i);
        w.norm(blk(i, "ffn_norm"), &l.ffn_norm, c.n_embd);
        w.ffn(i, false);
    }
}

}  // namespace

const std::vector<Family> kOptFamilies = {
    {"opt", ggml::Activation::relu, ggml::Activation::relu, configure, weights}};

}  // namespace powerinfer
