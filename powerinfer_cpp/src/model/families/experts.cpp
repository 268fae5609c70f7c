// The tensors of mixtures: routers, experts, and those that every row computes.
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

// Groups are bits of a word (ggml/src/ops/route.cpp).
constexpr int64_t kMostGroups = 64;

ggml::Gating read_gating(const ggml::Gguf& gguf, const std::string& key, ggml::Gating missing) {
    using G = ggml::Gating;
    constexpr G kinds[] = {G::softmax, G::sigmoid, G::of_chosen, G::sqrt_softplus};
    const int64_t kind = gguf.integer(key, 0, 255, 0);  // 0: not said
    if (kind > 4) {
        throw ggml::Error(ggml::Code::unsupported,
                          ggml::format("%s: %s %lld is not supported", gguf.path().c_str(),
                                       key.c_str(), (long long)kind));
    }
    return kind ? kinds[kind - 1] : missing;
}

// How experts are chosen and weighed, from the keys {arch}.expert_*.
ggml::Routing read_routing(const Model& m, const LayerSizes& sizes, const LayerForm& missing) {
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string prefix = m.config.architecture + ".expert_";
    ggml::Routing r;
    r.n_expert = sizes.n_expert;
    r.n_used = sizes.n_expert_used;
    r.gating = read_gating(gguf, prefix + "gating_func", missing.gating);
    const ggml::Value* norm = gguf.find(prefix + "weights_norm");
    r.normalise = norm ? norm->integer() != 0 : missing.normalise;
    const double scale = gguf.number(prefix + "weights_scale", 0, 1e6, 0);
    if (scale != 0) r.scale = float(scale);
    r.n_group = std::max<int64_t>(1, gguf.integer(prefix + "group_count", 0, kMostGroups, 1));
    r.n_group_used = gguf.integer(prefix + "group_used_count", 0, r.n_group, r.n_group);
    if (!r.n_group_used) r.n_group_used = r.n_group;
    if (r.n_expert % r.n_group || r.n_expert / r.n_group * r.n_group_used < r.n_used) {
        throw ggml::Error(
            ggml::Code::format,
            ggml::format("%s: %sgroup_count: %lld experts, of which a row uses %lld, in %lld of "
                         "%lld groups",
                         gguf.path().c_str(), prefix.c_str(), (long long)r.n_expert,
                         (long long)r.n_used, (long long)r.n_group_used, (long long)r.n_group));
    }
    return r;
}

}  // namespace

LayerPart& Weights::add_router(int64_t i, const char* norm, const LayerForm& missing) {
    Router r;
    r.how = read_routing(m, layer_sizes(m.file.gguf, m.config, i), missing);
    return add_part(i, norm, std::move(r));
}

void Weights::router(int64_t i) {
    Router& r = *m.layers[size_t(i)].find<Router>();
    const int64_t n = r.how.n_expert;
    matrix(Part::ffn, blk(i, "ffn_gate_inp.weight"), n, m.config.n_embd, &r.w);
    optional(Part::ffn, blk(i, "ffn_gate_inp.bias"), n, &r.bias);
    optional(Part::ffn, choice_bias(i), n, &r.how.choice_bias);
}

std::string Weights::choice_bias(int64_t i) const {
    const std::string plain = blk(i, "exp_probs_b");
    return has(plain) ? plain : plain + ".bias";
}

void Weights::narrow(int64_t i, FeedForward& of) {
    const int64_t n = m.config.n_embd;
    of.width = m.file.gguf.integer(m.config.architecture + ".moe_latent_size", 0, n, 0);
    if (!of.width) return;
    matrix(Part::ffn, blk(i, "ffn_latent_down.weight"), of.width, n, &of.narrow);
    matrix(Part::ffn, blk(i, "ffn_latent_up.weight"), n, of.width, &of.widen);
}

void Weights::experts(int64_t i, bool gated) {
    const int64_t n_embd = m.config.n_embd;
    const ggml::Routing& how = m.layers[size_t(i)].find<Router>()->how;
    FeedForward& of = last_feed_forward(i);
    of.n_used = how.n_used;
    optional(Part::ffn, blk(i, "ffn_exps.bias"), n_embd, &of.sum_bias);
    const int64_t n_ff = of.n_ff, width = of.columns(n_embd);
    std::string down = blk(i, "ffn_down_exps.weight");
    bool by_rows = has_bundles(i, "_exps");
    if (has(blk(i, "ffn_down_t_exps.weight"))) {
        by_rows = true;
        down = blk(i, "ffn_down_t_exps.weight");
    } else if (const ggml::TensorInfo* t = m.file.gguf.find_tensor(down)) {
        // PowerInfer's SmallThinker files use the plain name for neuron rows.
        by_rows = t->ne[0] == n_embd && n_embd != n_ff && !of.width;
    }
    // One tensor has the rows of gate and up, gates first; or older files have a tensor for every
    // matrix of every expert.
    const std::string fused = blk(i, "ffn_gate_up_exps.weight");
    const auto single = [&](const char* what, int64_t e) {
        return blk(i, ggml::format("ffn_%s.%lld.weight", what, (long long)e).c_str());
    };
    const bool singles = has(single("up", 0));
    // Memory for experts is taken only if their tensor has as many: a wrong one is reported by its
    // shape.
    std::string all = has(fused) ? fused : blk(i, "ffn_up_exps.weight");
    for (const char* name : {kUpDownRows, kBundle}) {
        if (has(blk(i, name) + "_exps")) all = blk(i, name) + "_exps";
    }
    const ggml::TensorInfo* up = m.file.gguf.find_tensor(all);
    const bool there =
        singles ? has(single("up", how.n_expert - 1)) : up && up->ne[2] == how.n_expert;
    of.blocks.resize(size_t(there ? how.n_expert : 1));
    const std::vector<int64_t> by_neuron{width, n_ff, how.n_expert},
        by_both{width, 2 * n_ff, how.n_expert}, by_output{n_ff, width, how.n_expert};
    const auto bias = [&](const char* name, int64_t n, int64_t e, const float** to) {
        if (!has(blk(i, name))) return;
        rows(Part::ffn, blk(i, name), {n, how.n_expert}, e, 1, Vector{to});
        specs_.back().of = &of;
        specs_.back().expert_bias = true;
    };
    for (int64_t e = 0; e < of.n_blocks(); e++) {
        Ffn& f = of.blocks[size_t(e)];
        if (by_rows) {
            neurons({i, of, how.n_expert, e, "_exps"}, gated, down, f);
            bias("ffn_gate_exps.bias", n_ff, e, &f.neurons.gate_bias);
            bias("ffn_up_exps.bias", n_ff, e, &f.neurons.up_bias);
            bias("ffn_down_t_exps.bias", width, e, &f.neurons.down_bias);
            continue;
        }
        const size_t first = specs_.size();
        if (singles) {
            if (gated) matrix(Part::ffn, single("gate", e), n_ff, width, &f.gate);
            matrix(Part::ffn, single("up", e), n_ff, width, &f.up);
            matrix(Part::ffn, single("down", e), width, n_ff, &f.down);
        } else {
            if (has(fused)) {
                rows(Part::ffn, fused, by_both, 2 * e * n_ff, n_ff, Product{&f.gate});
                rows(Part::ffn, fused, by_both, (2 * e + 1) * n_ff, n_ff, Product{&f.up});
            } else {
                const std::string gate = blk(i, "ffn_gate_exps.weight");
                if (gated) rows(Part::ffn, gate, by_neuron, e * n_ff, n_ff, Product{&f.gate});
                rows(Part::ffn, all, by_neuron, e * n_ff, n_ff, Product{&f.up});
            }
            rows(Part::ffn, down, by_output, e * width, width, Product{&f.down});
        }
        for (size_t k = first; k < specs_.size(); k++) {
            specs_[k].of = &of;
            specs_[k].block = e;
            specs_[k].chosen = true;
        }
        bias("ffn_gate_exps.bias", n_ff, e, &f.gate_bias);
        bias("ffn_up_exps.bias", n_ff, e, &f.up_bias);
        bias("ffn_down_exps.bias", width, e, &f.down_bias);
    }
}

void Weights::shared_expert(int64_t i, bool gated) {
    FeedForward& part = last_feed_forward(i);
    const std::string down = blk(i, "ffn_down_t_shexp.weight");
    if (has(down) || has_bundles(i, "_shexp")) {
        part.blocks.resize(1);
        neurons({i, part, 0, 0, "_shexp"}, gated, down, part.blocks[0]);
    } else {
        matrices(i, "_shexp", gated, part);
    }
    const std::string share = blk(i, "ffn_gate_inp_shexp.weight");
    const ggml::TensorInfo* there = m.file.gguf.find_tensor(share);
    if (!there) return;
    std::vector<int64_t> shape{m.config.n_embd};
    if (there->n_dims == 2) shape.push_back(1);
    rows(Part::ffn, share, shape, 0, 1, Product{&part.share});
}

}  // namespace powerinfer
