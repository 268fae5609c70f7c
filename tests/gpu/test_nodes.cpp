// How many kernels a layer of each kind takes for one row, as docs/gpu.md has it: a kernel costs a
// card a microsecond or two besides what it reads. Heads are whole groups of 32 values, as those of
// published models: others take one kernel more.
#include <cstdio>

#include "forward/device_forward.h"
#include "gpu/splits.h"
#include "gpu/state_models.h"

using namespace splits;
using state_models::Maker;

namespace {

const std::string path = folder / "nodes.gguf";

pi_session_params params_of() {
    pi_session_params params = session_params();
    params.sparse = PI_SPARSE_AUTO;
    params.type_k = params.type_v = uint32_t(DType::F16);
    return params;
}

// Nodes of the graph of one row, without those of no layer: tables of RoPE, the last norm, the
// head and its cap. All layers are on the device.
int of_layers(uint64_t budget) {
    const pi_session_params params = params_of();
    const auto model = load_on(path, budget, params);
    CHECK(model->device && model->device_layers() == model->config.n_layer);
    if (!model->device) return 0;
    Session session(model, params);
    logits(session, random_tokens(3, 2), 1, 0);
    const Config& c = model->config;
    return session.device()->most_nodes() - int(c.ropes.size()) - 2 - (c.logit_softcap > 0);
}

void check(const char* what, int expected, uint64_t budget = 1 << 30) {
    const int got = of_layers(budget);
    if (got != expected) std::fprintf(stderr, "%s: %d kernels, not %d\n", what, got, expected);
    CHECK(got == expected);
}
void check(const char* what, const Description& d, int expected) {
    tiny::write(d, path);
    check(what, expected);
}
// Where the CPU has a part of some layers, these take a kernel more, which publishes their input,
// and without neurons here two less. each: of a layer that is the device's alone.
void check_split(const char* what, const Description& d, int each) {
    tiny::write(d, path);
    const pi_session_params params = params_of();
    const Range range = budgets(path, params);
    bool both = false;  // have a part of a layer
    for (uint64_t part = 1; part < 8; part++) {
        const uint64_t budget = range.most - (range.most - range.least) * part / 8;
        const auto model = load_on(path, budget, params);
        if (model->device_layers() < model->config.n_layer || !model->device->split.head) break;
        const bool routed = model->ffns[0]->routed();
        int expected = 0;
        for (int64_t i = 0; i < model->config.n_layer; i++) {
            const bool splits = routed || model->device->split.splits(i);
            const bool none = !routed && model->device_neurons(i) == 0;
            expected += each + int(splits) - 2 * int(none);
            both = both || (splits && !none);
        }
        check(what, expected, budget);
    }
    CHECK(both);
}

Shape shape() {
    Shape s;
    s.head_dim = 32, s.n_head_kv = 2, s.type = DType::Q8_0;
    return s;
}

Description with_post_norms() {
    Maker m("gemma2", 2, 96, DType::Q8_0);
    for (int64_t i = 0; i < 2; i++) {
        m.norm(i, "attn_norm");
        m.attention(i);
        m.norm(i, "post_attention_norm");
        m.norm(i, "ffn_norm");
        m.ffn(i, 96, true);
        m.norm(i, "post_ffw_norm");
    }
    return m.d;
}

// One delta net, one gated attention; experts and a shared one that is weighed.
Description qwen3_5_moe() {
    Maker m("qwen35moe", 2, 64, DType::Q8_0);
    m.sizes(4, 32, 2, 4, 128);
    m.keys("rope.dimension_sections", {2, 1, 1, 0});
    m.key("rope.dimension_count", 8);
    m.key("full_attention_interval", 2);
    m.key("expert_count", 4);
    m.key("expert_used_count", 2);
    m.key("expert_feed_forward_length", 64);
    m.key("expert_shared_feed_forward_length", 64);
    for (int64_t i = 0; i < 2; i++) {
        m.norm(i, "attn_norm");
        if (i == 0) {
            m.delta_net(i, 4, 32, 2, 4, 128, false);
        } else {
            m.matrix(Maker::blk(i, "attn_q"), 128, Maker::kEmbd, 1.5f);
            m.matrix(Maker::blk(i, "attn_k"), 32, Maker::kEmbd, 1.5f);
            m.matrix(Maker::blk(i, "attn_v"), 32, Maker::kEmbd);
            m.matrix(Maker::blk(i, "attn_output"), Maker::kEmbd, 64);
            m.vector(Maker::blk(i, "attn_q_norm"), {32}, 1, 0.2f);
            m.vector(Maker::blk(i, "attn_k_norm"), {32}, 1, 0.2f);
        }
        m.norm(i, "post_attention_norm");
        m.matrix(Maker::blk(i, "ffn_gate_inp"), 4, Maker::kEmbd);
        m.experts(i, 4, 64);
        m.matrix(Maker::blk(i, "ffn_gate_shexp"), 64, Maker::kEmbd);
        m.matrix(Maker::blk(i, "ffn_up_shexp"), 64, Maker::kEmbd);
        m.matrix(Maker::blk(i, "ffn_down_shexp"), Maker::kEmbd, 64);
        m.vector(Maker::blk(i, "ffn_gate_inp_shexp"), {Maker::kEmbd}, 0, 0.2f);
    }
    return m.d;
}

// Mamba-2, experts without gates beside a shared one, attention.
Description nemotron_3() {
    Maker m("nemotron_h_moe", 3, 64, DType::Q8_0);
    m.sizes(4, 32, 2, 4, 128);
    m.keys("attention.head_count_kv", {0, 0, 1});
    m.keys("feed_forward_length", {0, 64, 0});
    m.key("expert_count", 4);
    m.key("expert_used_count", 2);
    m.key("expert_feed_forward_length", 64);
    m.key("expert_shared_feed_forward_length", 64);
    m.key("expert_shared_count", 1);
    m.key("expert_gating_func", 2);
    for (int64_t i = 0; i < 3; i++) m.norm(i, "attn_norm");
    m.mamba(0, 4, 32, 2, 4, 128, true);
    m.matrix(Maker::blk(1, "ffn_gate_inp"), 4, Maker::kEmbd);
    m.experts(1, 4, 64);
    m.d.remove("blk.1.ffn_gate_exps.weight");
    m.matrix(Maker::blk(1, "ffn_up_shexp"), 64, Maker::kEmbd);
    m.matrix(Maker::blk(1, "ffn_down_shexp"), Maker::kEmbd, 64);
    m.attention(2);
    return m.d;
}

void test_attention_and_matrices() {
    check("matrices", tiny::describe(shape()), 2 * 10);
    Shape latents = shape();
    latents.architecture = "deepseek2", latents.n_head_kv = 1;
    latents.kv_rank = 64, latents.n_rot = 32, latents.v_dim = 32;
    check("latents", tiny::describe(latents), 1 + 2 * 14);
    latents.q_rank = 32;
    check("latents of queries", tiny::describe(latents), 1 + 2 * 16);
    check("norms behind parts", with_post_norms(), 2 * 10);
}

void test_mixtures() {
    Shape s = shape();
    s.n_expert = 8;
    check("mixture", tiny::describe(s), 2 * 13);
    check_split("mixture with experts of the CPU", tiny::describe(s), 13);
}

void test_neurons() {
    Shape s = shape();
    s.activation = "relu", s.down_t = true;
    check("neurons", tiny::describe(s), 2 * 11);
    check_split("neurons of both", tiny::describe(s), 11);
    s.predictor_rank = 32;
    check("neurons with a predictor", tiny::describe(s), 2 * 15);
    check_split("neurons of both with a predictor", tiny::describe(s), 15);
    s.predictor_rank = 0, s.sketch = true;
    check("neurons with a sketch", tiny::describe(s), 2 * 13);
    check_split("neurons of both with a sketch", tiny::describe(s), 13);
}

void test_states() {
    Shape s = shape();
    s.architecture = "lfm2", s.taps = 3;
    check("short convolution, attention", tiny::describe(s), 11 + 10);
    check("delta net and gated attention, shared experts", qwen3_5_moe(), 21 + 19);
    check("Mamba-2, experts, attention", nemotron_3(), 8 + 10 + 6);
}

}  // namespace

int main() {
    test_attention_and_matrices();
    test_mixtures();
    test_neurons();
    test_states();
    return check::summary("test_nodes");
}
