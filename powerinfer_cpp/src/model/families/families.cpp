// The list of families, and the keys that all families share.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "ggml/math.h"
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;
using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

// Upper limits that prevent overflow in later products; far above those of any model.
constexpr int64_t kWide = 1 << 20, kMany = 1 << 16;
// Over all layers: each expert takes about 1.5 kB before weights are read. The largest public
// models have about 25,000.
constexpr int64_t kMostExperts = 1 << 18;

[[noreturn]] void refuse(const ggml::Gguf& gguf, Code code, const std::string& what) {
    throw Error(code, gguf.path() + ": " + what);
}

Activation read_activation(const ggml::Gguf& gguf, const Family& family) {
    const Activation fallback = gguf.pwri_magic() ? family.pwri_act : family.gguf_act;
    const std::string_view wanted = gguf.string("powerinfer.ffn.activation", name(fallback));
    if (const std::optional<Activation> found = find_activation(wanted)) return *found;
    refuse(gguf, Code::unsupported,
           "powerinfer.ffn.activation \"" + std::string(wanted.substr(0, 40)) + "\" is not known");
}

// An integer in [lo, hi] for a layer: one number, or an array with one per layer, which some
// converters write for any model. Without `missing` the key must be there.
int64_t of_layer(const ggml::Gguf& gguf, const Config& c, int64_t layer, const std::string& key,
                 int64_t lo, int64_t hi, std::optional<int64_t> missing = {}) {
    const ggml::Value* v = gguf.find(key);
    if (!v && missing) return *missing;
    if (!v || !v->is_array()) return gguf.integer(key, lo, hi);
    // An array may have numbers of the layers that guess tokens, or not.
    const auto n = v->is_integer() ? int64_t(v->count()) : 0;
    if (n != c.n_layer && n != c.n_layer + c.n_nextn) {
        refuse(gguf, Code::format,
               key + " is an array, but not of one integer for each of the " +
                   std::to_string(c.n_layer) + " layers");
    }
    if (layer >= n) {
        refuse(gguf, Code::format,
               format("%s has no number for layer %lld, which guesses tokens", key.c_str(),
                      (long long)layer));
    }
    const int64_t value = v->integer(uint64_t(layer));
    if (value < lo || value > hi) {
        refuse(gguf, Code::format,
               format("key \"%s\" is %lld in layer %lld, outside %lld..%lld", key.c_str(),
                      (long long)value, (long long)layer, (long long)lo, (long long)hi));
    }
    return value;
}

// The same where all layers must agree.
int64_t of_all_layers(const ggml::Gguf& gguf, const Config& c, const std::string& key, int64_t lo,
                      int64_t hi, std::optional<int64_t> missing = {}) {
    const int64_t first = of_layer(gguf, c, 0, key, lo, hi, missing);
    for (int64_t i = 1; i < c.n_layer; i++) {
        const int64_t value = of_layer(gguf, c, i, key, lo, hi, missing);
        if (value == first) continue;
        refuse(gguf, Code::unsupported,
               format("%s is %lld in layer 0 and %lld in layer %lld: layers that differ in it are "
                      "not supported",
                      key.c_str(), (long long)first, (long long)value, (long long)i));
    }
    return first;
}

// The heads of the first layer with attention.
int64_t first_heads(const ggml::Gguf& gguf, const Config& c) {
    const std::string key = c.architecture + ".attention.head_count";
    for (int64_t i = 0; i < c.n_layer; i++) {
        const int64_t n = of_layer(gguf, c, i, key, c.hybrid ? 0 : 1, kMany);
        if (n) return n;
    }
    return 0;
}

RopeScaling read_rope_scaling(const ggml::Gguf& gguf, const std::string& prefix, int64_t n_ctx) {
    RopeScaling r;
    const std::string scaling = prefix + ".rope.scaling.";
    const std::string_view type = gguf.string(scaling + "type", "linear");
    // Files from before there were kinds of scaling. Some use 0 for "not scaled".
    const double linear = gguf.number(prefix + ".rope.scale_linear", 0, 1e6, 1);
    const double factor = gguf.number(scaling + "factor", 0, 1e6, linear);
    r.factor = factor > 0 ? factor : 1;
    r.original_ctx = double(gguf.integer(scaling + "original_context_length", 1, INT32_MAX, n_ctx));
    r.beta_fast = gguf.number(scaling + "yarn_beta_fast", 1e-3, 1e6, 32);
    r.beta_slow = gguf.number(scaling + "yarn_beta_slow", 1e-3, 1e6, 1);
    r.extension = gguf.number(scaling + "yarn_ext_factor", -1e6, 1e6, -1);
    // llama.cpp writes this key and does not read it. Published files of Laguna say 1 there and
    // mean YaRN's own factor.
    gguf.number(scaling + "yarn_attn_factor", 1e-3, 1e3, 1);
    r.magnitude = gguf.number(scaling + "attn_factor", 1e-3, 1e3, 1);
    r.truncate = gguf.boolean("powerinfer.rope.yarn_truncate", true);
    const double dynamic = gguf.number("powerinfer.rope.dynamic_factor", 1, 1e6, 1);
    const bool longrope = type == "longrope" || gguf.find_tensor("rope_factors_long.weight");
    if ((longrope || dynamic != 1) && (r.factor != 1 || (longrope && dynamic != 1))) {
        refuse(gguf, Code::unsupported,
               scaling + "factor: two kinds of RoPE scaling at once are not supported");
    }
    if (longrope) {  // llama.cpp's files of Phi-3 name no type
        r.kind = RopeScaling::Kind::longrope;
    } else if (dynamic != 1) {
        r.kind = RopeScaling::Kind::dynamic;
        r.factor = dynamic;
    } else if (type == "yarn") {
        r.kind = RopeScaling::Kind::yarn;
    } else if (type == "linear") {
        r.kind = RopeScaling::Kind::linear;
    } else if (type != "none") {
        refuse(gguf, Code::unsupported,
               "RoPE scaling \"" + std::string(type.substr(0, 40)) + "\" is not supported");
    }
    return r;
}

}  // namespace

const std::vector<Family>& all_families() {
    static const std::vector<Family> all = [] {
        std::vector<Family> found;
        for (const auto* group : {&kLlamaFamilies,    &kMixtureFamilies,      &kDeepSeekFamilies,
                                  &kBertFamilies,     &kModernBertFamilies,   &kBothSidedFamilies,
                                  &kDeltaNetFamilies, &kQwen4ExpFamilies,     &kGraniteFamilies,
                                  &kDenseFamilies,    &kFalconFamilies,       &kFalconH1Families,
                                  &kGemma4Families,   &kGemmaFamilies,        &kGpt2Families,
                                  &kGptOssFamilies,   &kKimiDeltaFamilies,    &kLagunaFamilies,
                                  &kLfm2Families,     &kMuseGlimmerFamilies,  &kNemotronHFamilies,
                                  &kOptFamilies,      &kSmallThinkerFamilies, &kSquaredReluFamilies,
                                  &kStableLmFamilies, &kWindowedFamilies}) {
            found.insert(found.end(), group->begin(), group->end());
        }
        return found;
    }();
    return all;
}

const Family* find_family(const ggml::Gguf& gguf) {
    const std::string_view arch = gguf.string("general.architecture");
    for (const Family& f : all_families()) {
        if (arch == f.architecture) return &f;
    }
    return nullptr;
}

std::vector<float> per_layer(const ggml::Gguf& gguf, const std::string& key, int64_t n_layer,
                             int64_t n_more) {
    std::vector<float> values(size_t(n_layer + n_more), 0.0f);
    const ggml::Value* v = gguf.find(key);
    if (!v) return values;
    const int64_t n = v->is_array() ? int64_t(v->count()) : n_layer;
    if (!v->is_number() || (n != n_layer && n != n_layer + n_more)) {
        refuse(gguf, Code::format, key + " is neither a number nor one for each layer");
    }
    for (size_t i = 0; i < size_t(n); i++) {
        values[i] = float(v->number(v->is_array() ? i : 0));
        if (!std::isfinite(values[i])) refuse(gguf, Code::format, key + " is not finite");
    }
    return values;
}

// Of a family of mixtures.
static void require_experts(const ggml::Gguf& gguf, const Config& c) {
    const std::string key = c.architecture + ".expert_count";
    for (int64_t i = 0; i < c.n_layer; i++) {
        if (of_layer(gguf, c, i, key, 0, kMany, 0)) return;
    }
    refuse(gguf, Code::format, key + " is missing or 0");
}

Config read_config(const ggml::Gguf& gguf, const Family& family, int64_t n_vocab) {
    Config c;
    c.architecture = gguf.string("general.architecture");
    const auto key = [&](const char* suffix) { return c.architecture + suffix; };
    c.n_vocab = n_vocab;
    c.hybrid = family.hybrid;
    c.n_ctx = gguf.integer(key(".context_length"), 1, INT32_MAX);
    c.n_embd = gguf.integer(key(".embedding_length"), 1, kWide);
    // Every layer has its own tensors, so a larger number than that of the tensors is refused
    // before any table is allocated.
    c.n_layer = gguf.integer(key(".block_count"), 1,
                             std::min<int64_t>(kMany, int64_t(gguf.tensors().size())));
    c.n_nextn = gguf.integer(key(".nextn_predict_layers"), 0, c.n_layer - 1, 0);
    c.n_layer -= c.n_nextn;
    for (int64_t i = c.n_layer; i < c.n_layer + c.n_nextn; i++) {
        if (gguf.find_tensor(blk(i, "nextn.eh_proj.weight"))) continue;
        refuse(gguf, Code::format,
               format("%s: layer %lld guesses no tokens: it has no nextn.eh_proj.weight",
                      key(".nextn_predict_layers").c_str(), (long long)i));
    }
    c.first_heads = first_heads(gguf, c);
    c.rope_scaling = read_rope_scaling(gguf, c.architecture, c.n_ctx);
    int64_t least_head = INT64_MAX, n_expert = 0;
    for (int64_t i = 0; i < c.n_layer; i++) {
        const LayerSizes sizes = layer_sizes(gguf, c, i);
        if (sizes.n_head_kv) least_head = std::min(least_head, sizes.head_dim);
        n_expert += sizes.n_expert;
    }
    if (n_expert > kMostExperts) {
        refuse(gguf, Code::format,
               format("%lld experts of %lld layers are more than %lld together",
                      (long long)n_expert, (long long)c.n_layer, (long long)kMostExperts));
    }
    const bool attends = least_head != INT64_MAX;
    if (!attends && !family.hybrid) {
        refuse(gguf, Code::unsupported, "models without attention are not supported");
    }
    if (family.rotates && attends) {
        Rope rope;
        rope.n_rot =
            of_all_layers(gguf, c, key(".rope.dimension_count"), 2, least_head, least_head / 2 * 2);
        if (rope.n_rot % 2) {
            refuse(gguf, Code::format, key(".rope.dimension_count") + " must be even");
        }
        rope.base = gguf.number(key(".rope.freq_base"), 1e-3, 1e12, 10000);
        c.ropes.push_back(rope);
        if (c.rope_scaling.kind == RopeScaling::Kind::dynamic && rope.n_rot == 2) {
            refuse(gguf, Code::unsupported, "dynamic RoPE of a single frequency is not defined");
        }
    }
    c.activation = read_activation(gguf, family);
    const std::string_view input = gguf.string("powerinfer.predictor.input", "residual");
    if (input != "residual" && input != "normed") {
        refuse(gguf, Code::format, "powerinfer.predictor.input is neither residual nor normed");
    }
    c.predict_from_normed = input == "normed";
    const std::string_view kind = gguf.string("powerinfer.predictor.kind", "mlp");
    if (kind != "mlp" && kind != "sketch") {
        refuse(gguf, Code::unsupported, "powerinfer.predictor.kind is neither mlp nor sketch");
    }
    c.sketches = kind == "sketch";
    if (c.sketches && !c.predict_from_normed) {
        refuse(gguf, Code::format,
               "powerinfer.predictor.input must be normed for sketches: a sketch estimates gates "
               "and needs their input");
    }
    if (c.sketches && c.n_embd % 8) {
        refuse(gguf, Code::format,
               format("powerinfer.predictor.kind: a sketch needs rows of a multiple of 8 weights, "
                      "not %lld",
                      (long long)c.n_embd));
    }
    if (gguf.find("powerinfer.bundle.version")) {
        const int64_t version = gguf.integer("powerinfer.bundle.version", 0, INT32_MAX);
        if (version != kMemoryVersion && version != kStoreVersion) {
            refuse(gguf, Code::unsupported,
                   format("bundles of version %lld are not supported (%lld and %lld are)",
                          (long long)version, (long long)kMemoryVersion, (long long)kStoreVersion));
        }
    }
    family.configure(gguf, c);
    if (family.mixture) require_experts(gguf, c);
    return c;
}

LayerSizes layer_sizes(const ggml::Gguf& gguf, const Config& c, int64_t layer) {
    const auto key = [&](const char* suffix) { return c.architecture + suffix; };
    const auto read = [&](const char* suffix, int64_t lo, int64_t hi,
                          std::optional<int64_t> missing = {}) {
        return of_layer(gguf, c, layer, key(suffix), lo, hi, missing);
    };
    LayerSizes s;
    const int64_t least = c.hybrid ? 0 : 1;  // of what a layer may lack
    s.n_head = read(".attention.head_count", least, kMany);
    s.n_head_kv = read(".attention.head_count_kv", least, kMany, s.n_head);
    const auto require_shared = [&] {
        if (!s.n_head_kv || s.n_head % s.n_head_kv == 0) return;
        refuse(gguf, Code::format,
               format("%lld attention heads cannot share %lld key heads", (long long)s.n_head,
                      (long long)s.n_head_kv));
    };
    require_shared();
    s.head_dim = read(".attention.key_length", 1, kMany, 0);
    if (s.head_dim == 0) {
        // As in llama.cpp, all layers have heads as wide as those of the first with attention.
        const int64_t n_head = c.first_heads;
        if (!n_head || c.n_embd % n_head) {
            refuse(gguf, Code::format,
                   format("embedding length %lld is not a multiple of %lld heads",
                          (long long)c.n_embd, (long long)n_head));
        }
        s.head_dim = c.n_embd / n_head;
    }
    const auto there = [&](const char* name) { return gguf.find_tensor(blk(layer, name)); };
    // llama.cpp's converter writes 0 for layers of attention whose kind has a newer name. Keys of
    // delta nets have the same name.
    const ggml::TensorInfo* const keys =
        there("ssm_beta.weight") ? nullptr : there("attn_k.weight");
    if (!s.n_head_kv && keys) s.n_head_kv = std::min(keys->ne[1] / s.head_dim, kMany);
    if (!s.n_head || !s.n_head_kv) s.n_head = s.n_head_kv = 0;
    require_shared();
    s.v_head_dim = read(".attention.value_length", 1, kMany, s.head_dim);
    s.n_expert = read(".expert_count", 0, 4096, 0);
    s.n_expert_used = read(".expert_used_count", 0, s.n_expert, 0);
    if (s.n_expert && !s.n_expert_used) {
        refuse(gguf, Code::format, key(".expert_used_count") + " is missing or 0");
    }
    if (s.n_expert > 0) {
        const std::string leading = key(".leading_dense_block_count");
        const int64_t n_dense = gguf.integer(leading, 0, kMany, 0);
        const bool dense =
            layer < n_dense || there("ffn_up.weight") || there(kUpDownRows) || there(kBundle);
        const bool routed = there("ffn_gate_inp.weight");
        if (routed && layer < n_dense) {
            refuse(gguf, Code::format,
                   format("%s is %lld, but layer %lld has a router", leading.c_str(),
                          (long long)n_dense, (long long)layer));
        }
        if (!routed && (dense || c.hybrid)) s.n_expert = s.n_expert_used = 0;
    }
    // Experts may have their own width.
    const char* const expert_ff = ".expert_feed_forward_length";
    const bool own = s.n_expert && gguf.find(key(expert_ff));
    s.n_ff = read(own ? expert_ff : ".feed_forward_length", least, kWide);
    s.n_ff_dense = read(".feed_forward_length", least, kWide, s.n_ff);
    if (s.n_expert) {
        const int64_t there_is = there("ffn_down_shexp.weight") != nullptr;
        const int64_t n_shared = read(".expert_shared_count", 0, kMany, there_is);
        const int64_t width = std::min(kWide, s.n_ff * n_shared);
        s.n_ff_shared = read(".expert_shared_feed_forward_length", 0, kWide, width);
    }
    return s;
}

void number_parts(Model& model) {
    model.ffns.clear();
    int64_t n_neurons = 0;
    for (size_t i = 0; i < model.layers.size(); i++) {
        for (LayerPart& part : model.layers[i].parts) {
            if (const auto* grams = std::get_if<NGrams>(&part.op)) model.grams = grams;
            auto* f = std::get_if<FeedForward>(&part.op);
            if (!f) continue;
            f->layer = int64_t(i);
            f->index = int64_t(model.ffns.size());
            f->first_block = model.n_blocks();
            f->first_neuron = n_neurons;
            n_neurons += f->n_ff;
            model.ffns.push_back(f);
        }
    }
}

std::vector<int64_t> read_windows(const Model& model, WindowPattern missing) {
    const ggml::Gguf& gguf = model.file.gguf;
    const std::string key = model.config.architecture + ".attention.sliding_window";
    const std::string pattern = key + "_pattern";
    const int64_t window = gguf.integer(key, 0, INT64_MAX, missing.window);
    const int64_t n_layer = model.config.n_layer;
    const ggml::Value* flags = gguf.find(pattern);
    if (flags && flags->is_array()) {
        // As in of_layer(): also of the layers that guess tokens, or not.
        const int64_t n = int64_t(flags->count()), all = n_layer + model.config.n_nextn;
        if (!(flags->is_bool() || flags->is_integer()) || (n != n_layer && n != all)) {
            refuse(gguf, Code::format, pattern + " is neither a number nor a flag for each layer");
        }
    } else {
        flags = nullptr;
    }
    const int64_t period = flags ? 0 : gguf.integer(pattern, 0, INT32_MAX, missing.period);
    using Global = WindowPattern::Global;
    int64_t global = missing.global == Global::first ? 0 : period - 1;
    if (period && missing.global == Global::from_end) global = (n_layer - 1) % period;
    std::vector<int64_t> windows;
    for (int64_t i = 0; i < n_layer; i++) {
        const bool slides = flags         ? flags->integer(uint64_t(i)) != 0
                            : period == 0 ? true
                                          : i % period != global;
        windows.push_back(slides ? window : 0);
    }
    return windows;
}

void add_window_rope(const ggml::Gguf& gguf, Config& c, Rope missing, int64_t width) {
    const std::string key = c.architecture + ".rope.";
    missing.base = gguf.number(key + "freq_base_swa", 1e-3, 1e12, missing.base);
    missing.n_rot = gguf.integer(key + "dimension_count_swa", 2, width, missing.n_rot);
    if (missing.n_rot % 2) {
        refuse(gguf, Code::format, key + "dimension_count_swa must be even");
    }
    missing.scaled = false;
    c.ropes.push_back(missing);
}

bool has_windows(const Model& model, WindowPattern missing) {
    const std::vector<int64_t> windows = read_windows(model, missing);
    return std::any_of(windows.begin(), windows.end(), [](int64_t n) { return n > 0; });
}

const ggml::Value* layer_flags(const Model& model, const std::string& key) {
    const ggml::Gguf& gguf = model.file.gguf;
    const ggml::Value* flags = gguf.find(key);
    if (!flags) return nullptr;
    const int64_t n = model.config.n_layer, all = n + model.config.n_nextn;
    const int64_t count = flags->is_array() && flags->is_bool() ? int64_t(flags->count()) : 0;
    if (count != n && count != all) {
        refuse(gguf, Code::format, key + " is not a flag for each layer");
    }
    return flags;
}

bool rotates(const Model& model, int64_t i, bool missing) {
    const ggml::Value* flags = layer_flags(model, "powerinfer.rope.layers");
    return flags ? flags->integer(uint64_t(i)) != 0 : missing;
}

// Either all layers with neurons have statistics or none: placements and plans need them for the
// whole model.
static void check_statistics(const Model& model) {
    const ggml::Gguf& gguf = model.file.gguf;
    const auto name = [](int64_t i) { return format("blk.%lld.ffn_rate", (long long)i); };
    int64_t n = 0, missing = -1;
    for (int64_t i = 0; i < model.config.n_layer; i++) {
        if (!model.ffn_of(i)) continue;
        const bool found = gguf.find_tensor(name(i)) || gguf.find_tensor(name(i) + "_exps");
        n += found;
        if (!found && missing < 0) missing = i;
    }
    if (n && missing >= 0) {
        refuse(gguf, Code::format,
               name(missing) + " is missing, though other layers have statistics");
    }
}

// xIELU has parameters, which not every family reads, and the operators of neurons have none.
static void require_xielu(const Model& m, const FeedForward& part) {
    if (!part.xielu) {
        refuse(m.file.gguf, Code::unsupported,
               "powerinfer.ffn.activation: " + m.config.architecture + " has no xielu");
    }
    if (m.config.neuron_aware) {
        refuse(m.file.gguf, Code::unsupported, "neuron rows (ffn_down_t) with xielu");
    }
}

// Neither the operators of neurons know limits, nor the activations that change up.
static void require_limits(const Model& m, const FeedForward& part) {
    const char* const what = m.config.neuron_aware                       ? "neuron rows"
                             : part.activation == Activation::drelu      ? "the activation drelu"
                             : part.activation == Activation::swiglu_oai ? "swiglu_oai"
                                                                         : nullptr;
    if (!what) return;
    refuse(m.file.gguf, Code::unsupported,
           m.config.architecture + ".swiglu_clamp_exp and swiglu_clamp_shexp with " + what);
}

// Gives the tables of RoPE and the parts of all layers what the file says of the model as a whole.
static void complete_parts(Model& model) {
    Config& c = model.config;
    for (Rope& rope : c.ropes) rope.pairs = c.rope_pairs;
    const auto complete = ByKind{[&](Attention& a) { a.norm = c.norm, a.norm_eps = c.norm_eps; },
                                 [](Router&) {},
                                 [&](FeedForward& f) {
                                     f.activation = c.activation;
                                     f.norm_eps = c.norm_eps;
                                 },
                                 [&](LayerEmbedding& e) { e.activation = c.activation; },
                                 [](ShortConvolution&) {},
                                 [&](auto& with_norm) {
                                     if (!with_norm.norm_eps) with_norm.norm_eps = c.norm_eps;
                                 }};
    for (Layer& layer : model.layers) {
        for (LayerPart& part : layer.parts) std::visit(complete, part.op);
    }
}

// Where the scales of all experts go, of whose first one this is a matrix; null: it is of another.
static const float** scales_of_experts(Model& model, const WeightSpec& w, const ggml::Matrix* to) {
    for (LayerPart& part : model.layers[size_t(layer_of(w.name))].parts) {
        auto* const f = std::get_if<FeedForward>(&part.op);
        if (!f || f != w.of) continue;
        const Ffn& first = f->blocks[0];
        if (to == &first.gate) return &f->gate_scale;
        if (to == &first.up) return &f->up_scale;
        if (to == &first.down) return &f->down_scale;
    }
    return nullptr;
}

// NAME.scale beside NAME.weight multiplies the products with the matrices of that tensor: files of
// NVFP4 and BitNet have it, a number for the tensor, or for each expert.
static void scale_products(Model& model, std::vector<WeightSpec>& specs) {
    constexpr std::string_view kWeight = ".weight", kScale = ".scale";
    std::unordered_set<std::string> known;  // some families have others of this name
    for (const WeightSpec& w : specs) known.insert(w.name);
    for (size_t k = 0, n = specs.size(); k < n; k++) {
        const WeightSpec w = specs[k];
        const auto* const product = std::get_if<Product>(&w.target);
        const auto* const turned = std::get_if<Turned>(&w.target);
        ggml::Matrix* const to = product ? product->to : turned ? turned->to : nullptr;
        const size_t end = w.name.size() - std::min(w.name.size(), kWeight.size());
        if (!to || w.name.compare(end, kWeight.size(), kWeight)) continue;
        const std::string name = w.name.substr(0, end).append(kScale);
        if (known.count(name) || !model.file.gguf.find_tensor(name)) continue;
        const bool each = w.chosen && w.shape.size() == 3;
        const float** const scale = each ? scales_of_experts(model, w, to) : &to->scale;
        if (!scale) continue;
        const int64_t values = each ? w.shape[2] : 1;
        specs.push_back({w.part, name, {values}, 0, 1, values, Vector{scale}, nullptr, {}});
        specs.back().expert_bias = w.chosen && !each;
        specs.back().expert_scales = each;
    }
}

std::vector<WeightSpec> weight_specs(Model& model, const Family& family) {
    std::vector<WeightSpec> specs;
    const ggml::Gguf& gguf = model.file.gguf;
    const int64_t n_layer = model.config.n_layer;
    family.weights(model, specs);
    Weights(model, specs).text_steps();
    if (model.guesses()) family.nextn(model, specs);
    scale_products(model, specs);
    number_parts(model);
    complete_parts(model);
    const std::string experts = model.config.architecture + ".expert_count";
    const bool routed =
        std::any_of(model.layers.begin(), model.layers.end(),
                    [](const Layer& layer) { return layer.find<Router>() != nullptr; });
    for (int64_t i = 0; i < n_layer && !routed; i++) {
        if (!of_layer(gguf, model.config, i, experts, 0, kMany, 0)) continue;
        refuse(gguf, Code::unsupported,
               experts + ": this family has no mixtures, or the file no layer of experts");
    }
    if (!model.config.ropes.empty()) Weights(model, specs).rope_factors();
    const std::vector<float> fatrelu = per_layer(gguf, "powerinfer.ffn.threshold", n_layer);
    const std::vector<float> predictor = per_layer(gguf, "powerinfer.sparse_threshold", n_layer);
    const std::vector<float> recall = per_layer(gguf, "powerinfer.predictor.recall", n_layer);
    for (size_t i = 0; i < size_t(n_layer); i++) {
        for (LayerPart& part : model.layers[i].parts) {
            auto* f = std::get_if<FeedForward>(&part.op);
            if (!f) continue;
            f->sparse_threshold = predictor[i];
            f->recall = recall[i];
            if (f->activation == Activation::xielu) require_xielu(model, *f);
            if (f->limit.most != 0) require_limits(model, *f);
            for (Ffn& block : f->blocks) block.neurons.threshold = fatrelu[i];
        }
        if (fatrelu[i] != 0 && !model.config.neuron_aware) {
            refuse(gguf, Code::unsupported,
                   "powerinfer.ffn.threshold needs neuron rows (ffn_down_t); convert the model");
        }
    }
    check_statistics(model);
    return specs;
}

}  // namespace powerinfer
