// DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash (deepseek2) and Mistral Small 4 (mistral4):
// attention over latents, mixtures with shared experts.
#include <cmath>

#include "ggml/math.h"
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Activation;

namespace {

// Models that were stretched by YaRN scale the scores by the square of this in place of cosine and
// sine. 1: they do not.
double stretched(const ggml::Gguf& gguf, const Config& c) {
    const double by = gguf.number(c.architecture + ".rope.scaling.yarn_log_multiplier", 0, 100, 0);
    const bool yarn = c.rope_scaling.kind == RopeScaling::Kind::yarn && c.rope_scaling.factor > 1;
    return yarn ? 1 + by * ggml::log_f64(c.rope_scaling.factor) : 1;
}

}  // namespace

void configure_latents(const ggml::Gguf& gguf, Config& c) {
    c.norm_eps = float(gguf.number(c.architecture + ".attention.layer_norm_rms_epsilon", 0, 1));
    if (stretched(gguf, c) != 1) {
        c.rope_scaling.attention_factor /= 1 + 0.1 * ggml::log_f64(c.rope_scaling.factor);
    }
}

void check_experts(const Model& m, int64_t i) {
    const ggml::Gguf& gguf = m.file.gguf;
    const auto key = [&](const char* suffix) { return m.config.architecture + suffix; };
    const LayerSizes sizes = layer_sizes(gguf, m.config, i);
    const std::string leading = key(".leading_dense_block_count");
    const ggml::Value* const experts = gguf.find(key(".expert_count"));
    const bool mixture = experts && experts->is_integer() && !experts->is_array();
    if (mixture && experts->integer() > 0 && !sizes.n_expert && gguf.find(leading) &&
        i >= gguf.integer(leading, 0, INT32_MAX)) {
        throw ggml::Error(
            ggml::Code::format,
            ggml::format("%s: key \"%s\" is %lld, but layer %lld has no experts",
                         gguf.path().c_str(), leading.c_str(),
                         (long long)gguf.integer(leading, 0, INT32_MAX), (long long)i));
    }
    const std::string shared = key(".expert_shared_count");
    if (!sizes.n_expert || !gguf.find(shared)) return;
    const int64_t n = gguf.integer(shared, 0, INT32_MAX);
    if (n * sizes.n_ff != sizes.n_ff_shared) {
        throw ggml::Error(
            ggml::Code::format,
            ggml::format("%s: key \"%s\": %lld experts of %lld neurons are not %lld wide together",
                         gguf.path().c_str(), shared.c_str(), (long long)n, (long long)sizes.n_ff,
                         (long long)sizes.n_ff_shared));
    }
}

namespace {

// best_alone: of a softmax a group's best expert decides, and not the sum of two.
void weights_of_deepseek(Model& m, std::vector<WeightSpec>& specs, bool best_alone) {
    const ggml::Gguf& gguf = m.file.gguf;
    const auto key = [&](const char* suffix) { return m.config.architecture + suffix; };
    Weights w(m, specs);
    w.embedding_and_head();
    LayerForm form;
    form.latent = true;
    form.normalise = false;
    const double growth = gguf.number(key(".attention.temperature_scale"), 0, 100, 0);
    int64_t every = 0;
    if (growth != 0) every = gguf.integer(key(".attention.temperature_length"), 0, INT32_MAX, 0);
    if (!every) every = int64_t(m.config.rope_scaling.original_ctx);
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        // A bias of the choice belongs to routers of sigmoids. Files of DeepSeek V2 name no kind.
        const bool biased = w.has(blk(i, "exp_probs_b.bias"));
        check_experts(m, i);
        form.gating = biased ? ggml::Gating::sigmoid : ggml::Gating::softmax;
        w.layer(i, form);
        Attention& a = *m.layers[size_t(i)].find<Attention>();
        a.growth = growth;
        a.growth_ctx = every;
        Router* const router = m.layers[size_t(i)].find<Router>();
        if (router && router->how.gating == ggml::Gating::softmax) {
            router->how.by_two = !best_alone;
        }
    }
}

void weights_deepseek(Model& m, std::vector<WeightSpec>& specs) {
    weights_of_deepseek(m, specs, true);
}

void weights_mistral4(Model& m, std::vector<WeightSpec>& specs) {
    weights_of_deepseek(m, specs, false);
}

}  // namespace

void Weights::latent_attention(int64_t i) {
    const ggml::Gguf& gguf = m.file.gguf;
    const Config& c = m.config;
    const auto size = [&](const char* name) {
        return gguf.integer(c.architecture + ".attention." + name, 1, 1 << 16);
    };
    const auto require = [&](bool good, const std::string& what) {
        if (!good) throw ggml::Error(ggml::Code::format, gguf.path() + ": " + what);
    };
    Attention& a = *m.layers[size_t(i)].find<Attention>();
    const int64_t rank = size("kv_lora_rank"), n_embd = c.n_embd, n_head = a.n_head;
    // Of families without RoPE so many values of a key are all heads', too.
    const int64_t n_rot = c.ropes.empty()
                              ? gguf.integer(c.architecture + ".rope.dimension_count", 0, 1 << 16)
                              : c.ropes[0].n_rot;
    const auto name = [&](const char* tensor) { return blk(i, tensor); };
    // Older files have the matrices of keys and values in one, and the sizes of the heads' own.
    const bool older = has(name("attn_kv_b.weight")) && !has(name("attn_k_b.weight"));
    const int64_t width = older ? a.head_dim : size("key_length_mla");
    const int64_t out = older ? a.v_head_dim : size("value_length_mla");
    if (older) a.n_head_kv = 1, a.head_dim = rank + n_rot, a.v_head_dim = rank;
    if (a.v_head_dim == out) a.v_head_dim = rank;  // some files have the width of the heads' own
    require(a.n_head_kv == 1 && a.head_dim == rank + n_rot && a.v_head_dim == rank,
            ggml::format("%s.attention: a key of %lld values and a value of %lld, for %lld heads, "
                         "are not those of a latent of %lld and a rotation of %lld",
                         c.architecture.c_str(), (long long)a.head_dim, (long long)a.v_head_dim,
                         (long long)a.n_head_kv, (long long)rank, (long long)n_rot));
    require(width > n_rot,
            c.architecture + ".attention: a head's key is not longer than rope.dimension_count");
    Latent& l = a.latent.emplace();
    l.nope = width - n_rot;
    l.out = out;
    const double longer = stretched(gguf, c);
    a.scale = float(longer * longer / std::sqrt(double(width)));

    if (has(name("attn_q_a.weight"))) {
        l.q_rank = size("q_lora_rank");
        matrix(Part::attention, name("attn_q_a.weight"), l.q_rank, n_embd, &l.q_a);
        vector(Part::norms, name("attn_q_a_norm.weight"), l.q_rank, &l.q_a_norm);
        matrix(Part::attention, name("attn_q_b.weight"), n_head * width, l.q_rank, &a.q);
    } else {
        matrix(Part::attention, name("attn_q.weight"), n_head * width, n_embd, &a.q);
    }
    matrix(Part::attention, name("attn_kv_a_mqa.weight"), a.head_dim, n_embd, &a.k);
    vector(Part::norms, name("attn_kv_a_norm.weight"), rank, &a.k_norm);
    l.k_b.resize(size_t(n_head));
    l.v_b.resize(size_t(n_head));
    const std::vector<int64_t> both{rank, n_head * (l.nope + out)};
    for (int64_t h = 0; h < n_head; h++) {
        if (older) {  // nope rows of keys, then those of values
            const std::string kv = name("attn_kv_b.weight");
            const int64_t row = h * (l.nope + out);
            rows(Part::attention, kv, both, row, l.nope, Turned{&l.k_b[size_t(h)]});
            rows(Part::attention, kv, both, row + l.nope, out, Product{&l.v_b[size_t(h)]});
            continue;
        }
        rows(Part::attention, name("attn_k_b.weight"), {l.nope, rank, n_head}, h * rank, rank,
             Product{&l.k_b[size_t(h)]});
        rows(Part::attention, name("attn_v_b.weight"), {rank, l.out, n_head}, h * l.out, l.out,
             Product{&l.v_b[size_t(h)]});
    }
    matrix(Part::attention, name("attn_output.weight"), n_embd, a.out_dim(), &a.o);
}

const std::vector<Family> kDeepSeekFamilies = {
    Family{"deepseek2", configure_latents, weights_deepseek},
    Family{"mistral4", configure_latents, weights_mistral4},
};

}  // namespace powerinfer
