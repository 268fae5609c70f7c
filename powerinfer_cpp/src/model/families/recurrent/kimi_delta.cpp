// Kimi Linear and Ling 3: Kimi's delta attention in most layers, attention over latents in the
// others, a dense layer or two, and experts beside a shared one.
#include <algorithm>

#include "ggml/recurrence.h"
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

constexpr int64_t kMostDeltaHeads = 1 << 16;  // these two prevent overflow
constexpr int64_t kWidestDeltaHead = 1 << 12;

// The sizes of layer i, whose file has a number in a row of ssm_beta for each head.
DeltaNet kimi_delta(const Weights& w, int64_t i) {
    const ggml::Gguf& gguf = w.m.file.gguf;
    const std::string& arch = w.m.config.architecture;
    DeltaNet d;
    d.by_row = d.sigmoid_gate = true;
    d.taps = gguf.integer(arch + ".ssm.conv_kernel", 1, ggml::kMostTaps);
    d.head_dim = d.v_head_dim = gguf.integer(arch + ".kda.head_dim", 1, kWidestDeltaHead);
    const ggml::TensorInfo* const beta = gguf.find_tensor(blk(i, "ssm_beta.weight"));
    d.n_k_head = d.n_v_head = beta ? std::clamp<int64_t>(beta->ne[1], 1, kMostDeltaHeads) : 1;
    // What the bound is of a decay's exponent, which has another form then.
    const std::string bound = arch + ".kda.gate_lower_bound";
    if (!gguf.boolean(arch + ".kda.safe_gate", gguf.find(bound) != nullptr)) return d;
    d.lower_bound = float(gguf.number(bound, -1e6, 0));
    if (d.lower_bound < 0) return d;
    throw ggml::Error(ggml::Code::format,
                      gguf.path() + ": key \"" + bound + "\" is 0, and decays would all be 1");
}

// The shape of a tensor with so many values in each row: files differ in the dimensions of 1 that
// they have beside these two.
std::vector<int64_t> with_ones(const Weights& w, const std::string& name, int64_t cols,
                               int64_t rows) {
    std::vector<int64_t> shape{cols};
    const ggml::TensorInfo* const t = w.m.file.gguf.find_tensor(name);
    for (int32_t k = 1; t && k < t->n_dims; k++) shape.push_back(t->ne[k] == 1 ? 1 : rows);
    const int64_t n = std::count(shape.begin() + 1, shape.end(), rows);
    return n == 1 || (rows == 1 && n > 0) ? shape : std::vector<int64_t>{cols, rows};
}

void add_kimi_delta(Weights& w, int64_t i) {
    const int64_t n_embd = w.m.config.n_embd;
    DeltaNet& d = w.add_state(i, "attn_norm", kimi_delta(w, i));
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols, ggml::Matrix* to) {
        w.matrix(Part::attention, blk(i, name), rows, cols, to);
    };
    const auto vectors = [&](const char* name, int64_t cols, int64_t rows, const float** to) {
        const std::string tensor = blk(i, name);
        w.rows(Part::attention, tensor, with_ones(w, tensor, cols, rows), 0, rows, Vector{to});
    };
    const int64_t width = d.v_dim();  // of all heads' queries, keys and values
    matrix("attn_q.weight", width, n_embd, &d.q);
    matrix("attn_k.weight", width, n_embd, &d.k);
    matrix("attn_v.weight", width, n_embd, &d.v);
    vectors("ssm_conv1d_q.weight", d.taps, width, &d.q_conv);
    vectors("ssm_conv1d_k.weight", d.taps, width, &d.k_conv);
    vectors("ssm_conv1d_v.weight", d.taps, width, &d.v_conv);
    matrix("ssm_beta.weight", d.n_v_head, n_embd, &d.beta);
    // Decays and gates are products with one matrix, or with two that meet in the width of a head.
    if (w.has(blk(i, "ssm_f_b.weight"))) {
        d.rank = d.head_dim;
        matrix("ssm_f_a.weight", d.rank, n_embd, &d.alpha_low);
        matrix("ssm_f_b.weight", width, d.rank, &d.alpha);
        matrix("ssm_g_a.weight", d.rank, n_embd, &d.gate_low);
        matrix("ssm_g_b.weight", width, d.rank, &d.gate);
    } else {
        matrix("ssm_f_a.weight", width, n_embd, &d.alpha);
        matrix("ssm_g_a.weight", width, n_embd, &d.gate);
    }
    w.vector(Part::attention, blk(i, "ssm_dt.bias"), width, &d.dt_bias);
    vectors("ssm_a", 1, d.n_v_head, &d.a);
    w.vector(Part::attention, blk(i, "ssm_norm.weight"), d.v_head_dim, &d.norm);
    matrix("attn_output.weight", n_embd, width, &d.out);
}

// gates: what heads of latents give is multiplied by gates, and those of experts may have limits.
void weights_of_kimi_delta(Model& m, std::vector<WeightSpec>& specs, bool gates) {
    LayerForm form;
    form.latent = true;
    form.gating = ggml::Gating::sigmoid;
    if (gates) form.output_gate = ggml::GateBy::sigmoid;
    form.limits_gates = gates;
    Weights w(m, specs);
    w.embedding_and_head();
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        check_experts(m, i);
        if (w.has(blk(i, "ssm_beta.weight"))) {
            add_kimi_delta(w, i);
        } else {
            w.attend(i, form);
        }
        w.feed_forward(i, form);
    }
}

void weights_kimi_linear(Model& m, std::vector<WeightSpec>& specs) {
    weights_of_kimi_delta(m, specs, false);
}

void weights_bailingmoe3(Model& m, std::vector<WeightSpec>& specs) {
    weights_of_kimi_delta(m, specs, true);
}

}  // namespace

const std::vector<Family> kKimiDeltaFamilies = {
    Family{"kimi-linear", configure_latents, weights_kimi_linear}
        .of_experts()
        .of_hybrid_layers()
        .without_rotation(),
    Family{"bailingmoe3", configure_latents, weights_bailingmoe3}.of_experts().of_hybrid_layers(),
};

}  // namespace powerinfer
