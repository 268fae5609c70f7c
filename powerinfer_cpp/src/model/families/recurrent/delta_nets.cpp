// Qwen3-Next, Qwen 3.5 and 3.6: gated delta nets in most layers, attention whose results are gated
// in the others; dense or with experts, of which every row computes one. OLMo Hybrid: the same with
// plain attention.
#include "model/families/recurrent/delta_nets.h"

#include "ggml/recurrence.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Activation;

namespace {

constexpr int64_t kDeltaNetPeriod = 4;   // of layers, of which the last one has attention
constexpr int64_t kMostHeads = 1 << 16;  // these two prevent overflow
constexpr int64_t kWidestHead = 1 << 12;
constexpr float kOlmoEps = 1e-5f;  // of OLMo Hybrid's norm in a delta net, whatever others have

}  // namespace

std::vector<bool> recurrent_layers(const Model& m) {
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string& prefix = m.config.architecture;
    const int64_t period =
        gguf.integer(prefix + ".full_attention_interval", 1, INT32_MAX, kDeltaNetPeriod);
    std::vector<bool> found;
    const ggml::Value* flags = layer_flags(m, prefix + ".attention.recurrent_layers");
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        found.push_back(flags ? flags->integer(uint64_t(i)) != 0 : (i + 1) % period != 0);
    }
    return found;
}

DeltaNet delta_net(const Model& m, bool tiled) {
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string prefix = m.config.architecture + ".ssm.";
    const auto read = [&](const char* key, int64_t least, int64_t most) {
        return gguf.integer(prefix + key, least, most);
    };
    DeltaNet d;
    d.taps = read("conv_kernel", 1, ggml::kMostTaps);
    d.n_k_head = read("group_count", 1, kMostHeads);
    d.n_v_head = read("time_step_rank", 1, kMostHeads);
    d.head_dim = read("state_size", 1, kWidestHead);
    const int64_t inner = read("inner_size", 1, kMostHeads * kWidestHead);
    d.v_head_dim = inner / d.n_v_head;
    if (d.n_v_head % d.n_k_head || inner % d.n_v_head || d.v_head_dim > kWidestHead) {
        throw ggml::Error(
            ggml::Code::format,
            ggml::format("%s: %s*: %lld heads of keys and %lld of values, of which all have %lld "
                         "values, do not fit",
                         gguf.path().c_str(), prefix.c_str(), (long long)d.n_k_head,
                         (long long)d.n_v_head, (long long)inner));
    }
    d.tiled = tiled;
    return d;
}

// Older files have the tensors of queries, keys, values and gates in one, head by head;
// Qwen3-Next's have beta and alpha in one.
void add_delta_net(Weights& w, int64_t i, const DeltaNet& sizes, const char* norm) {
    const int64_t n_embd = w.m.config.n_embd;
    DeltaNet& d = w.add_state(i, norm, sizes);
    const auto matrix = [&](const char* name, int64_t rows, ggml::Matrix* to) {
        w.matrix(Part::attention, blk(i, name), rows, n_embd, to);
    };
    const auto vector = [&](const char* name, int64_t n, const float** to) {
        w.vector(Part::attention, blk(i, name), n, to);
    };
    if (!d.tiled && w.has(blk(i, "ssm_in.weight"))) {
        matrix("ssm_in.weight", d.by_head_dim(), &d.by_head);
    } else {
        matrix("attn_qkv.weight", d.channels(), &d.qkv);
        matrix("attn_gate.weight", d.v_dim(), &d.gate);
    }
    if (!d.tiled && w.has(blk(i, "ssm_ba.weight"))) {
        matrix("ssm_ba.weight", 2 * d.n_v_head, &d.beta_alpha);
    } else {
        matrix("ssm_beta.weight", d.n_v_head, &d.beta);
        matrix("ssm_alpha.weight", d.n_v_head, &d.alpha);
    }
    w.rows(Part::attention, blk(i, "ssm_conv1d.weight"), {d.taps, d.channels()}, 0, d.channels(),
           Vector{&d.conv});
    vector("ssm_dt.bias", d.n_v_head, &d.dt_bias);
    vector("ssm_a", d.n_v_head, &d.a);
    vector("ssm_norm.weight", d.v_head_dim, &d.norm);
    w.matrix(Part::attention, blk(i, "ssm_out.weight"), n_embd, d.v_dim(), &d.out);
}

namespace {

LayerForm form_of() {
    LayerForm form;
    form.ffn_norm = "post_attention_norm";
    form.head_norms = Attention::Norms::by_head;
    form.gates_attention = true;
    return form;
}

void nextn_delta_nets(Model& m, std::vector<WeightSpec>& specs) {
    Weights(m, specs).nextn(form_of());
}

void weights_of_delta_nets(Model& m, std::vector<WeightSpec>& specs, bool tiled) {
    const LayerForm form = form_of();
    Weights w(m, specs);
    w.embedding_and_head();
    const std::vector<bool> recurrent = recurrent_layers(m);
    const DeltaNet sizes = delta_net(m, tiled);
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        if (recurrent[size_t(i)]) {
            add_delta_net(w, i, sizes, form.attention_norm);
        } else {
            w.attend(i, form);
        }
        w.feed_forward(i, form);
    }
}

void weights_next(Model& m, std::vector<WeightSpec>& specs) {
    weights_of_delta_nets(m, specs, false);
}

void weights_tiled(Model& m, std::vector<WeightSpec>& specs) {
    weights_of_delta_nets(m, specs, true);
}

// The models were trained without positions: only files with a base rotate.
void configure_olmo_hybrid(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    if (!gguf.find(c.architecture + ".rope.freq_base")) c.ropes.clear();
}

// Norms before both parts of layers with a delta net, behind both parts of the others.
void weights_olmo_hybrid(Model& m, std::vector<WeightSpec>& specs) {
    const LayerForm behind = norms_behind(Attention::Norms::whole_row);
    Weights w(m, specs);
    w.embedding_and_head();
    const std::vector<bool> recurrent = recurrent_layers(m);
    DeltaNet sizes = delta_net(m, false);
    const std::string scale = m.config.architecture + ".ssm.beta_scale";
    sizes.beta_scale = float(m.file.gguf.number(scale, 0, 2, 2));
    sizes.norm_eps = kOlmoEps;
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        if (recurrent[size_t(i)]) {
            add_delta_net(w, i, sizes, "attn_norm");
            w.feed_forward(i, {});
        } else {
            w.layer(i, behind);
        }
    }
}

}  // namespace

const std::vector<Family> kDeltaNetFamilies = {
    Family{"qwen3next", configure_halves, weights_next}.of_experts().guessing(nextn_delta_nets),
    Family{"qwen35", configure_halves, weights_tiled}.guessing(nextn_delta_nets),
    Family{"qwen35moe", configure_halves, weights_tiled}.of_experts().guessing(nextn_delta_nets),
    Family{"olmo-hybrid", configure_olmo_hybrid, weights_olmo_hybrid}.of_hybrid_layers(),
};

}  // namespace powerinfer
