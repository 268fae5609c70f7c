// A model family: the keys and tensors of its files, and the differences of its forward pass. There
// is one file per family or group of similar families; families.cpp has the list.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/model.h"

namespace powerinfer {

struct Family {
    const char* architecture;  // general.architecture
    // Reads the keys that only this family has. Their prefix is c.architecture.
    void (*configure)(const ggml::Gguf& gguf, Config& c);
    // Adds the parts of every layer, and a WeightSpec for every tensor with the member of `model`
    // that it fills. model.layers already has its final size, and its layers have no parts.
    void (*weights)(Model& model, std::vector<WeightSpec>& specs);

    // The activation that files with the magic GGUF have, and those with PowerInfer's, if they do
    // not say.
    ggml::Activation gguf_act = ggml::Activation::silu, pwri_act = ggml::Activation::relu;
    bool mixture = false;  // a file must have experts
    // Some layers have no attention, or no feed-forward block: the keys of its sizes may be 0.
    bool hybrid = false;
    bool rotates = true;  // queries and keys, by RoPE or as learned positions
    // The same as weights() of the layer that guesses tokens; null: it cannot be computed.
    void (*nextn)(Model& model, std::vector<WeightSpec>& specs) = nullptr;

    // The same family with another value, for the lists below.
    Family with(ggml::Activation gguf, ggml::Activation pwri = ggml::Activation::relu) const {
        return changed([&](Family& f) { f.gguf_act = gguf, f.pwri_act = pwri; });
    }
    Family of_experts() const {
        return changed([](Family& f) { f.mixture = true; });
    }
    Family of_hybrid_layers() const {
        return changed([](Family& f) { f.hybrid = true; });
    }
    Family without_rotation() const {
        return changed([](Family& f) { f.rotates = false; });
    }
    Family guessing(void (*by)(Model& model, std::vector<WeightSpec>& specs)) const {
        return changed([&](Family& f) { f.nextn = by; });
    }

 private:
    template <typename F>
    Family changed(const F& change) const {
        Family other = *this;
        change(other);
        return other;
    }
};

// The families in each file of this folder, and of its folders by kind.
extern const std::vector<Family> kLlamaFamilies;  // llama, bamboo, qwen, phi3

// dense/
extern const std::vector<Family> kDenseFamilies;  // near_llama.cpp
extern const std::vector<Family> kFalconFamilies;
extern const std::vector<Family> kGemmaFamilies;  // gemma, gemma2, gemma3, gemma-embedding
extern const std::vector<Family> kGpt2Families;
extern const std::vector<Family> kMuseGlimmerFamilies;
extern const std::vector<Family> kOptFamilies;
extern const std::vector<Family> kSquaredReluFamilies;  // arcee, bitnet, jais2, nanochat...
extern const std::vector<Family> kStableLmFamilies;

// mixtures/
extern const std::vector<Family> kMixtureFamilies;   // glm4moe, olmoe, hunyuan...
extern const std::vector<Family> kDeepSeekFamilies;  // deepseek2, mistral4
extern const std::vector<Family> kGemma4Families;    // gemma4, gemma-embedding2
extern const std::vector<Family> kGptOssFamilies;
extern const std::vector<Family> kLagunaFamilies;
extern const std::vector<Family> kSmallThinkerFamilies;
extern const std::vector<Family> kWindowedFamilies;  // afmoe, exaone-moe, mellum, mimo2...

// encoders/
extern const std::vector<Family> kBertFamilies;  // bert, nomic-bert, gte, jina-bert-v2...
extern const std::vector<Family> kModernBertFamilies;
extern const std::vector<Family> kBothSidedFamilies;  // eurobert, llama-embed

// recurrent/: with states
extern const std::vector<Family> kDeltaNetFamilies;  // qwen3next, qwen35, olmo-hybrid...
extern const std::vector<Family> kFalconH1Families;
extern const std::vector<Family> kGraniteFamilies;    // also those without states
extern const std::vector<Family> kKimiDeltaFamilies;  // kimi_delta.cpp: kimi-linear, bailingmoe3
extern const std::vector<Family> kLfm2Families;       // lfm2, lfm2moe, lfm3
extern const std::vector<Family> kNemotronHFamilies;  // with experts, too
extern const std::vector<Family> kQwen4ExpFamilies;

// All of them, in the order of the lists above.
const std::vector<Family>& all_families();
// That of general.architecture; or null.
const Family* find_family(const ggml::Gguf& gguf);

// Reads the keys {arch}.* and powerinfer.*. Throws Error(format) for contradictions,
// Error(unsupported) for an unknown feature.
Config read_config(const ggml::Gguf& gguf, const Family& family, int64_t n_vocab);

// The tensors of the model, pointing to the members of `model` that they fill. model.layers must
// have its final size.
std::vector<WeightSpec> weight_specs(Model& model, const Family& family);

// What the keys {arch}.* say of the sizes of a layer: a number for all layers, or an array with one
// for each. Of a hybrid family heads are 0 where a layer has no attention, and n_ff where it has no
// feed-forward block.
struct LayerSizes {
    int64_t n_head = 0, n_head_kv = 0, head_dim = 0, v_head_dim = 0;
    int64_t n_ff = 0;                         // of a layer, or of an expert
    int64_t n_ff_dense = 0;                   // of a block beside the experts
    int64_t n_expert = 0, n_expert_used = 0;  // 0: one feed-forward block
    int64_t n_ff_shared = 0;  // of the experts that every row computes, together; 0: none
};
// A layer without a router's tensor has one block, whatever the number of experts is: which layers
// of a mixture are dense is said by many keys, or by none. Throws Error(format | unsupported).
LayerSizes layer_sizes(const ggml::Gguf& gguf, const Config& c, int64_t layer);

// Which layers have a window, for files that do not say, as llama.cpp has it.
struct WindowPattern {
    int64_t window;  // positions; 0: no layer has one
    // One layer of each period sees all positions; 0: every layer has a window.
    int64_t period;
    // It is the last one of a period, or the first; or periods are counted from the model's last
    // layer, which sees all.
    enum class Global { last, first, from_end } global = Global::last;
};
// The windows of all layers, from {arch}.attention.sliding_window and sliding_window_pattern: a
// period, or an array with a flag per layer, 1 for a window.
std::vector<int64_t> read_windows(const Model& model, WindowPattern missing);
// Has any layer one?
bool has_windows(const Model& model, WindowPattern missing);
// A rotation of layers with a window, which is not scaled, behind the others: {arch}.rope.
// freq_base_swa and dimension_count_swa, where the file has them. width: of a head there.
void add_window_rope(const ggml::Gguf& gguf, Config& c, Rope missing, int64_t width);
// An array with a flag for each layer, which may count those that guess tokens; null: there is
// none. Throws Error(format) for anything else under the key.
const ggml::Value* layer_flags(const Model& model, const std::string& key);
// Does layer i rotate queries and keys? As powerinfer.rope.layers says, a flag for each layer; or
// `missing`.
bool rotates(const Model& model, int64_t i, bool missing);

// What a layer of attention, and of a feed-forward block or experts, has beside a Llama's: RMSNorm
// before both, a gate, experts chosen by a softmax over all.
struct LayerForm {
    const char* attention_norm = "attn_norm";  // before attention and behind it; "": none
    const char* attention_post_norm = "";
    const char* ffn_norm = "ffn_norm";  // the same of the feed-forward block or the experts
    const char* ffn_post_norm = "";
    bool parallel = false;  // what attention gives is added with what the FFN gives
    bool gated = true;
    bool gates_first = true;       // in a matrix that has them and what they multiply
    bool narrow_experts = false;   // the key moe_latent_size may say so, see FeedForward::width
    bool latent = false;           // attention is over latents, see Latent
    bool gates_attention = false;  // see Attention::gated
    std::optional<ggml::GateBy> output_gate;  // Attention::gate, which is attn_gate
    // The keys swiglu_clamp_exp and swiglu_clamp_shexp may have limits, of experts and of blocks
    // that every row computes (FeedForward::limit).
    bool limits_gates = false;
    // Norms of queries and keys; nothing: the family has none. With `some_lack_norms` the file
    // decides.
    std::optional<Attention::Norms> head_norms;
    bool some_lack_norms = false;
    // Where the file does not say how experts are weighed.
    ggml::Gating gating = ggml::Gating::softmax;
    bool normalise = true;
    float scale = 1;  // of what attention and the feed-forward block give
    // RMSNorm before the output matrix of attention (attn_sub_norm) and before ffn_down
    // (ffn_sub_norm).
    bool inner_norms = false;
};

// Norms only behind both parts.
LayerForm norms_behind(Attention::Norms head_norms);

// For Llama's relatives: the epsilon of RMSNorm; and with RoPE's pairs (i, i + n_rot / 2).
void configure_llama(const ggml::Gguf& gguf, Config& c);
void configure_halves(const ggml::Gguf& gguf, Config& c);
// The tensors of a model whose layers all have this form, and the windows that the keys name, or
// `missing`. finish(i, attention) adds what is special in layer i.
using FinishLayer = std::function<void(int64_t i, Attention& attention)>;
void llama_weights(Model& model, std::vector<WeightSpec>& specs, const LayerForm& form,
                   const WindowPattern& missing = {0, 0}, const FinishLayer& finish = nullptr);

// For attention over latents: the epsilon of RMSNorm, and what YaRN multiplies.
void configure_latents(const ggml::Gguf& gguf, Config& c);
// Keys that say which layers are dense and how wide the shared experts are, beside tensors that say
// it, too. Throws Error(format) where they differ.
void check_experts(const Model& m, int64_t i);

// For models whose rows see those behind them. Throws Error(unsupported) if the file says that they
// do not.
void encode(const ggml::Gguf& gguf, Config& c);
// The same of attention, with half of the file's window on each side.
void see_both_sides(Attention& attention);

// For learned positions instead of RoPE: position 0 is at row `offset` of position_embd.weight.
void learn_positions(const ggml::Gguf& gguf, Config& c, int64_t offset);

// Tensors of a bundled file: I8 [stride, n_ff], or with "_exps" [stride, n_ff, n_expert]. Two in
// version 1, with ffn_gate_rows, one in version 2.
constexpr char kUpDownRows[] = "ffn_up_down_rows", kBundle[] = "ffn_bundle";

// Collects WeightSpecs; used by the weights() of the families.
class Weights {
 public:
    Weights(Model& model, std::vector<WeightSpec>& specs) : m(model), specs_(specs) {}

    bool has(const std::string& name) const { return m.file.gguf.find_tensor(name) != nullptr; }
    // A vector [n] that is required, or optional.
    void vector(Part part, const std::string& name, int64_t n, const float** to);
    void optional(Part part, const std::string& name, int64_t n, const float** to);
    // NAME.weight [n], and NAME.bias [n] for LayerNorm.
    void norm(const std::string& name, NormWeights* to, int64_t n);
    // The same of a tensor of this name, without a bias.
    void norm_of(const std::string& tensor, NormWeights* to, int64_t n);
    // A matrix [rows, cols].
    void matrix(Part part, const std::string& name, int64_t rows, int64_t cols, ggml::Matrix* to);
    // A matrix whose rows are looked up: it stays as stored. stored: for one that may stay on the
    // disk.
    void table(Part part, const std::string& name, int64_t rows, int64_t cols, ggml::Matrix* to,
               StoredTable* stored = nullptr);
    // Rows [row0, row0 + rows) of a tensor with this shape (fastest first).
    void rows(Part part, const std::string& name, std::vector<int64_t> shape, int64_t row0,
              int64_t rows, Target to);

    // token_embd.weight, the last norm ("": none), and output.weight or, without it,
    // token_embd.weight again.
    void embedding_and_head(const char* last_norm = "output_norm");
    // Divisors of the frequencies of RoPE: rope_freqs if the file has it, and for longrope
    // rope_factors_short and rope_factors_long.
    void rope_factors();
    // Parts are added to layer i with their sizes, and with the norm `norm` before them; "": none.
    // The tensors of a part are added after it.
    LayerPart& add_attention(int64_t i, const char* norm);
    LayerPart& add_feed_forward(int64_t i, const char* norm);
    // Chooses experts as the file says, and where it does not, as `missing` does.
    LayerPart& add_router(int64_t i, const char* norm, const LayerForm& missing = {});
    // The parts and tensors of a whole layer: of its attention, then of its feed-forward block or
    // its experts. A shared expert is added to what the others give.
    void layer(int64_t i, const LayerForm& form);
    void attend(int64_t i, const LayerForm& form);
    void feed_forward(int64_t i, const LayerForm& form);
    // A part of a kind with a state, of which the family has set the sizes.
    template <typename T>
    T& add_state(int64_t i, const char* norm, T part) {
        return std::get<T>(add_part(i, norm, std::move(part)).op);
    }
    // Mamba-2 with its tensors ssm_*, and sizes from the keys {arch}.ssm.*.
    LayerPart& mamba2(int64_t i, const char* norm);
    // The layer that guesses tokens, of this form, and what is before and behind it.
    void nextn(const LayerForm& form);
    // The norm of what the part gives, and that of the stream behind it.
    void post_norm(int64_t i, const char* name, LayerPart& part);
    void stream_norm(int64_t i, const char* name, LayerPart& part);
    // Does layer i have experts?
    bool has_experts(int64_t i) const { return layer_sizes(m.file.gguf, m.config, i).n_expert > 0; }

    // attn_q, attn_k, attn_v, or attn_qkv, which holds the rows of all three, and attn_output of
    // layer i: .weight, and .bias if the file has it.
    void attention(int64_t i);
    // The same without attn_v if the file lacks it, and without keys and values if another layer
    // has them.
    void attention_without_values(int64_t i);
    // The same of attention over latents, whose sizes it completes: attn_q, or attn_q_a, its norm
    // and attn_q_b; attn_kv_a_mqa and attn_kv_a_norm; attn_k_b and attn_v_b, or attn_kv_b;
    // attn_output.
    void latent_attention(int64_t i);
    // attn_gate of layer i: one value for each head, or for each value of what they give.
    void output_gate(int64_t i, ggml::GateBy by);
    // attn_q_norm and attn_k_norm of layer i.
    void head_norms(int64_t i);
    // position_embd.weight.
    void positions();
    // Of an encoder: token_embd.weight and token_types.weight, which the file may lack; and
    // token_embd_norm.
    void encoder_embedding();
    // dense_2 and dense_3, cls and cls.output, where the file has them.
    void text_steps();
    // ffn_gate (if gated), ffn_up and ffn_down of layer i: .weight, and .bias if the file has it.
    // Without ffn_gate an ffn_up of twice the rows holds both, gates first or behind.
    // In neuron-aware files ffn_down_t or bundles, predictors and ffn_rate.
    void ffn(int64_t i, bool gated, bool gates_first = true);
    // ffn_gate_inp of layer i, and exp_probs_b if the file has it.
    void router(int64_t i);
    // ffn_{gate,up,down}_exps of layer i, in the same way as ffn().
    void experts(int64_t i, bool gated = true);
    // ffn_{gate,up,down}_shexp of layer i, in the same way, and ffn_gate_inp_shexp if the file has
    // it.
    void shared_expert(int64_t i, bool gated);

    Model& m;

 private:
    LayerPart& add_part(int64_t i, const char* norm, decltype(LayerPart::op) op);
    // Throws Error(format): a size is 0 in a layer that has such a part.
    [[noreturn]] void lacks(int64_t i, const char* key, const char* part) const;
    void fused_attention(int64_t i);
    // Its name in the file: llama.cpp's files of Hy3 have it without an end.
    std::string choice_bias(int64_t i) const;
    // What experts read and give, if the file says that it is narrower than a row.
    void narrow(int64_t i, FeedForward& of);
    // The last part of layer i, whose tensors are to be added.
    FeedForward& last_feed_forward(int64_t i);
    // FeedForward::limit, from the key {arch}.swiglu_clamp_exp or swiglu_clamp_shexp.
    void limit_gates(int64_t i, const char* key, FeedForward& part);
    // The matrices of one block and their biases: ffn_gate + suffix, ...
    void matrices(int64_t i, const char* suffix, bool gated, FeedForward& part,
                  bool gates_first = true);
    // What neuron rows are found by.
    struct Rows {
        int64_t layer;
        const FeedForward& part;
        int64_t n_expert;  // of the tensors, which have one more dimension then; 0: of one block
        int64_t expert;
        const char* suffix;
    };
    // Bundles from the file, or ffn_gate (if gated), ffn_up and `down`, which the loader packs into
    // bundles.
    void neurons(const Rows& of, bool gated, const std::string& down, Ffn& ffn);
    void neuron_rows(const Rows& of, bool gated, const std::string& down, Ffn& ffn);
    // One of the bundles: from the tensor `bundled`, or if that is "" from the tensors of its
    // parts.
    struct Stored {
        const char* name;  // "gate", for the key of its format
        std::string tensor;
        ggml::NeuronRows* rows;
    };
    void bundle(const Rows& of, const std::string& bundled, const std::vector<Stored>& parts,
                Bundle& to);
    // Both of them, from a tensor of version 2.
    void stored(const Rows& of, const std::string& bundled, bool gated, Ffn& ffn);
    // Does the file have bundles of layer i, in either version?
    bool has_bundles(int64_t i, const char* suffix) const;
    // The format of a part in a bundled file, from powerinfer.bundle.{gate,up,down}_type.
    ggml::DType bundled_type(const Rows& of, const char* part) const;
    // fc1 and fc2 or a sketch, and rates, if the file has them.
    void predictor(const Rows& of, Ffn& ffn);
    // [cols, rows], or for an expert [cols, rows, experts]: the shape of a tensor of neurons.
    static std::vector<int64_t> shaped(const Rows& of, int64_t cols, int64_t n_rows);

    std::vector<WeightSpec>& specs_;
};

// A key with one number for all layers, or an array with one per layer; 0 if it is missing. The
// array may count n_more further layers, or not: then they have 0.
std::vector<float> per_layer(const ggml::Gguf& gguf, const std::string& key, int64_t n_layer,
                             int64_t n_more = 0);

// Numbers the feed-forward parts and blocks of a model whose parts are complete.
void number_parts(Model& model);

// "blk.3." + suffix
std::string blk(int64_t layer, const char* suffix);

// At the end of names of what belongs to experts that a router chooses, and to one beside them that
// every row computes.
constexpr char kExpertSuffix[] = "_exps", kSharedSuffix[] = "_shexp";

// The key of the formats of "gate", "up" or "down" in bundles: one name for each layer. That of an
// expert that every row computes has its own, since its layer has others.
std::string bundled_type_key(const char* part, const char* suffix);

}  // namespace powerinfer
