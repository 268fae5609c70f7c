#include "families.h"

#include <algorithm>
#include <cstring>

#include "ggml/status.h"

namespace powerinfer {

using ggml::Activation;
using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

struct NamedActivation {
    const char* name;
    Activation activation;
};
constexpr NamedActivation kActivations[] = {{"relu", Activation::relu},
                                            {"drelu", Activation::drelu},
                                            {"relu2", Activation::relu2},
                                            {"silu", Activation::silu},
                                            {"gelu", Activation::gelu}};

// What tells the families with this layout apart: RMSNorm, rotary attention, gated FFN.
struct Family {
    const char* name;
    Activation gguf;  // where the file names no activation: under the magic GGUF,
    Activation pwri;  // and under PowerInfer's
};
constexpr Family kFamilies[] = {{"llama", Activation::silu, Activation::relu},
                                {"bamboo", Activation::drelu, Activation::drelu}};

Activation read_activation(const ggml::Gguf& gguf, const Family& family) {
    const auto fallback = gguf.powerinfer_magic() ? family.pwri : family.gguf;
    const std::string_view wanted = gguf.string("powerinfer.ffn.activation", name(fallback));
    for (const NamedActivation& a : kActivations) {
        if (wanted == a.name) return a.activation;
    }
    throw Error(Code::unsupported,
                format("%s: powerinfer.ffn.activation \"%.*s\" is not known", gguf.path().c_str(),
                       int(std::min<size_t>(wanted.size(), 40)), wanted.data()));
}

// Features that would change the result if they were passed over.
void refuse_unsupported(const ggml::Gguf& gguf, const std::string& arch, int64_t n_ctx) {
    const auto refuse = [&](const std::string& what) {
        throw Error(Code::unsupported, gguf.path() + ": " + what + " is not supported");
    };
    const std::string_view scaling = gguf.string(arch + ".rope.scaling.type", "linear");
    const double factor = gguf.number(arch + ".rope.scaling.factor", 0, 1e6, 1.0);
    if (scaling != "none" && factor != 1.0 && factor != 0.0) refuse("RoPE scaling");
    if (gguf.find_tensor("rope_freqs.weight")) refuse("RoPE scaling by rope_freqs.weight");
    if (gguf.integer(arch + ".expert_count", 0, 1 << 20, 0) > 0) refuse("a mixture of experts");
    const int64_t window = gguf.integer(arch + ".attention.sliding_window", 0, INT64_MAX, 0);
    if (window > 0 && window < n_ctx) refuse("sliding-window attention");
    if (const ggml::Value* v = gguf.find("powerinfer.ffn.threshold")) {
        if (!v->is_number())
            throw Error(Code::format, gguf.path() + ": powerinfer.ffn.threshold is not a number");
        for (uint64_t i = 0; i < v->count(); i++) {
            if (v->number(i) != 0) refuse("powerinfer.ffn.threshold");
        }
    }
}

}  // namespace

const char* name(Activation activation) {
    for (const NamedActivation& a : kActivations) {
        if (a.activation == activation) return a.name;
    }
    return "";
}

Config read_config(const ggml::Gguf& gguf, int64_t n_vocab) {
    const std::string arch(gguf.string("general.architecture"));
    const Family* family = nullptr;
    std::string known;
    for (const Family& f : kFamilies) {
        if (arch == f.name) family = &f;
        known += (known.empty() ? "" : ", ") + std::string(f.name);
    }
    if (!family) {
        throw Error(Code::unsupported,
                    format("%s: architecture \"%.40s\" is not supported; known: %s",
                           gguf.path().c_str(), arch.c_str(), known.c_str()));
    }
    // Upper bounds keep later products far from overflow; no model comes near them.
    constexpr int64_t kWide = 1 << 20, kMany = 1 << 16;
    const auto key = [&](const char* suffix) { return arch + suffix; };
    Config c;
    c.architecture = arch;
    c.n_vocab = n_vocab;
    c.n_ctx = gguf.integer(key(".context_length"), 1, INT32_MAX);
    c.n_embd = gguf.integer(key(".embedding_length"), 1, kWide);
    // Every layer has tensors of its own, so a count beyond them is a lie before it is a table.
    c.n_layer = gguf.integer(key(".block_count"), 1,
                             std::min<int64_t>(kMany, int64_t(gguf.tensors().size())));
    c.n_ff = gguf.integer(key(".feed_forward_length"), 1, kWide);
    c.n_head = gguf.integer(key(".attention.head_count"), 1, kMany);
    c.n_head_kv = gguf.integer(key(".attention.head_count_kv"), 1, kMany, c.n_head);
    const auto contradiction = [&](const std::string& what) {
        throw Error(Code::format, gguf.path() + ": " + what);
    };
    if (c.n_head % c.n_head_kv) {
        contradiction(format("%lld attention heads cannot share %lld key heads",
                             (long long)c.n_head, (long long)c.n_head_kv));
    }
    const int64_t head_dim = gguf.integer(key(".attention.key_length"), 1, kMany, 0);
    if (head_dim == 0 && c.n_embd % c.n_head) {
        contradiction(format("embedding length %lld is not a multiple of %lld heads",
                             (long long)c.n_embd, (long long)c.n_head));
    }
    c.head_dim = head_dim ? head_dim : c.n_embd / c.n_head;
    if (gguf.integer(key(".attention.value_length"), 1, kMany, c.head_dim) != c.head_dim) {
        contradiction("keys and values of different lengths");
    }
    c.n_rot = gguf.integer(key(".rope.dimension_count"), 2, c.head_dim, c.head_dim);
    if (c.n_rot % 2) contradiction("rope.dimension_count must be even");
    c.norm_eps = float(gguf.number(key(".attention.layer_norm_rms_epsilon"), 0, 1));
    c.rope_base = gguf.number(key(".rope.freq_base"), 1e-3, 1e12, 10000);
    if (const int64_t n = gguf.integer(key(".vocab_size"), 1, INT32_MAX, n_vocab); n != n_vocab) {
        contradiction(format("%s.vocab_size is %lld, but there are %lld tokens", arch.c_str(),
                             (long long)n, (long long)n_vocab));
    }
    c.activation = read_activation(gguf, *family);
    refuse_unsupported(gguf, arch, c.n_ctx);
    return c;
}

std::vector<WeightSpec> weight_specs(Model& m) {
    using Use = WeightSpec::Use;
    const Config& c = m.config;
    const ggml::Gguf& gguf = m.file.gguf;
    std::vector<WeightSpec> specs;
    const auto vector = [&](const char* part, std::string name, int64_t n, const float** to,
                            bool optional = false) {
        specs.push_back({part, std::move(name), 1, n, Use::vector, nullptr, to, optional});
    };
    const auto matrix = [&](const char* part, std::string name, int64_t rows, int64_t cols,
                            ggml::Matrix* to, Use use = Use::product) {
        specs.push_back({part, std::move(name), rows, cols, use, to, nullptr, false});
    };

    const bool tied = !gguf.find_tensor("output.weight");
    matrix(tied ? "head" : "embedding", "token_embd.weight", c.n_vocab, c.n_embd, &m.token_embd,
           tied ? Use::product : Use::rows);
    for (int64_t i = 0; i < c.n_layer; i++) {
        Layer& l = m.layers[i];
        const auto blk = [&](const char* suffix) {
            return "blk." + std::to_string(i) + "." + suffix;
        };
        vector("norms", blk("attn_norm.weight"), c.n_embd, &l.attn_norm);
        matrix("attention", blk("attn_q.weight"), c.q_dim(), c.n_embd, &l.q);
        matrix("attention", blk("attn_k.weight"), c.kv_dim(), c.n_embd, &l.k);
        matrix("attention", blk("attn_v.weight"), c.kv_dim(), c.n_embd, &l.v);
        matrix("attention", blk("attn_output.weight"), c.n_embd, c.q_dim(), &l.o);
        vector("attention", blk("attn_q.bias"), c.q_dim(), &l.q_bias, true);
        vector("attention", blk("attn_k.bias"), c.kv_dim(), &l.k_bias, true);
        vector("attention", blk("attn_v.bias"), c.kv_dim(), &l.v_bias, true);
        vector("attention", blk("attn_output.bias"), c.n_embd, &l.o_bias, true);
        vector("norms", blk("ffn_norm.weight"), c.n_embd, &l.ffn_norm);
        matrix("ffn", blk("ffn_gate.weight"), c.n_ff, c.n_embd, &l.gate);
        matrix("ffn", blk("ffn_up.weight"), c.n_ff, c.n_embd, &l.up);
        const bool transposed = gguf.find_tensor(blk("ffn_down_t.weight"));
        if (transposed) {
            matrix("ffn", blk("ffn_down_t.weight"), c.n_ff, c.n_embd, &l.down_t, Use::rows);
        } else {
            matrix("ffn", blk("ffn_down.weight"), c.n_embd, c.n_ff, &l.down);
        }
        vector("ffn", blk("ffn_gate.bias"), c.n_ff, &l.gate_bias, true);
        vector("ffn", blk("ffn_up.bias"), c.n_ff, &l.up_bias, true);
        vector("ffn", blk(transposed ? "ffn_down_t.bias" : "ffn_down.bias"), c.n_embd, &l.down_bias,
               true);
    }
    vector("norms", "output_norm.weight", c.n_embd, &m.output_norm);
    if (!tied) matrix("head", "output.weight", c.n_vocab, c.n_embd, &m.output);
    return specs;
}

}  // namespace powerinfer
