// The tensors that several families share.
#include <algorithm>

#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

// Tensors of a bundled file: I8 [stride, n_ff], or with "_exps" [stride, n_ff, n_expert]. Two in
// version 1, one in version 2.
constexpr char kGateRows[] = "ffn_gate_rows", kUpDownRows[] = "ffn_up_down_rows";
constexpr char kBundle[] = "ffn_bundle";

constexpr char kPositions[] = "position_embd.weight";

// Each row of a batch keeps this many values. Public predictors have ranks up to a few thousand.
constexpr int64_t kHighestRank = 1 << 16;

}  // namespace

std::string blk(int64_t layer, const char* suffix) {
    return "blk." + std::to_string(layer) + "." + suffix;
}

void learn_positions(const ggml::Gguf& gguf, Config& c, int64_t offset) {
    c.n_rot = 0;
    c.position_offset = offset;
    const ggml::TensorInfo* table = gguf.find_tensor(kPositions);
    if (!table) return;  // resolve_weights() reports it
    const int64_t positions = table->ne[1] - offset;
    if (positions < 1) {
        throw ggml::Error(ggml::Code::format, ggml::format("%s: tensor \"%s\" has no positions",
                                                           gguf.path().c_str(), kPositions));
    }
    c.n_ctx = std::min(c.n_ctx, positions);
}

void Weights::vector(Part part, const std::string& name, int64_t n, const float** to) {
    rows(part, name, {n}, 0, 1, Vector{to});
}

void Weights::optional(Part part, const std::string& name, int64_t n, const float** to) {
    if (has(name)) vector(part, name, n, to);
}

void Weights::norm(const std::string& name, NormWeights* to, int64_t n) {
    vector(Part::norms, name + ".weight", n, &to->weight);
    if (m.config.norm == Config::Norm::layer) vector(Part::norms, name + ".bias", n, &to->bias);
}

void Weights::matrix(Part part, const std::string& name, int64_t n_rows, int64_t cols,
                     ggml::Matrix* to) {
    rows(part, name, {cols, n_rows}, 0, n_rows, Product{to});
}

void Weights::table(Part part, const std::string& name, int64_t n_rows, int64_t cols,
                    ggml::Matrix* to) {
    rows(part, name, {cols, n_rows}, 0, n_rows, Table{to});
}

void Weights::rows(Part part, const std::string& name, std::vector<int64_t> shape, int64_t row0,
                   int64_t n_rows, Target to) {
    const int64_t cols = shape[0];
    specs_.push_back({part, name, std::move(shape), row0, n_rows, cols, to, nullptr, {}});
}

void Weights::embedding_and_head() {
    const Config& c = m.config;
    const bool tied = !has("output.weight");
    const std::string embedding = "token_embd.weight";
    if (tied) {
        matrix(Part::head, embedding, c.n_vocab, c.n_embd, &m.token_embd);
    } else {
        table(Part::embedding, embedding, c.n_vocab, c.n_embd, &m.token_embd);
    }
    norm("output_norm", &m.output_norm, c.n_embd);
    if (!tied) matrix(Part::head, "output.weight", c.n_vocab, c.n_embd, &m.output);
}

void Weights::rope_factors() {
    const int64_t n = m.config.n_rot / 2;
    optional(Part::norms, "rope_freqs.weight", n, &m.rope_factors);
    if (m.config.rope_scaling.kind != RopeScaling::Kind::longrope) return;
    vector(Part::norms, "rope_factors_long.weight", n, &m.rope_long);
    vector(Part::norms, "rope_factors_short.weight", n, &m.rope_short);
}

void Weights::attention(int64_t i) {
    const Config& c = m.config;
    Layer& l = m.layers[size_t(i)];
    matrix(Part::attention, blk(i, "attn_q.weight"), c.q_dim(), c.n_embd, &l.q);
    matrix(Part::attention, blk(i, "attn_k.weight"), c.kv_dim(), c.n_embd, &l.k);
    matrix(Part::attention, blk(i, "attn_v.weight"), c.kv_dim(), c.n_embd, &l.v);
    matrix(Part::attention, blk(i, "attn_output.weight"), c.n_embd, c.q_dim(), &l.o);
    optional(Part::attention, blk(i, "attn_q.bias"), c.q_dim(), &l.q_bias);
    optional(Part::attention, blk(i, "attn_k.bias"), c.kv_dim(), &l.k_bias);
    optional(Part::attention, blk(i, "attn_v.bias"), c.kv_dim(), &l.v_bias);
    optional(Part::attention, blk(i, "attn_output.bias"), c.n_embd, &l.o_bias);
}

void Weights::fused_attention(int64_t i, bool biased) {
    const Config& c = m.config;
    Layer& l = m.layers[size_t(i)];
    const std::string weight = blk(i, "attn_qkv.weight"), bias = blk(i, "attn_qkv.bias");
    const int64_t n = c.q_dim() + 2 * c.kv_dim();
    const auto part = [&](int64_t row0, int64_t n_rows, ggml::Matrix* to, const float** bias_to) {
        rows(Part::attention, weight, {c.n_embd, n}, row0, n_rows, Product{to});
        if (!biased) return;
        // One row that begins at a multiple of its length.
        rows(Part::attention, bias, {n}, row0 / n_rows, 1, Vector{bias_to});
        specs_.back().cols = n_rows;
    };
    part(0, c.q_dim(), &l.q, &l.q_bias);
    part(c.q_dim(), c.kv_dim(), &l.k, &l.k_bias);
    part(c.q_dim() + c.kv_dim(), c.kv_dim(), &l.v, &l.v_bias);
    matrix(Part::attention, blk(i, "attn_output.weight"), c.n_embd, c.q_dim(), &l.o);
    if (biased) vector(Part::attention, blk(i, "attn_output.bias"), c.n_embd, &l.o_bias);
}

void Weights::head_norms(int64_t i) {
    Layer& l = m.layers[size_t(i)];
    vector(Part::norms, blk(i, "attn_q_norm.weight"), m.config.head_dim, &l.q_norm);
    vector(Part::norms, blk(i, "attn_k_norm.weight"), m.config.head_dim, &l.k_norm);
}

void Weights::positions() {
    const Config& c = m.config;
    const ggml::TensorInfo* there = m.file.gguf.find_tensor(kPositions);
    const int64_t n_rows = there ? there->ne[1] : c.n_ctx + c.position_offset;
    table(Part::embedding, kPositions, n_rows, c.n_embd, &m.position_embd);
}

void Weights::neurons(int64_t i, const char* suffix, int64_t e, bool gated, const std::string& down,
                      Ffn& f) {
    const Config& c = m.config;
    m.config.neuron_aware = true;
    f.neurons.n = c.n_ff;
    f.neurons.cols = c.n_embd;
    f.neurons.act = c.activation;
    const bool stacked = *suffix;
    if (const std::string name = blk(i, kBundle) + suffix; has(name)) {
        stored(i, name, e, gated, f);
        predictor(i, suffix, e, f);
        return;
    }
    const bool bundled = has(blk(i, kUpDownRows) + suffix);
    const auto tensor = [&](const char* name) { return blk(i, name) + suffix + ".weight"; };
    const auto bundle_of = [&](const char* name) { return bundled ? blk(i, name) + suffix : ""; };
    if (gated) {
        bundle(i, bundle_of(kGateRows), stacked, e, {{"gate", tensor("ffn_gate"), &f.neurons.gate}},
               f.gates);
    }
    bundle(i, bundle_of(kUpDownRows), stacked, e,
           {{"up", tensor("ffn_up"), &f.neurons.up}, {"down", down, &f.neurons.down}}, f.bundle);
    predictor(i, suffix, e, f);
}

void Weights::bundle(int64_t i, const std::string& bundled, bool stacked, int64_t e,
                     const std::vector<Stored>& parts, Bundle& to) {
    const Config& c = m.config;
    const auto shaped = [&](int64_t cols) {
        std::vector<int64_t> shape{cols, c.n_ff};
        if (stacked) shape.push_back(c.n_expert);
        return shape;
    };
    for (const Stored& p : parts) to.rows.push_back(p.rows);
    if (!bundled.empty()) {
        m.file.gguf.integer("powerinfer.bundle.version", kMemoryVersion, kMemoryVersion);
        for (const Stored& p : parts) to.layout.parts.push_back(bundled_type(i, p.name));
        to.layout.cols = c.n_embd;
        rows(Part::ffn, bundled, shaped(to.layout.stride()), e * c.n_ff, c.n_ff, WholeBundle{&to});
        return;
    }
    for (size_t k = 0; k < parts.size(); k++) {
        rows(Part::ffn, parts[k].tensor, shaped(c.n_embd), e * c.n_ff, c.n_ff, NeuronPart{&to, k});
    }
}

void Weights::stored(int64_t i, const std::string& bundled, int64_t e, bool gated, Ffn& f) {
    const Config& c = m.config;
    const ggml::Gguf& gguf = m.file.gguf;
    gguf.integer("powerinfer.bundle.version", kStoreVersion, kStoreVersion);
    const int64_t align = gguf.integer("powerinfer.bundle.align", 0, INT32_MAX);
    if (!StoreLayout::valid_align(align)) {
        throw ggml::Error(ggml::Code::format,
                          ggml::format("%s: key \"powerinfer.bundle.align\" is %lld, and not 512, "
                                       "1024, 2048 or 4096",
                                       gguf.path().c_str(), (long long)align));
    }
    const auto part = [&](const char* name, ggml::NeuronRows* rows, Bundle& to) {
        to.rows.push_back(rows);
        to.layout.parts.push_back(bundled_type(i, name));
        to.layout.cols = c.n_embd;
    };
    if (gated) part("gate", &f.neurons.gate, f.gates);
    part("up", &f.neurons.up, f.bundle);
    part("down", &f.neurons.down, f.bundle);
    std::vector<ggml::DType> types = f.gates.layout.parts;
    types.insert(types.end(), f.bundle.layout.parts.begin(), f.bundle.layout.parts.end());
    f.stored.layout = StoreLayout::of(types, c.n_embd, align);
    std::vector<int64_t> shape{f.stored.layout.stride, c.n_ff};
    if (bundled != blk(i, kBundle)) shape.push_back(c.n_expert);
    rows(Part::ffn, bundled, shape, e * c.n_ff, c.n_ff,
         StoredBundle{gated ? &f.gates : nullptr, &f.bundle, &f.stored});
}

bool Weights::has_bundles(int64_t i, const char* suffix) const {
    return has(blk(i, kUpDownRows) + suffix) || has(blk(i, kBundle) + suffix);
}

ggml::DType Weights::bundled_type(int64_t i, const char* part) const {
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string key = std::string("powerinfer.bundle.") + part + "_type";
    const auto refuse = [&](const std::string& why) {
        throw ggml::Error(ggml::Code::format, gguf.path() + ": key \"" + key + "\" " + why);
    };
    const ggml::Value* v = gguf.find(key);
    if (!v) refuse("is missing");
    if (!v->is_string() || (v->is_array() && int64_t(v->count()) != m.config.n_layer))
        refuse("is neither one format nor an array with one per layer");
    const std::string name(v->string(v->is_array() ? uint64_t(i) : 0).substr(0, 20));
    const ggml::DTypeInfo* t = ggml::find_dtype(std::string_view(name));
    if (!t || !t->is_float()) refuse("names format \"" + name + "\", which is not known");
    if (m.config.n_embd % t->block) {
        refuse(std::string("names format ") + t->name + ", whose blocks do not divide a row");
    }
    return t->type;
}

void Weights::predictor(int64_t i, const char* suffix, int64_t e, Ffn& f) {
    Config& c = m.config;
    const auto name = [&](const char* part, const char* end) {
        return blk(i, part) + suffix + end;
    };
    const bool stacked = *suffix;
    const auto shaped = [&](int64_t cols, int64_t n_rows) {
        std::vector<int64_t> shape{cols, n_rows};
        if (stacked) shape.push_back(c.n_expert);
        return shape;
    };
    // A file with half a predictor is damaged, and so is PowerInfer's file without one. In our
    // files a layer may have none.
    const std::string fc1 = name("fc1", ".weight"), fc2 = name("fc2", ".weight");
    const std::string signs = name("sketch", ".weight"), offset = name("sketch", ".bias");
    if (c.sketches) {
        if (has(signs) || has(offset)) {
            c.has_predictors = true;
            rows(Part::predictor, signs, shaped(c.n_embd / 8, c.n_ff), e * c.n_ff, c.n_ff,
                 Signs{&f.signs});
            optional(Part::predictor, offset, c.n_ff, &f.sketch_offset);
        }
    } else if (has(fc1) || has(fc2) || m.file.gguf.pwri_magic()) {
        c.has_predictors = true;
        const ggml::TensorInfo* first = m.file.gguf.find_tensor(fc1);
        const int64_t rank = first ? first->ne[1] : 1;
        if (rank > kHighestRank) {
            throw ggml::Error(ggml::Code::format,
                              ggml::format("%s: tensor \"%s\" has rank %lld, beyond %lld",
                                           m.file.gguf.path().c_str(), fc1.c_str(), (long long)rank,
                                           (long long)kHighestRank));
        }
        c.predictor_rank = std::max(c.predictor_rank, rank);
        rows(Part::predictor, fc1, shaped(c.n_embd, rank), e * rank, rank, Product{&f.fc1});
        rows(Part::predictor, fc2, shaped(rank, c.n_ff), e * c.n_ff, c.n_ff, Product{&f.fc2});
    }
    const std::string rate = name("ffn_rate", "");
    if (!has(rate)) return;
    vector(Part::predictor, rate, c.n_ff, &f.rate);
    if (stacked) {
        specs_.back().shape = {c.n_ff, c.n_expert};
        specs_.back().row0 = e;
    }
}

void Weights::ffn(int64_t i, bool gated) {
    const Config& c = m.config;
    Ffn& f = m.layers[size_t(i)].ffn;
    const std::string down = blk(i, "ffn_down_t.weight");
    bool by_rows = has(down) || has_bundles(i, "");
    // If a PowerInfer file has no down tensor at all, ffn_down_t is reported as missing.
    if (m.file.gguf.pwri_magic() && !has(blk(i, "ffn_down.weight"))) by_rows = true;
    if (by_rows) {
        neurons(i, "", 0, gated, down, f);
    } else {
        const std::string gate = blk(i, "ffn_gate.weight"), up = blk(i, "ffn_up.weight");
        const ggml::TensorInfo* both = gated && !has(gate) ? m.file.gguf.find_tensor(up) : nullptr;
        if (both && both->ne[1] == 2 * c.n_ff) {
            const std::vector<int64_t> shape{c.n_embd, 2 * c.n_ff};
            rows(Part::ffn, up, shape, 0, c.n_ff, Product{&f.gate});
            rows(Part::ffn, up, shape, c.n_ff, c.n_ff, Product{&f.up});
        } else {
            if (gated) matrix(Part::ffn, gate, c.n_ff, c.n_embd, &f.gate);
            matrix(Part::ffn, up, c.n_ff, c.n_embd, &f.up);
        }
        matrix(Part::ffn, blk(i, "ffn_down.weight"), c.n_embd, c.n_ff, &f.down);
    }
    optional(Part::ffn, blk(i, "ffn_gate.bias"), c.n_ff,
             by_rows ? &f.neurons.gate_bias : &f.gate_bias);
    optional(Part::ffn, blk(i, "ffn_up.bias"), c.n_ff, by_rows ? &f.neurons.up_bias : &f.up_bias);
    optional(Part::ffn, blk(i, by_rows ? "ffn_down_t.bias" : "ffn_down.bias"), c.n_embd,
             by_rows ? &f.neurons.down_bias : &f.down_bias);
}

void Weights::experts(int64_t i) {
    const Config& c = m.config;
    Layer& l = m.layers[size_t(i)];
    matrix(Part::ffn, blk(i, "ffn_gate_inp.weight"), c.n_expert, c.n_embd, &l.router);
    const std::vector<int64_t> by_neuron{c.n_embd, c.n_ff, c.n_expert},
        by_output{c.n_ff, c.n_embd, c.n_expert};
    std::string down = blk(i, "ffn_down_exps.weight");
    bool by_rows = has_bundles(i, "_exps");
    if (has(blk(i, "ffn_down_t_exps.weight"))) {
        by_rows = true;
        down = blk(i, "ffn_down_t_exps.weight");
    } else if (const ggml::TensorInfo* t = m.file.gguf.find_tensor(down)) {
        // PowerInfer's SmallThinker files use the plain name for neuron rows.
        by_rows = t->ne[0] == c.n_embd && c.n_embd != c.n_ff;
    }
    // Without its tensor the number of experts is unchecked; then one expert is enough to report
    // the tensor as missing.
    std::string all = blk(i, "ffn_up_exps.weight");
    for (const char* name : {kUpDownRows, kBundle}) {
        if (has(blk(i, name) + "_exps")) all = blk(i, name) + "_exps";
    }
    const ggml::TensorInfo* up = m.file.gguf.find_tensor(all);
    const int64_t n_expert = up && up->ne[2] == c.n_expert ? c.n_expert : 1;
    l.experts.resize(size_t(n_expert));
    for (int64_t e = 0; e < n_expert; e++) {
        Ffn& f = l.experts[size_t(e)];
        const std::string gate = blk(i, "ffn_gate_exps.weight"), up = blk(i, "ffn_up_exps.weight");
        if (by_rows) {
            neurons(i, "_exps", e, true, down, f);
        } else {
            rows(Part::ffn, gate, by_neuron, e * c.n_ff, c.n_ff, Product{&f.gate});
            rows(Part::ffn, up, by_neuron, e * c.n_ff, c.n_ff, Product{&f.up});
            rows(Part::ffn, down, by_output, e * c.n_embd, c.n_embd, Product{&f.down});
        }
    }
}

}  // namespace powerinfer
