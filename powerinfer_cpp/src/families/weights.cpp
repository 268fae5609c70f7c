// The tensors that families share.
#include "families/family.h"

namespace powerinfer {

using Use = WeightSpec::Use;

std::string blk(int64_t layer, const char* suffix) {
    return "blk." + std::to_string(layer) + "." + suffix;
}

void Weights::vector(const char* part, const std::string& name, int64_t n, const float** to) {
    specs_.push_back({part, name, {n}, 0, 1, n, Use::vector, nullptr, to});
}

void Weights::optional(const char* part, const std::string& name, int64_t n, const float** to) {
    if (has(name)) vector(part, name, n, to);
}

void Weights::norm(const std::string& name, NormWeights* to, int64_t n) {
    vector("norms", name + ".weight", n, &to->weight);
    if (m.config.norm == Config::Norm::layer) vector("norms", name + ".bias", n, &to->bias);
}

void Weights::matrix(const char* part, const std::string& name, int64_t n_rows, int64_t cols,
                     ggml::Matrix* to, Use use) {
    rows(part, name, {cols, n_rows}, 0, n_rows, to, use);
}

void Weights::rows(const char* part, const std::string& name, std::vector<int64_t> shape,
                   int64_t row0, int64_t n_rows, ggml::Matrix* to, Use use) {
    const int64_t cols = shape[0];
    specs_.push_back({part, name, std::move(shape), row0, n_rows, cols, use, to});
}

void Weights::embedding_and_head() {
    const Config& c = m.config;
    const bool tied = !has("output.weight");
    matrix(tied ? "head" : "embedding", "token_embd.weight", c.n_vocab, c.n_embd, &m.token_embd,
           tied ? Use::product : Use::rows);
    norm("output_norm", &m.output_norm, c.n_embd);
    if (!tied) matrix("head", "output.weight", c.n_vocab, c.n_embd, &m.output);
}

void Weights::attention(int64_t i) {
    const Config& c = m.config;
    Layer& l = m.layers[size_t(i)];
    matrix("attention", blk(i, "attn_q.weight"), c.q_dim(), c.n_embd, &l.q);
    matrix("attention", blk(i, "attn_k.weight"), c.kv_dim(), c.n_embd, &l.k);
    matrix("attention", blk(i, "attn_v.weight"), c.kv_dim(), c.n_embd, &l.v);
    matrix("attention", blk(i, "attn_output.weight"), c.n_embd, c.q_dim(), &l.o);
    optional("attention", blk(i, "attn_q.bias"), c.q_dim(), &l.q_bias);
    optional("attention", blk(i, "attn_k.bias"), c.kv_dim(), &l.k_bias);
    optional("attention", blk(i, "attn_v.bias"), c.kv_dim(), &l.v_bias);
    optional("attention", blk(i, "attn_output.bias"), c.n_embd, &l.o_bias);
}

void Weights::ffn(int64_t i, bool gated) {
    const Config& c = m.config;
    Ffn& f = m.layers[size_t(i)].ffn;
    if (gated) matrix("ffn", blk(i, "ffn_gate.weight"), c.n_ff, c.n_embd, &f.gate);
    matrix("ffn", blk(i, "ffn_up.weight"), c.n_ff, c.n_embd, &f.up);
    const bool transposed = has(blk(i, "ffn_down_t.weight"));
    if (transposed) {
        matrix("ffn", blk(i, "ffn_down_t.weight"), c.n_ff, c.n_embd, &f.down_t, Use::rows);
    } else {
        matrix("ffn", blk(i, "ffn_down.weight"), c.n_embd, c.n_ff, &f.down);
    }
    optional("ffn", blk(i, "ffn_gate.bias"), c.n_ff, &f.gate_bias);
    optional("ffn", blk(i, "ffn_up.bias"), c.n_ff, &f.up_bias);
    optional("ffn", blk(i, transposed ? "ffn_down_t.bias" : "ffn_down.bias"), c.n_embd,
             &f.down_bias);
}

void Weights::experts(int64_t i) {
    const Config& c = m.config;
    Layer& l = m.layers[size_t(i)];
    matrix("ffn", blk(i, "ffn_gate_inp.weight"), c.n_expert, c.n_embd, &l.router);
    const std::vector<int64_t> by_neuron{c.n_embd, c.n_ff, c.n_expert},
        by_output{c.n_ff, c.n_embd, c.n_expert};
    std::string down = blk(i, "ffn_down_exps.weight");
    bool transposed = has(blk(i, "ffn_down_t_exps.weight"));
    if (transposed) {
        down = blk(i, "ffn_down_t_exps.weight");
    } else if (const ggml::TensorInfo* t = m.file.gguf.find_tensor(down)) {
        // PowerInfer's SmallThinker files keep the plain name for rows by neuron.
        transposed = t->ne[0] == c.n_embd && c.n_embd != c.n_ff;
    }
    l.experts.resize(size_t(c.n_expert));
    for (int64_t e = 0; e < c.n_expert; e++) {
        Ffn& f = l.experts[size_t(e)];
        rows("ffn", blk(i, "ffn_gate_exps.weight"), by_neuron, e * c.n_ff, c.n_ff, &f.gate);
        rows("ffn", blk(i, "ffn_up_exps.weight"), by_neuron, e * c.n_ff, c.n_ff, &f.up);
        if (transposed) {
            rows("ffn", down, by_neuron, e * c.n_ff, c.n_ff, &f.down_t, Use::rows);
        } else {
            rows("ffn", down, by_output, e * c.n_embd, c.n_embd, &f.down);
        }
    }
}

}  // namespace powerinfer
