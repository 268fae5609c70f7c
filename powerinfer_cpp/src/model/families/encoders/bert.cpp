// BERT and its relatives (arXiv 1810.04805): LayerNorm of the stream behind attention and behind
// the feed-forward block. BERT, DistilBERT, RoBERTa, XLM-RoBERTa and MPNet have learned positions,
// biases everywhere and GELU. Nomic's models and GTE have RoPE, and gates or, in every second layer
// of nomic-bert-moe, experts. Jina's second models have gates, and scores biased by distance (arXiv
// 2310.19923).
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

LayerForm form_of(bool gated) {
    LayerForm form;
    form.attention_norm = form.ffn_norm = "";
    form.gated = gated;
    form.normalise = false;
    return form;
}

void weights_of(Model& m, std::vector<WeightSpec>& specs, const LayerForm& form) {
    Weights w(m, specs);
    w.encoder_embedding();
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        w.attend(i, form);
        LayerPart& attention = m.layers[size_t(i)].parts.back();
        std::get<Attention>(attention.op).both = true;
        const char* behind = "attn_output_norm";
        if (w.has(blk(i, "attn_norm_2.weight"))) {
            // Jina's model of code has two: x = norm_2(x + norm(x + attention)).
            w.post_norm(i, behind, attention);
            attention.norms_sum = true;
            behind = "attn_norm_2";
        }
        w.stream_norm(i, behind, attention);
        w.feed_forward(i, form);
        w.stream_norm(i, "layer_output_norm", m.layers[size_t(i)].parts.back());
    }
}

void weights_bert(Model& m, std::vector<WeightSpec>& specs) {
    weights_of(m, specs, form_of(false));
    Weights(m, specs).positions();
}

// Jina's embeddings 3 (arXiv 2409.10173): XLM-RoBERTa with RoPE.
void weights_jina3(Model& m, std::vector<WeightSpec>& specs) {
    weights_of(m, specs, form_of(false));
}

void weights_gated(Model& m, std::vector<WeightSpec>& specs) {
    weights_of(m, specs, form_of(true));
}

void weights_nomic_moe(Model& m, std::vector<WeightSpec>& specs) {
    const std::string key = m.config.architecture + ".moe_every_n_layers";
    const int64_t period = m.file.gguf.integer(key, 0, INT32_MAX, 0);
    weights_of(m, specs, form_of(false));
    for (int64_t i = 0; i < m.config.n_layer && period; i++) {
        if (Weights(m, specs).has_experts(i) == (i % period == 1)) continue;
        throw ggml::Error(ggml::Code::format, m.file.gguf.path() + ": " + key + " is " +
                                                  std::to_string(period) + ", but layer " +
                                                  std::to_string(i) + " is of the other kind");
    }
}

// Jina's model of code also has norms of queries and keys. llama.cpp's files of it hold the gates
// behind what they multiply, as the checkpoint does.
void weights_jina(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form = form_of(true);
    form.head_norms = Attention::Norms::whole_row;
    form.some_lack_norms = true;
    form.gates_first = !Weights(m, specs).has(blk(0, "attn_norm_2.weight"));
    weights_of(m, specs, form);
    m.score_bias.slope(m.config.first_heads);
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
    Family{"nomic-bert-moe", configure_relative, weights_nomic_moe}
        .with(Activation::gelu)
        .of_experts(),
    Family{"gte", configure_relative, weights_gated}.with(Activation::gelu),
    Family{"jina-bert-v2", configure_relative, weights_jina}
        .with(Activation::gelu)
        .without_rotation(),
    Family{"jina-bert-v3", configure_relative, weights_jina3}.with(Activation::gelu),
};

}  // namespace powerinfer
