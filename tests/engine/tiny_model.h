// Random models of a few layers, described in memory so that a test can damage one thing, and
// written to a file that is removed at the end of the program.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "ggml/dtype.h"
#include "ggml/gguf.h"
#include "ggml/random_blocks.h"
#include "temporary.h"

namespace tiny {

using ggml::DType;

// Of the files of one test.
class Folder : public TemporaryFolder {
 public:
    Folder() : TemporaryFolder("tiny") {}
    std::string operator/(const std::string& name) const { return (path() / name).string(); }
};

struct Shape {
    std::string architecture = "llama";
    std::string activation;  // empty: the family's default
    DType type = DType::F32;
    int64_t n_embd = 64, n_ff = 96, n_head = 4, n_head_kv = 4, head_dim = 16;
    bool tied = false, biases = false, down_t = false;
    int64_t n_layer = 2, n_expert = 0;
    int64_t predictor_rank = 0;  // of random (mostly wrong) predictors; 0: none
    bool sketch = false;         // random sketches as predictors
    bool decided = false;        // their scores are far from 0, so that rounding changes no mask
    uint32_t window = 0;         // of attention; 0: all positions
    // For deepseek2: the ranks of latents (q_rank 0: none of queries), the values of a head that
    // rotate, beside head_dim that do not, and those that it gives.
    int64_t kv_rank = 0, q_rank = 0, n_rot = 0, v_dim = 0;
    // For lfm2: columns of the short convolutions that layers 0, 2, 4, ... have instead of
    // attention.
    int64_t taps = 0;
    bool convolves(int64_t layer) const { return taps > 0 && layer % 2 == 0; }
};

struct Tensor {
    std::string name;
    DType type;
    std::vector<int64_t> ne;
    std::vector<uint8_t> bytes;
};

using Key = std::variant<uint32_t, float, bool, std::string, std::vector<int32_t>>;

struct Description {
    std::map<std::string, Key> keys;
    std::vector<Tensor> tensors;

    Tensor& tensor(const std::string& name) {
        for (Tensor& t : tensors) {
            if (t.name == name) return t;
        }
        throw std::runtime_error("no tensor " + name);
    }
    void remove(const std::string& name) {
        tensors.erase(tensors.begin() + (&tensor(name) - tensors.data()));
    }
};

constexpr int32_t kVocab = 300;

inline Description describe(const Shape& s, uint32_t seed = 1) {
    Description d;
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const auto add = [&](const std::string& name, DType type, std::vector<int64_t> ne, float mean,
                         float scale) {
        int64_t n = 1;
        for (int64_t size : ne) n *= size;
        std::vector<float> values(static_cast<size_t>(n));
        for (float& v : values) v = mean + scale * normal(rng);
        if (s.decided && name.find(".fc2.") != name.npos) {
            // What it is multiplied with is not negative.
            for (size_t i = 0; i < values.size(); i++) {
                const int64_t neuron = int64_t(i) / ne[0];
                values[i] = std::fabs(values[i]) * (neuron * neuron % 7 < 3 ? 1.0f : -1.0f);
            }
        }
        d.tensors.push_back({name, type, std::move(ne), ggml::random_blocks(type, values)});
    };
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, float size = 1) {
        add(name, s.type, {cols, rows}, 0, size / std::sqrt(float(cols)));
    };
    const auto bias = [&](const std::string& name, int64_t n) {
        if (s.biases) add(name, DType::F32, {n}, 0, 0.3f);
    };
    const std::string& a = s.architecture;
    const int64_t q_dim = s.n_head * s.head_dim, kv_dim = s.n_head_kv * s.head_dim;
    d.keys["general.architecture"] = a;
    d.keys[a + ".context_length"] = uint32_t(128);
    d.keys[a + ".embedding_length"] = uint32_t(s.n_embd);
    d.keys[a + ".block_count"] = uint32_t(s.n_layer);
    d.keys[a + ".feed_forward_length"] = uint32_t(s.n_ff);
    d.keys[a + ".attention.head_count"] = uint32_t(s.n_head);
    d.keys[a + ".attention.head_count_kv"] = uint32_t(s.n_head_kv);
    d.keys[a + ".attention.layer_norm_rms_epsilon"] = 1e-5f;
    if (s.taps) {
        d.keys[a + ".shortconv.l_cache"] = uint32_t(s.taps);
        std::vector<int32_t> heads;
        for (int64_t i = 0; i < s.n_layer; i++) {
            heads.push_back(s.convolves(i) ? 0 : int32_t(s.n_head_kv));
        }
        d.keys[a + ".attention.head_count_kv"] = heads;
    }
    if (s.kv_rank) {
        const auto key = [&](const char* name, int64_t value) {
            d.keys[a + name] = uint32_t(value);
        };
        key(".attention.kv_lora_rank", s.kv_rank);
        if (s.q_rank) key(".attention.q_lora_rank", s.q_rank);
        key(".attention.key_length", s.kv_rank + s.n_rot);
        key(".attention.value_length", s.kv_rank);
        key(".attention.key_length_mla", s.head_dim + s.n_rot);
        key(".attention.value_length_mla", s.v_dim);
        key(".rope.dimension_count", s.n_rot);
    } else if (q_dim != s.n_embd) {
        d.keys[a + ".attention.key_length"] = uint32_t(s.head_dim);
        d.keys[a + ".attention.value_length"] = uint32_t(s.head_dim);
    }
    if (s.window) d.keys[a + ".attention.sliding_window"] = s.window;
    if (s.n_expert) {
        d.keys[a + ".expert_count"] = uint32_t(s.n_expert);
        d.keys[a + ".expert_used_count"] = uint32_t(2);
    }
    if (s.sketch) {
        d.keys["powerinfer.predictor.kind"] = "sketch";
        d.keys["powerinfer.predictor.input"] = "normed";
    }
    if (!s.activation.empty()) d.keys["powerinfer.ffn.activation"] = s.activation;

    const auto signs = [&](const std::string& name, const std::vector<int64_t>& ne) {
        int64_t n = 1;
        for (int64_t size : ne) n *= size;
        std::vector<uint8_t> bytes(static_cast<size_t>(n));
        for (uint8_t& byte : bytes) byte = uint8_t(rng());
        d.tensors.push_back({name, DType::I8, ne, std::move(bytes)});
    };

    add("token_embd.weight", s.type, {s.n_embd, kVocab}, 0, 0.5f);
    for (int64_t i = 0; i < s.n_layer; i++) {
        const std::string blk = "blk." + std::to_string(i) + ".";
        add(blk + "attn_norm.weight", DType::F32, {s.n_embd}, 1, 0.2f);
        if (s.convolves(i)) {
            matrix(blk + "shortconv.in_proj.weight", 3 * s.n_embd, s.n_embd);
            add(blk + "shortconv.conv.weight", DType::F32, {s.taps, s.n_embd}, 0, 0.7f);
            matrix(blk + "shortconv.out_proj.weight", s.n_embd, s.n_embd, 3);
        } else if (s.kv_rank) {
            const int64_t q = s.n_head * (s.head_dim + s.n_rot);
            if (s.q_rank) {
                matrix(blk + "attn_q_a.weight", s.q_rank, s.n_embd);
                add(blk + "attn_q_a_norm.weight", DType::F32, {s.q_rank}, 1, 0.2f);
                matrix(blk + "attn_q_b.weight", q, s.q_rank, 1.5f);
            } else {
                matrix(blk + "attn_q.weight", q, s.n_embd, 1.5f);
            }
            matrix(blk + "attn_kv_a_mqa.weight", s.kv_rank + s.n_rot, s.n_embd);
            add(blk + "attn_kv_a_norm.weight", DType::F32, {s.kv_rank}, 1, 0.2f);
            const auto heads = [&](const char* name, int64_t rows, int64_t cols) {
                add(blk + name, s.type, {cols, rows, s.n_head}, 0, 1 / std::sqrt(float(cols)));
            };
            heads("attn_k_b.weight", s.kv_rank, s.head_dim);
            heads("attn_v_b.weight", s.v_dim, s.kv_rank);
            matrix(blk + "attn_output.weight", s.n_embd, s.n_head * s.v_dim);
        } else {
            matrix(blk + "attn_q.weight", q_dim, s.n_embd, 1.5f);
            matrix(blk + "attn_k.weight", kv_dim, s.n_embd, 1.5f);
            matrix(blk + "attn_v.weight", kv_dim, s.n_embd);
            matrix(blk + "attn_output.weight", s.n_embd, q_dim);
        }
        if (s.taps && !s.convolves(i)) {
            for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"}) {
                add(blk + name, DType::F32, {s.head_dim}, 1, 0.2f);
            }
        }
        bias(blk + "attn_q.bias", q_dim);
        bias(blk + "attn_k.bias", kv_dim);
        bias(blk + "attn_v.bias", kv_dim);
        bias(blk + "attn_output.bias", s.n_embd);
        add(blk + "ffn_norm.weight", DType::F32, {s.n_embd}, 1, 0.2f);
        if (s.n_expert) {
            const auto experts = [&](const char* name, int64_t rows, int64_t cols) {
                add(blk + name, s.type, {cols, rows, s.n_expert}, 0, 1 / std::sqrt(float(cols)));
            };
            matrix(blk + "ffn_gate_inp.weight", s.n_expert, s.n_embd);
            experts("ffn_gate_exps.weight", s.n_ff, s.n_embd);
            experts("ffn_up_exps.weight", s.n_ff, s.n_embd);
            if (s.down_t) {
                experts("ffn_down_t_exps.weight", s.n_ff, s.n_embd);
            } else {
                experts("ffn_down_exps.weight", s.n_embd, s.n_ff);
            }
            if (s.predictor_rank) {
                experts("fc1_exps.weight", s.predictor_rank, s.n_embd);
                experts("fc2_exps.weight", s.n_ff, s.predictor_rank);
            }
            if (s.sketch) {
                signs(blk + "sketch_exps.weight", {s.n_embd / 8, s.n_ff, s.n_expert});
            }
            continue;
        }
        if (s.predictor_rank) {
            matrix(blk + "fc1.weight", s.predictor_rank, s.n_embd);
            matrix(blk + "fc2.weight", s.n_ff, s.predictor_rank);
        }
        if (s.sketch) {
            signs(blk + "sketch.weight", {s.n_embd / 8, s.n_ff});
            add(blk + "sketch.bias", DType::F32, {s.n_ff}, 0, 1);
        }
        matrix(blk + "ffn_gate.weight", s.n_ff, s.n_embd);
        matrix(blk + "ffn_up.weight", s.n_ff, s.n_embd);
        const std::string down = blk + (s.down_t ? "ffn_down_t" : "ffn_down");
        s.down_t ? matrix(down + ".weight", s.n_ff, s.n_embd)
                 : matrix(down + ".weight", s.n_embd, s.n_ff);
        bias(blk + "ffn_gate.bias", s.n_ff);
        bias(blk + "ffn_up.bias", s.n_ff);
        bias(down + ".bias", s.n_embd);
    }
    add(s.taps ? "token_embd_norm.weight" : "output_norm.weight", DType::F32, {s.n_embd}, 1, 0.2f);
    if (!s.tied) matrix("output.weight", kVocab, s.n_embd, 4);
    return d;
}

// Three control tokens, one token per byte, and a few pieces of text.
inline void add_vocabulary(ggml::GgufWriter& writer) {
    std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {2, 3, 3};
    for (int i = 0; i < 256; i++) {
        char text[8];
        std::snprintf(text, sizeof(text), "<0x%02X>", unsigned(i));
        texts.push_back(text);
        types.push_back(6);
    }
    for (int32_t i = 0; int32_t(texts.size()) < kVocab; i++) {
        texts.push_back(std::string(1, char('a' + i % 26)) + (i < 26 ? "" : "n"));
        types.push_back(1);
    }
    writer.add_string("tokenizer.ggml.model", "llama");
    writer.add_strings("tokenizer.ggml.tokens", texts);
    writer.add_f32s("tokenizer.ggml.scores", std::vector<float>(texts.size(), -1));
    writer.add_i32s("tokenizer.ggml.token_type", types);
}

// Writes tensors [first, last), and keys only if `keys`.
inline void write(const Description& d, const std::string& path, size_t first, size_t last,
                  bool keys, const std::map<std::string, Key>& more, const char* magic = "GGUF") {
    ggml::GgufWriter writer(path, magic);
    const auto add = [&](const std::map<std::string, Key>& map) {
        for (const auto& [key, value] : map) {
            if (const auto* u = std::get_if<uint32_t>(&value)) writer.add_u32(key, *u);
            if (const auto* f = std::get_if<float>(&value)) writer.add_f32(key, *f);
            if (const auto* b = std::get_if<bool>(&value)) writer.add_bool(key, *b);
            if (const auto* s = std::get_if<std::string>(&value)) writer.add_string(key, *s);
            if (const auto* v = std::get_if<std::vector<int32_t>>(&value)) {
                writer.add_i32s(key, *v);
            }
        }
    };
    add(more);
    if (keys) {
        add(d.keys);
        add_vocabulary(writer);
    }
    for (size_t i = first; i < last; i++) {
        writer.add_tensor(d.tensors[i].name, d.tensors[i].type, d.tensors[i].ne);
    }
    for (size_t i = first; i < last; i++) {
        writer.write(d.tensors[i].bytes.data(), d.tensors[i].bytes.size());
    }
    writer.finish();
}

inline void write(const Description& d, const std::string& path, const char* magic = "GGUF") {
    write(d, path, 0, d.tensors.size(), true, {}, magic);
}

}  // namespace tiny
