// Families whose feed-forward blocks square what ReLU lets through, so that most of their neurons
// are exactly zero: Arcee's AFM, BitNet b1.58, Jais 2, nanochat, Nemotron-4 and Minitron.
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

constexpr double kNanochatCap = 15;  // of logits

void configure_rms(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
}

// BitNet's 2B4T squares; the models of the first paper, with Llama's vocabulary and two tokens
// more, have SiLU. Files of both have the same architecture, and many do not say which they are:
// then the vocabulary tells.
void configure_bitnet(const ggml::Gguf& gguf, Config& c) {
    configure_rms(gguf, c);
    c.rope_pairs = ggml::RopePairs::halves;
    const std::string key = c.architecture + ".hidden_activation";
    const std::string_view said = gguf.string(key, "");
    if (gguf.find("powerinfer.ffn.activation")) return;
    if (said.empty()) {
        constexpr int64_t kVocabOfSilu = 32002;
        c.activation = c.n_vocab == kVocabOfSilu ? Activation::silu : Activation::relu2;
        const bool silu = c.activation == Activation::silu;
        c.notes.push_back(
            {2, ggml::format("%s: does not name its activation: with %lld tokens it is taken to be "
                             "%s; an override of powerinfer.ffn.activation says %s",
                             gguf.path().c_str(), (long long)c.n_vocab, silu ? "silu" : "relu2",
                             silu ? "relu2" : "silu")});
        return;
    }
    if (said == "relu2" || said == "silu") {
        c.activation = said == "silu" ? Activation::silu : Activation::relu2;
        return;
    }
    throw ggml::Error(ggml::Code::unsupported, gguf.path() + ": " + key + " \"" +
                                                   std::string(said.substr(0, 40)) +
                                                   "\" is neither relu2 nor silu");
}

void configure_with_layer_norms(const ggml::Gguf& gguf, Config& c) {
    c.norm = Norm::layer;
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_epsilon", 0, 1));
    c.rope_pairs = ggml::RopePairs::halves;
}

void configure_nanochat(const ggml::Gguf& gguf, Config& c) {
    configure_rms(gguf, c);
    c.rope_pairs = ggml::RopePairs::halves;
    // 0 for none.
    c.logit_softcap =
        float(gguf.number(c.architecture + ".final_logit_softcapping", 0, 1e6, kNanochatCap));
}

void weights_of_squared_relu(Model& m, std::vector<WeightSpec>& specs, const LayerForm& form) {
    Weights w(m, specs);
    w.embedding_and_head();
    for (int64_t i = 0; i < m.config.n_layer; i++) w.layer(i, form);
}

void weights_ungated(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.gated = false;
    weights_of_squared_relu(m, specs, form);
}

// Its norms have no weights: files have ones, but for that of the embedding.
void weights_nanochat(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.gated = false;
    form.head_norms = Attention::Norms::after_rope;
    weights_of_squared_relu(m, specs, form);
    m.embedding_norm.emplace().eps = m.config.norm_eps;
}

void weights_bitnet(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.inner_norms = true;
    weights_of_squared_relu(m, specs, form);
}

}  // namespace

const std::vector<Family> kSquaredReluFamilies = {
    Family{"arcee", configure_rms, weights_ungated}.with(Activation::relu2, Activation::relu2),
    Family{"bitnet", configure_bitnet, weights_bitnet}.with(Activation::relu2, Activation::relu2),
    Family{"jais2", configure_with_layer_norms, weights_ungated}.with(Activation::relu2,
                                                                      Activation::relu2),
    Family{"nanochat", configure_nanochat, weights_nanochat}.with(Activation::relu2,
                                                                  Activation::relu2),
    Family{"nemotron", configure_with_layer_norms, weights_ungated}.with(Activation::relu2,
                                                                         Activation::relu2),
};

}  // namespace powerinfer
