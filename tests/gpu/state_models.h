// Random models whose layers fold all positions into a state, of each kind of state and list of
// parts, with sizes that fill no blocks of columns.
#pragma once

#include "engine/tiny_model.h"
#include "ggml/check.h"

namespace state_models {

using tiny::Description;

// Adds tensors to a description.
class Maker {
 public:
    Maker(const std::string& architecture, int64_t n_layer, int64_t n_ff, ggml::DType type)
        : arch_(architecture), type_(type) {
        d.keys["general.architecture"] = arch_;
        key("context_length", 256);
        key("embedding_length", kEmbd);
        key("block_count", n_layer);
        key("feed_forward_length", n_ff);
        key("attention.head_count", 2);
        key("attention.head_count_kv", 1);
        key("attention.key_length", 32);
        key("attention.value_length", 32);
        d.keys[arch_ + ".attention.layer_norm_rms_epsilon"] = 1e-5f;
        matrix("token_embd.weight", tiny::kVocab, kEmbd, 4);
        vector("output_norm.weight", {kEmbd}, 1, 0.2f);
        matrix("output.weight", tiny::kVocab, kEmbd, 4);
    }
    void key(const char* name, int64_t value) { d.keys[arch_ + "." + name] = uint32_t(value); }
    void keys(const char* name, const std::vector<int32_t>& values) {
        d.keys[arch_ + "." + name] = values;
    }
    void sizes(int64_t taps, int64_t state, int64_t groups, int64_t heads, int64_t inner) {
        key("ssm.conv_kernel", taps);
        key("ssm.state_size", state);
        key("ssm.group_count", groups);
        key("ssm.time_step_rank", heads);
        key("ssm.inner_size", inner);
    }
    void matrix(const std::string& name, int64_t rows, int64_t cols, float size = 1) {
        add(name, type_, {cols, rows}, 0, size / std::sqrt(float(cols)));
    }
    void vector(const std::string& name, std::vector<int64_t> ne, float mean, float scale) {
        add(name, ggml::DType::F32, std::move(ne), mean, scale);
    }
    static std::string blk(int64_t i, const char* name) {
        return "blk." + std::to_string(i) + "." + name + ".weight";
    }
    void norm(int64_t i, const char* name) { vector(blk(i, name), {kEmbd}, 1, 0.2f); }
    void attention(int64_t i) {
        matrix(blk(i, "attn_q"), 64, kEmbd, 1.5f);
        matrix(blk(i, "attn_k"), 32, kEmbd, 1.5f);
        matrix(blk(i, "attn_v"), 32, kEmbd);
        matrix(blk(i, "attn_output"), kEmbd, 64);
    }
    // in_rows: down as rows of neurons.
    void ffn(int64_t i, int64_t n_ff, bool gated, bool in_rows = false) {
        if (gated) matrix(blk(i, "ffn_gate"), n_ff, kEmbd);
        matrix(blk(i, "ffn_up"), n_ff, kEmbd);
        if (in_rows) return matrix(blk(i, "ffn_down_t"), n_ff, kEmbd);
        matrix(blk(i, "ffn_down"), kEmbd, n_ff);
    }
    void experts(int64_t i, int64_t n, int64_t n_ff) {
        const auto add_all = [&](const char* name, int64_t rows, int64_t cols) {
            add(blk(i, name), type_, {cols, rows, n}, 0, 1 / std::sqrt(float(cols)));
        };
        add_all("ffn_gate_exps", n_ff, kEmbd);
        add_all("ffn_up_exps", n_ff, kEmbd);
        add_all("ffn_down_exps", kEmbd, n_ff);
    }
    void mamba(int64_t i, int64_t taps, int64_t state, int64_t groups, int64_t heads, int64_t inner,
               bool normed) {
        const int64_t channels = inner + 2 * groups * state;
        const std::string b = "blk." + std::to_string(i) + ".";
        matrix(blk(i, "ssm_in"), inner + channels + heads, kEmbd);
        vector(blk(i, "ssm_conv1d"), {taps, channels}, 0, 0.7f);
        vector(b + "ssm_conv1d.bias", {channels}, 0, 0.3f);
        vector(b + "ssm_dt.bias", {heads}, 0, 1);
        vector(b + "ssm_a", {1, heads}, -1, 0.3f);
        vector(b + "ssm_d", {1, heads}, 1, 0.3f);
        if (normed) vector(blk(i, "ssm_norm"), {inner / groups, groups}, 1, 0.2f);
        matrix(blk(i, "ssm_out"), kEmbd, inner, 3);
    }
    // by_head: as older files have it.
    void delta_net(int64_t i, int64_t taps, int64_t head, int64_t k_heads, int64_t v_heads,
                   int64_t inner, bool by_head) {
        const int64_t channels = 2 * k_heads * head + inner;
        const std::string b = "blk." + std::to_string(i) + ".";
        if (by_head) {
            matrix(blk(i, "ssm_in"), channels + inner, kEmbd);
            matrix(blk(i, "ssm_ba"), 2 * v_heads, kEmbd);
        } else {
            matrix(blk(i, "attn_qkv"), channels, kEmbd);
            matrix(blk(i, "attn_gate"), inner, kEmbd);
            matrix(blk(i, "ssm_beta"), v_heads, kEmbd);
            matrix(blk(i, "ssm_alpha"), v_heads, kEmbd);
        }
        vector(blk(i, "ssm_conv1d"), {taps, channels}, 0, 0.7f);
        vector(b + "ssm_dt.bias", {v_heads}, 0, 1);
        vector(b + "ssm_a", {v_heads}, -1, 0.3f);
        vector(blk(i, "ssm_norm"), {inner / v_heads}, 1, 0.2f);
        matrix(blk(i, "ssm_out"), kEmbd, inner, 3);
    }
    Description d;
    static constexpr int64_t kEmbd = 64;

 private:
    void add(const std::string& name, ggml::DType type, std::vector<int64_t> ne, float mean,
             float scale) {
        int64_t n = 1;
        for (int64_t size : ne) n *= size;
        std::normal_distribution<float> normal(mean, scale);
        std::vector<float> values(static_cast<size_t>(n));
        for (float& v : values) v = normal(rng_);
        if (name.find("ssm_a") != name.npos) {
            for (float& v : values) v = -std::fabs(v);
        }
        d.tensors.push_back({name, type, std::move(ne), ggml::random_blocks(type, values)});
    }

    std::string arch_;
    ggml::DType type_;
    std::mt19937 rng_{1};
};

// Convolutions, and attention in every second layer.
inline Description lfm2() {
    tiny::Shape s;
    s.architecture = "lfm2", s.taps = 3, s.n_layer = 4, s.n_head_kv = 2, s.type = ggml::DType::Q8_0;
    Description d = tiny::describe(s);
    d.keys["lfm2.context_length"] = uint32_t(256);
    return d;
}

// Mamba-2 without attention or a block in the same layer, with norms of groups.
inline Description nemotron_h(bool in_rows) {
    Maker m("nemotron_h", 5, 64, ggml::DType::F32);
    m.sizes(4, 24, 2, 6, 96);
    m.keys("attention.head_count_kv", {0, 0, 1, 0, 0});
    m.keys("feed_forward_length", {0, 64, 0, 0, 64});
    for (int64_t i = 0; i < 5; i++) {
        m.norm(i, "attn_norm");
        if (i == 0 || i == 3) m.mamba(i, 4, 24, 2, 6, 96, true);
        if (i == 2) m.attention(i);
        if (i == 1 || i == 4) m.ffn(i, 64, false, in_rows);
    }
    return m.d;
}

// Attention and Mamba-2 side by side, without a norm between its products.
inline Description falcon_h1() {
    Maker m("falcon-h1", 2, 96, ggml::DType::Q8_0);
    m.sizes(3, 37, 1, 2, 96);
    for (int64_t i = 0; i < 2; i++) {
        m.norm(i, "attn_norm");
        m.attention(i);
        m.mamba(i, 3, 37, 1, 2, 96, false);
        m.norm(i, "ffn_norm");
        m.ffn(i, 96, true);
    }
    return m.d;
}

// Delta nets, whose heads of keys serve heads of values in turn.
inline Description qwen3_5() {
    Maker m("qwen35", 3, 96, ggml::DType::Q8_0);
    m.sizes(4, 16, 2, 6, 96);
    m.keys("rope.dimension_sections", {2, 1, 1, 0});
    m.key("rope.dimension_count", 8);
    for (int64_t i = 0; i < 3; i++) {
        m.norm(i, "attn_norm");
        m.delta_net(i, 4, 16, 2, 6, 96, false);
        m.norm(i, "post_attention_norm");
        m.ffn(i, 96, true);
    }
    return m.d;
}

// Delta nets with products by head, and keys that are wider than values.
inline Description qwen3_next() {
    Maker m("qwen3next", 2, 64, ggml::DType::F32);
    m.sizes(2, 37, 2, 4, 96);
    m.key("rope.dimension_count", 8);
    m.key("expert_count", 4);
    m.key("expert_used_count", 2);
    m.key("expert_feed_forward_length", 64);
    for (int64_t i = 0; i < 2; i++) {
        m.norm(i, "attn_norm");
        m.delta_net(i, 2, 37, 2, 4, 96, true);
        m.norm(i, "post_attention_norm");
        m.matrix(Maker::blk(i, "ffn_gate_inp"), 4, Maker::kEmbd);
        m.experts(i, 4, 64);
    }
    return m.d;
}

}  // namespace state_models
