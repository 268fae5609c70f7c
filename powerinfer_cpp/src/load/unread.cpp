#include "load/unread.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ggml/status.h"

namespace powerinfer {

namespace {

using ggml::Value;

// Attention in the first layer that has it; null: none has.
const Attention* first_attention(const Model& m) {
    for (const Layer& layer : m.layers) {
        if (const auto* found = layer.find<Attention>()) return found;
    }
    return nullptr;
}

// A model, as far as rules look at it. It is found once: a file may have thousands of keys.
struct Known {
    explicit Known(const Model& m)
        : config(m.config),
          attention(first_attention(m)),
          // Do attention and the feed-forward block read the same stream?
          in_parallel(m.layers[0].parts[0].add == LayerPart::Add::with_next) {}
    const Config& config;
    const Attention* attention;
    bool in_parallel;
};

// Values that change nothing: what the engine computes with anyway, and llama.cpp's values for "not
// said".
using Neutral = bool (*)(const Value& v, const Known& m);

struct Rule {
    const char* key;  // without the architecture; * stands for any text
    Neutral neutral;
};

// The first table of RoPE.
Rope first_rope(const Known& m) {
    return m.config.ropes.empty() ? Rope() : m.config.ropes[0];
}

namespace neutral {

// Are all elements among these numbers, as far as a float tells? Truth values are 0 and 1.
bool only(const Value& v, std::initializer_list<double> allowed) {
    if (!v.is_number() && !v.is_bool()) return false;
    for (uint64_t i = 0; i < v.count(); i++) {
        const double x = v.is_bool() ? double(v.integer(i)) : v.number(i);
        const auto same = [&](double y) { return std::abs(x - y) <= 1e-6 * std::abs(y); };
        if (std::none_of(allowed.begin(), allowed.end(), same)) return false;
    }
    return true;
}

bool off(const Value& v, const Known&) {
    return only(v, {0});
}

bool on(const Value& v, const Known&) {
    return only(v, {1});
}

bool factor(const Value& v, const Known&) {
    return only(v, {0, 1});
}

bool width(const Value& v, const Known& m) {
    return only(v, {0, double(m.config.n_embd)});
}

bool head(const Value& v, const Known& m) {
    return !m.attention || only(v, {0, double(m.attention->head_dim)});
}

bool scale(const Value& v, const Known& m) {
    return !m.attention || only(v, {0, double(m.attention->scale)});
}

bool base(const Value& v, const Known& m) {
    return only(v, {0, first_rope(m).base});
}

bool local_base(const Value& v, const Known& m) {
    return only(v, {0, m.config.ropes.empty() ? 0 : m.config.ropes.back().base});
}

// The name of an activation in config.json.
bool activation(const Value& v, const Known& m) {
    struct Name {
        const char* theirs;
        ggml::Activation ours;
    };
    using A = ggml::Activation;
    static constexpr Name names[] = {
        {"silu", A::silu},          {"swish", A::silu},
        {"gelu", A::gelu},          {"gelu_pytorch_tanh", A::gelu_tanh},
        {"relu", A::relu},          {"gelu_new", A::gelu_tanh},
        {"relu2", A::relu2},        {"gelu_tanh", A::gelu_tanh},
        {"relu_squared", A::relu2}, {"drelu", A::drelu},
    };
    if (v.is_array() || !v.is_string()) return false;
    return std::any_of(std::begin(names), std::end(names), [&](const Name& n) {
        return v.string() == n.theirs && n.ours == m.config.activation;
    });
}

}  // namespace neutral

using neutral::only;

// The keys of llama.cpp that change results. A family that computes with one asks for it, and then
// its row does not count.
constexpr Rule kDecisive[] = {
    // attention
    {"attention.causal", neutral::on},
    {"attention.scale", neutral::scale},
    {"attention.output_scale", neutral::factor},
    {"attention.value_scale", neutral::factor},
    {"attention.max_alibi_bias", neutral::off},
    {"attention.clamp_kqv", neutral::off},
    {"attention.temperature_scale", neutral::off},
    {"attention.temperature_length", neutral::off},
    {"attention.sliding_window",
     [](const Value& v, const Known& m) {
         const bool wide = !v.is_array() && v.is_integer() && v.integer() >= m.config.n_ctx;
         return wide || only(v, {0});
     }},
    {"attention.rope_pattern", neutral::on},
    {"attention.key_length_*", neutral::head},
    {"attention.value_length_*", neutral::head},
    {"attention.*_lora_rank", neutral::off},
    {"attention.output_group_count", neutral::off},
    {"attention.relative_buckets_count", neutral::off},
    {"attention.group_norm_groups", neutral::off},
    {"attention.shared_kv_layers", neutral::off},
    {"attention.recurrent_layers", neutral::off},
    {"attention.indexer.*", neutral::off},
    {"attention.compress_*", neutral::off},
    {"attn_logit_softcapping", neutral::off},
    {"full_attention_interval", neutral::factor},
    // sizes and scales of x, logits
    {"embedding_length_out", neutral::width},
    {"embedding_length_per_layer_input", neutral::off},
    {"features_length", neutral::width},
    {"embedding_scale",
     [](const Value& v, const Known& m) { return only(v, {0, double(m.config.embedding_scale)}); }},
    {"residual_scale", neutral::factor},
    {"logit_scale", neutral::factor},
    {"final_logit_softcapping", neutral::off},
    {"dense_*_feat_*", neutral::off},
    {"swin_norm", neutral::off},
    {"norm_before_residual", neutral::off},
    {"hyper_connection.count", neutral::factor},
    {"hyper_connection.low_rank", neutral::off},
    {"ple.*", neutral::off},
    // layers
    {"use_parallel_residual",
     [](const Value& v, const Known& m) { return only(v, {double(m.in_parallel)}); }},
    {"nextn_predict_layers", neutral::off},
    {"decoder_block_count",
     [](const Value& v, const Known& m) { return only(v, {0, double(m.config.n_layer)}); }},
    {"hash_layer_count", neutral::off},
    {"altup.num_inputs", neutral::factor},
    {"ssm.*", neutral::off},
    {"kda.*", neutral::off},
    {"wkv.*", neutral::off},
    {"shortconv.*", neutral::off},
    {"posnet.*", neutral::off},
    {"convnext.*", neutral::off},
    {"rescale_every_n_layers", neutral::off},
    {"time_*_extra_dim", neutral::off},
    {"token_shift_count", neutral::off},
    // FFN and experts
    {"hidden_activation", neutral::activation},
    {"activation_sparsity_scale", neutral::off},
    {"swiglu_clamp_*", neutral::off},
    {"xielu.*", neutral::off},
    {"leading_dense_block_count", neutral::off},
    {"moe_every_n_layers", neutral::factor},
    {"interleave_moe_layer_step", neutral::factor},
    {"moe_latent_size", neutral::off},
    {"experts_per_group", neutral::factor},
    {"expert_group_count", neutral::factor},
    {"expert_group_scale", neutral::factor},
    {"expert_shared_count", neutral::off},
    {"expert_shared_feed_forward_length", neutral::off},
    {"expert_chunk_feed_forward_length", neutral::off},
    {"expert_weights_scale", neutral::factor},
    {"expert_weights_norm", neutral::on},  // weights of the chosen experts sum to 1
    {"expert_gating_func", neutral::off},
    {"router_logit_softcapping", neutral::off},
    // RoPE; rope.{global,local} are Ollama's
    {"rope.dimension_count_swa",
     [](const Value& v, const Known& m) { return only(v, {0, double(first_rope(m).n_rot)}); }},
    {"rope.freq_base_swa", neutral::local_base},
    {"rope.local.freq_base", neutral::local_base},
    {"rope.global.freq_base", neutral::base},
    {"rope.scaling.alpha", neutral::factor},
    {"rope.scaling.yarn_log_multiplier", neutral::off},
};

// Keys that change nothing where nobody asks for them.
constexpr const char* kHarmless[] = {
    "attention.*_epsilon",               // of the norm that the family does not have
    "attention.sliding_window_pattern",  // says nothing without a window
    "feed_forward_length",               // of a mixture whose experts have a width of their own
    "expert_feed_forward_length",        // of a model without experts
    "expert_group_used_count",           // of one group
    "tensor_data_layout",
    "pooling_type",  // for whoever computes embeddings
    "classifier.output_labels",
    "rope.scaling.finetuned",
    "rope.dimension_count",  // these two of a family that rotates nothing
    "rope.freq_base",
    "rope.dimension_sections",  // all sections of a text have the same positions
    "n_deepstack_layers",       // these and the next ones: for images and sound
    "deepstack_mapping",
    "vision.*",
    "audio.*",
    "mm.*",
};

// Tensors that change nothing where no WeightSpec names them.
constexpr const char* kHarmlessTensors[] = {
    "rope_freqs.weight",  // of a model without RoPE
    "blk.*.attn_rot_embd.*",
    "*.input_scale",  // for products with inputs of 4 bits
    "v.*",            // these and the next ones: of the encoders of images and sound
    "a.*",
    "mm.*",
    "resampler.*",
};

// Our own: statistics, placements, and predictors of another kind or of dense files. Who needs them
// reads them.
constexpr const char* kOurTensors[] = {
    "blk.*.ffn_rate",   "blk.*.ffn_rate_exps",   "blk.*.ffn_tier", "blk.*.ffn_tier_exps",
    "blk.*.fc?.weight", "blk.*.fc?_exps.weight", "blk.*.sketch.*", "blk.*.sketch_exps.*",
};

// Does a text match a pattern, in which * stands for any text and ? for a character?
bool fits_pattern(std::string_view text, std::string_view pattern) {
    size_t t = 0, p = 0, star = std::string_view::npos, behind = 0;
    while (t < text.size()) {
        if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
            t++, p++;
        } else if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            behind = t;
        } else if (star != std::string_view::npos) {
            p = star + 1;
            t = ++behind;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') p++;
    return p == pattern.size();
}

template <size_t n>
bool among(std::string_view text, const char* const (&patterns)[n]) {
    return std::any_of(std::begin(patterns), std::end(patterns),
                       [&](const char* pattern) { return fits_pattern(text, pattern); });
}

std::string value_text(const Value& v) {
    if (v.is_array()) return "an array";
    if (v.is_bool()) return v.integer() ? "true" : "false";
    if (v.is_string()) return ggml::shown(v.string());
    return v.is_integer() ? std::to_string(v.integer()) : ggml::format("%g", v.number());
}

// Names for a message: five at most, and how many more there are.
std::string first_names(const std::vector<std::string>& names) {
    constexpr size_t kMost = 5;
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), kMost); i++) text += (i ? ", " : "") + names[i];
    if (names.size() > kMost) text += ggml::format(" and %zu more", names.size() - kMost);
    return text;
}

constexpr char kWay[] = "allow_unknown (--allow-unknown) runs the model without";

// Refuses what would change results, or notes that the model runs without it. reason: of the first.
void refuse_unread(const Model& model, const char* kind, const std::vector<std::string>& names,
                   const std::string& reason, bool allow, Notes& notes) {
    if (names.empty()) return;
    const std::string& path = model.file.gguf.path();
    if (allow) {
        notes.push_back(
            {2, path + ": runs without " + kind + " that change results: " + first_names(names)});
        return;
    }
    std::string why = path + ": " + reason + "; " + kWay;
    if (names.size() > 1) {
        const std::vector<std::string> others(names.begin() + 1, names.end());
        why += std::string("; more such ") + kind + ": " + first_names(others);
    }
    throw ggml::Error(ggml::Code::unsupported, why);
}

// Newer files scale the results of a product by a tensor, which may be 1.
bool is_scale_of_one(const Model& model, const ggml::TensorInfo& t) {
    constexpr uint64_t kMost = 64 << 10;  // bytes; there is a number per expert at most
    if (t.type != ggml::DType::F32 || t.bytes > kMost || !fits_pattern(t.name, "*.scale"))
        return false;
    const std::vector<uint8_t> bytes = model.file.read(t, t.bytes);
    for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
        float value;
        std::memcpy(&value, bytes.data() + i, sizeof(value));
        if (value != 1) return false;
    }
    return true;
}

// Is it of the keys and values of a layer that reads another one's? Checkpoints hold them.
bool of_shared_heads(const Model& model, const std::string& name) {
    const int64_t layer = layer_of(name);
    if (layer < 0 || layer >= model.config.n_layer) return false;
    const auto* a = model.layers[size_t(layer)].find<Attention>();
    return a && a->kv_of >= 0 &&
           (fits_pattern(name, "blk.*.attn_k*") || fits_pattern(name, "blk.*.attn_v*"));
}

// Is it of an indexer that has nothing to choose in the contexts that sessions may have?
bool of_idle_indexer(const Model& model, const std::string& name) {
    return model.config.n_indexed && (fits_pattern(name, "blk.*.indexer.?_proj.weight") ||
                                      fits_pattern(name, "blk.*.indexer.?_norm.weight"));
}

}  // namespace

bool is_harmless_key(std::string_view name, std::string_view architecture) {
    const std::string_view key = name.substr(std::min(name.size(), architecture.size() + 1));
    return key == "vocab_size" || among(key, kHarmless);
}

void check_unread_keys(const Model& model, bool allow, Notes& notes) {
    const ggml::Gguf& gguf = model.file.gguf;
    const Config& c = model.config;
    const std::string prefix = c.architecture + ".";
    const Known known(model);
    std::vector<std::string> decisive, unknown;
    std::string reason;
    for (size_t i = 0; i < gguf.values().size(); i++) {
        const auto& [name, value] = gguf.values()[i];
        if (gguf.asked(i)) continue;
        std::string_view key = name;
        if (key.substr(0, prefix.size()) == prefix) {
            key.remove_prefix(prefix.size());
        } else if (key.substr(0, 6) != "xielu.") {  // these have no architecture
            continue;
        }
        if (key == "vocab_size") {  // the tokens count, for llama.cpp as well
            if (only(value, {double(c.n_vocab)})) continue;
            notes.push_back({2, gguf.path() + ": " + prefix + "vocab_size is " + value_text(value) +
                                    ", but there are " + std::to_string(c.n_vocab) +
                                    " tokens, which count"});
            continue;
        }
        const Rule* rule = std::find_if(std::begin(kDecisive), std::end(kDecisive),
                                        [&](const Rule& r) { return fits_pattern(key, r.key); });
        if (rule == std::end(kDecisive)) {
            if (!among(key, kHarmless)) unknown.push_back(ggml::shown(name));
            continue;
        }
        if (rule->neutral(value, known)) continue;
        decisive.push_back(ggml::shown(name));
        if (decisive.size() > 1) continue;
        reason = "key " + decisive[0] + " is " + value_text(value);
        reason += key == "attention.causal"
                      ? ", but rows of architecture \"" + c.architecture +
                            "\" see only those before them here"
                      : ", which this engine does not compute for architecture \"" +
                            c.architecture + "\"";
    }
    refuse_unread(model, "keys", decisive, reason, allow, notes);
    if (unknown.empty()) return;
    notes.push_back(
        {2, gguf.path() + ": keys that this engine does not know: " + first_names(unknown)});
}

void check_unread_tensors(const Model& model, bool allow, Notes& notes) {
    std::set<std::string_view> used;
    for (const WeightSpec& w : model.weights) used.insert(w.tensor->name);
    for (const WeightSpec& w : model.weights) {
        if (!w.is<StoredBundle>()) continue;
        used.insert(model.file.gguf.find_tensor(checksums_of(w.name))->name);
    }
    std::vector<std::string> decisive, harmless;
    for (const ggml::TensorInfo& t : model.file.gguf.tensors()) {
        if (used.count(t.name) || among(t.name, kOurTensors)) continue;
        // Layers that guess further tokens are not computed.
        const bool guesses = layer_of(t.name) >= model.config.n_layer;
        const bool known = among(t.name, kHarmlessTensors) || guesses ||
                           of_shared_heads(model, t.name) || of_idle_indexer(model, t.name) ||
                           is_scale_of_one(model, t);
        (known ? harmless : decisive).push_back(ggml::shown(t.name));
    }
    const std::string& path = model.file.gguf.path();
    const std::string what = decisive.empty() ? "" : decisive[0];
    refuse_unread(model, "tensors", decisive,
                  "tensor " + what + " is not one that this engine knows for architecture \"" +
                      model.config.architecture + "\"",
                  allow, notes);
    if (harmless.empty()) return;
    notes.push_back({3, path + ": tensors that are not needed: " + first_names(harmless)});
}

}  // namespace powerinfer
