// BERT and its relatives (arXiv 1810.04805): LayerNorm of the stream behind attention and behind
// the feed-forward block. BERT, DistilBERT, RoBERTa and XLM-RoBERTa have learned positions, biases
// everywhere and GELU. Nomic's models and GTE have RoPE, and gates or, in every second layer of
// nomic-bert-moe, experts.
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

void configure_relative(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
    c.rank_pooling = Pooling::first;
    encode(gguf, c);
}

void configure_bert(const ggml::Gguf& gguf, Config& c) {
    configure_relative(gguf, c);
    learn_positions(gguf, c, 0);
}

void add_layer(Weights& w, int64_t i, bool gated) {
    LayerPart& attention = w.add_attention(i, "");
    std::get<Attention>(attention.op).both = true;
    w.attention(i);
    w.stream_norm(i, "attn_output_norm", attention);
    LayerPart& block = w.add_feed_forward(i, "");
    w.ffn(i, gated);
    w.stream_norm(i, "layer_output_norm", block);
}

void weights_bert(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.encoder_embedding();
    w.positions();
    for (int64_t i = 0; i < m.config.n_layer; i++) add_layer(w, i, false);
}

void weights_gated(Model& m, std::vector<WeightSpec>& specs) {
    Weights w(m, specs);
    w.encoder_embedding();
    for (int64_t i = 0; i < m.config.n_layer; i++) add_layer(w, i, true);
}

// MPNet (arXiv 2004.09297) has biases of attention's scores beside its positions.
void weights_mpnet(Model& m, std::vector<WeightSpec>& specs) {
    weights_bert(m, specs);
    const std::string name = "attn_rel_b.weight";
    const ggml::TensorInfo* const there = m.file.gguf.find_tensor(name);
    const int64_t n_buckets = there ? there->ne[1] : 32;
    if (n_buckets < 4) {
        throw ggml::Error(ggml::Code::format,
                          m.file.gguf.path() + ": tensor \"" + name + "\" has too few buckets");
    }
    Weights(m, specs).table(Part::attention, name, n_buckets, m.config.first_heads,
                            &m.score_bias.buckets);
}

}  // namespace

const std::vector<Family> kBertFamilies = {
    Family{"mpnet", configure_bert, weights_mpnet}.with(Activation::gelu),
    Family{"bert", configure_bert, weights_bert}.with(Activation::gelu),
    Family{"nomic-bert", configure_relative, weights_gated},
    Family{"gte", configure_relative, weights_gated}.with(Activation::gelu),
};

}  // namespace powerinfer
