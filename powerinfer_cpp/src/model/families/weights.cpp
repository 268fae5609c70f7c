// The tensors that several families share.
#include <algorithm>
#include <cmath>

#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

// Of a bundled file: see kUpDownRows.
constexpr char kGateRows[] = "ffn_gate_rows";

constexpr char kPositions[] = "position_embd.weight";

constexpr char kExpertLimit[] = ".swiglu_clamp_exp", kOtherLimit[] = ".swiglu_clamp_shexp";

// Each row of a batch keeps this many values. Public predictors have ranks up to a few thousand.
constexpr int64_t kHighestRank = 1 << 16;

}  // namespace

std::string blk(int64_t layer, const char* suffix) {
    return "blk." + std::to_string(layer) + "." + suffix;
}

std::string bundled_type_key(const char* part, const char* suffix) {
    const std::string end = suffix == std::string(kSharedSuffix) ? suffix : "";
    return std::string("powerinfer.bundle.") + part + "_type" + end;
}

void learn_positions(const ggml::Gguf& gguf, Config& c, int64_t offset) {
    c.ropes.clear();
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
    norm_of(name + ".weight", to, n);
    if (to->kind == Norm::rms || !m.config.norm_bias) return;
    vector(Part::norms, name + ".bias", n, &to->bias);
}

void Weights::norm_of(const std::string& tensor, NormWeights* to, int64_t n) {
    to->kind = m.config.norm;
    to->eps = m.config.norm_eps;
    vector(Part::norms, tensor, n, &to->weight);
}

void Weights::matrix(Part part, const std::string& name, int64_t n_rows, int64_t cols,
                     ggml::Matrix* to) {
    rows(part, name, {cols, n_rows}, 0, n_rows, Product{to});
}

void Weights::table(Part part, const std::string& name, int64_t n_rows, int64_t cols,
                    ggml::Matrix* to, StoredTable* stored) {
    rows(part, name, {cols, n_rows}, 0, n_rows, Table{to, stored});
}

void Weights::rows(Part part, const std::string& name, std::vector<int64_t> shape, int64_t row0,
                   int64_t n_rows, Target to) {
    const int64_t cols = shape[0];
    specs_.push_back({part, name, std::move(shape), row0, n_rows, cols, to, nullptr, {}});
}

void Weights::embedding_and_head(const char* last_norm) {
    const Config& c = m.config;
    const bool tied = !has("output.weight");
    const std::string embedding = "token_embd.weight";
    if (tied) {
        matrix(Part::head, embedding, c.n_vocab, c.n_embd, &m.token_embd);
    } else {
        table(Part::embedding, embedding, c.n_vocab, c.n_embd, &m.token_embd, &m.token_embd_stored);
    }
    if (*last_norm) norm(last_norm, &m.output_norm, c.n_embd);
    if (!tied) matrix(Part::head, "output.weight", c.n_vocab, c.n_embd, &m.output);
}

void Weights::rope_factors() {
    const int64_t n = m.config.ropes[0].n_rot / 2;
    // There may be some for a whole head of which a part rotates. The first ones count.
    const std::string factors = "rope_freqs.weight";
    const ggml::TensorInfo* const there = m.file.gguf.find_tensor(factors);
    const int64_t whole = layer_sizes(m.file.gguf, m.config, 0).head_dim / 2;
    optional(Part::norms, factors, there && there->ne[0] == whole ? std::max(n, whole) : n,
             &m.rope_factors);
    if (m.config.rope_scaling.kind != RopeScaling::Kind::longrope) return;
    vector(Part::norms, "rope_factors_long.weight", n, &m.rope_long);
    vector(Part::norms, "rope_factors_short.weight", n, &m.rope_short);
}

LayerPart& Weights::add_attention(int64_t i, const char* norm) {
    const Config& c = m.config;
    const LayerSizes sizes = layer_sizes(m.file.gguf, c, i);
    if (!sizes.n_head_kv) lacks(i, ".attention.head_count_kv", "attention");
    Attention a;
    a.n_head = sizes.n_head;
    a.n_head_kv = sizes.n_head_kv;
    a.head_dim = sizes.head_dim;
    a.v_head_dim = sizes.v_head_dim;
    a.rope = c.ropes.empty() ? -1 : 0;
    a.scale = float(1 / std::sqrt(double(a.head_dim)));
    return add_part(i, norm, std::move(a));
}

LayerPart& Weights::add_feed_forward(int64_t i, const char* norm) {
    const LayerSizes sizes = layer_sizes(m.file.gguf, m.config, i);
    if (!sizes.n_ff) lacks(i, ".feed_forward_length", "a feed-forward block");
    FeedForward f;
    f.n_ff = sizes.n_ff;
    return add_part(i, norm, std::move(f));
}

void Weights::lacks(int64_t i, const char* key, const char* part) const {
    throw ggml::Error(
        ggml::Code::format,
        ggml::format("%s: %s%s is 0 in layer %lld, which has %s", m.file.gguf.path().c_str(),
                     m.config.architecture.c_str(), key, (long long)i, part));
}

LayerPart& Weights::add_part(int64_t i, const char* norm_name, decltype(LayerPart::op) op) {
    LayerPart& part = m.layers[size_t(i)].parts.emplace_back();
    part.op = std::move(op);
    if (*norm_name) norm(blk(i, norm_name), &part.norm.emplace(), m.config.n_embd);
    return part;
}

void Weights::post_norm(int64_t i, const char* name, LayerPart& part) {
    norm(blk(i, name), &part.post_norm.emplace(), m.config.n_embd);
}

void Weights::stream_norm(int64_t i, const char* name, LayerPart& part) {
    norm(blk(i, name), &part.stream_norm.emplace(), m.config.n_embd);
}

void Weights::attention(int64_t i) {
    if (has(blk(i, "attn_qkv.weight"))) return fused_attention(i);
    const int64_t n_embd = m.config.n_embd;
    Attention& a = *m.layers[size_t(i)].find<Attention>();
    matrix(Part::attention, blk(i, "attn_q.weight"), a.q_rows(), n_embd, &a.q);
    matrix(Part::attention, blk(i, "attn_k.weight"), a.k_dim(), n_embd, &a.k);
    matrix(Part::attention, blk(i, "attn_v.weight"), a.v_dim(), n_embd, &a.v);
    matrix(Part::attention, blk(i, "attn_output.weight"), n_embd, a.out_dim(), &a.o);
    optional(Part::attention, blk(i, "attn_q.bias"), a.q_rows(), &a.q_bias);
    optional(Part::attention, blk(i, "attn_k.bias"), a.k_dim(), &a.k_bias);
    optional(Part::attention, blk(i, "attn_v.bias"), a.v_dim(), &a.v_bias);
    optional(Part::attention, blk(i, "attn_output.bias"), n_embd, &a.o_bias);
}

void Weights::attention_without_values(int64_t i) {
    Attention& a = *m.layers[size_t(i)].find<Attention>();
    if (a.kv_of < 0 && has(blk(i, "attn_v.weight"))) return attention(i);
    const int64_t n_embd = m.config.n_embd;
    matrix(Part::attention, blk(i, "attn_q.weight"), a.q_dim(), n_embd, &a.q);
    if (a.kv_of < 0) matrix(Part::attention, blk(i, "attn_k.weight"), a.k_dim(), n_embd, &a.k);
    matrix(Part::attention, blk(i, "attn_output.weight"), n_embd, a.out_dim(), &a.o);
}

void Weights::fused_attention(int64_t i) {
    const int64_t n_embd = m.config.n_embd;
    Attention& a = *m.layers[size_t(i)].find<Attention>();
    const std::string weight = blk(i, "attn_qkv.weight"), bias = blk(i, "attn_qkv.bias");
    const int64_t n = a.q_rows() + a.k_dim() + a.v_dim();
    const bool biased = has(bias);
    const auto part = [&](int64_t row0, int64_t n_rows, ggml::Matrix* to, const float** bias_to) {
        rows(Part::attention, weight, {n_embd, n}, row0, n_rows, Product{to});
        if (!biased) return;
        rows(Part::attention, bias, {n}, row0, n_rows, Vector{bias_to});
        specs_.back().cols = 1;
    };
    part(0, a.q_rows(), &a.q, &a.q_bias);
    part(a.q_rows(), a.k_dim(), &a.k, &a.k_bias);
    part(a.q_rows() + a.k_dim(), a.v_dim(), &a.v, &a.v_bias);
    matrix(Part::attention, blk(i, "attn_output.weight"), n_embd, a.out_dim(), &a.o);
    optional(Part::attention, blk(i, "attn_output.bias"), n_embd, &a.o_bias);
}

void Weights::output_gate(int64_t i, ggml::GateBy by) {
    Attention& a = *m.layers[size_t(i)].find<Attention>();
    const std::string name = blk(i, "attn_gate.weight");
    const ggml::TensorInfo* there = m.file.gguf.find_tensor(name);
    a.n_gate = there && there->ne[1] == a.out_dim() ? a.out_dim() : a.n_head;
    a.gate_by = by;
    matrix(Part::attention, name, a.n_gate, m.config.n_embd, &a.gate);
}

void Weights::head_norms(int64_t i) {
    Attention& a = *m.layers[size_t(i)].find<Attention>();
    const bool whole = a.norms == Attention::Norms::whole_row;
    const bool biased = whole && m.config.norm == Norm::layer;
    vector(Part::norms, blk(i, "attn_q_norm.weight"), whole ? a.q_dim() : a.head_dim, &a.q_norm);
    if (biased) optional(Part::norms, blk(i, "attn_q_norm.bias"), a.q_dim(), &a.q_norm_bias);
    if (a.kv_of >= 0) return;
    vector(Part::norms, blk(i, "attn_k_norm.weight"), whole ? a.k_dim() : a.head_dim, &a.k_norm);
    if (biased) optional(Part::norms, blk(i, "attn_k_norm.bias"), a.k_dim(), &a.k_norm_bias);
}

void Weights::positions() {
    const Config& c = m.config;
    const ggml::TensorInfo* there = m.file.gguf.find_tensor(kPositions);
    const int64_t n_rows = there ? there->ne[1] : c.n_ctx + c.position_offset;
    table(Part::embedding, kPositions, n_rows, c.n_embd, &m.position_embd);
}

void Weights::encoder_embedding() {
    const Config& c = m.config;
    const std::string types = "token_types.weight";
    table(Part::embedding, "token_embd.weight", c.n_vocab, c.n_embd, &m.token_embd);
    if (const ggml::TensorInfo* there = m.file.gguf.find_tensor(types)) {
        table(Part::embedding, types, there->ne[1], c.n_embd, &m.token_types);
    }
    norm("token_embd_norm", &m.embedding_norm.emplace(), c.n_embd);
}

std::vector<int64_t> Weights::shaped(const Rows& of, int64_t cols, int64_t n_rows) {
    std::vector<int64_t> shape{cols, n_rows};
    if (of.n_expert) shape.push_back(of.n_expert);
    return shape;
}

void Weights::neurons(const Rows& of, bool gated, const std::string& down, Ffn& f) {
    const size_t first = specs_.size();
    neuron_rows(of, gated, down, f);
    for (size_t k = first; k < specs_.size(); k++) specs_[k].of = &of.part;
}

void Weights::neuron_rows(const Rows& of, bool gated, const std::string& down, Ffn& f) {
    const Config& c = m.config;
    m.config.neuron_aware = true;
    f.neurons.n = of.part.n_ff;
    f.neurons.cols = of.part.columns(c.n_embd);
    f.neurons.act = c.activation;
    if (const std::string name = blk(of.layer, kBundle) + of.suffix; has(name)) {
        stored(of, name, gated, f);
        predictor(of, f);
        return;
    }
    const bool bundled = has(blk(of.layer, kUpDownRows) + of.suffix);
    const auto tensor = [&](const char* name) {
        return blk(of.layer, name) + of.suffix + ".weight";
    };
    const auto bundle_of = [&](const char* name) {
        return bundled ? blk(of.layer, name) + of.suffix : "";
    };
    if (gated) {
        bundle(of, bundle_of(kGateRows), {{"gate", tensor("ffn_gate"), &f.neurons.gate}}, f.gates);
    }
    bundle(of, bundle_of(kUpDownRows),
           {{"up", tensor("ffn_up"), &f.neurons.up}, {"down", down, &f.neurons.down}}, f.bundle);
    predictor(of, f);
}

void Weights::bundle(const Rows& of, const std::string& bundled, const std::vector<Stored>& parts,
                     Bundle& to) {
    const int64_t n_ff = of.part.n_ff, cols = of.part.columns(m.config.n_embd);
    for (const Stored& p : parts) to.rows.push_back(p.rows);
    if (!bundled.empty()) {
        m.file.gguf.integer("powerinfer.bundle.version", kMemoryVersion, kMemoryVersion);
        for (const Stored& p : parts) to.layout.parts.push_back(bundled_type(of, p.name));
        to.layout.cols = cols;
        rows(Part::ffn, bundled, shaped(of, to.layout.stride(), n_ff), of.expert * n_ff, n_ff,
             WholeBundle{&to});
        return;
    }
    for (size_t k = 0; k < parts.size(); k++) {
        rows(Part::ffn, parts[k].tensor, shaped(of, cols, n_ff), of.expert * n_ff, n_ff,
             NeuronPart{&to, k});
    }
}

void Weights::stored(const Rows& of, const std::string& bundled, bool gated, Ffn& f) {
    const int64_t n_ff = of.part.n_ff, cols = of.part.columns(m.config.n_embd);
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
        to.layout.parts.push_back(bundled_type(of, name));
        to.layout.cols = cols;
    };
    if (gated) part("gate", &f.neurons.gate, f.gates);
    part("up", &f.neurons.up, f.bundle);
    part("down", &f.neurons.down, f.bundle);
    std::vector<ggml::DType> types = f.gates.layout.parts;
    types.insert(types.end(), f.bundle.layout.parts.begin(), f.bundle.layout.parts.end());
    f.stored.layout = StoreLayout::of(types, cols, align);
    rows(Part::ffn, bundled, shaped(of, f.stored.layout.stride, n_ff), of.expert * n_ff, n_ff,
         StoredBundle{gated ? &f.gates : nullptr, &f.bundle, &f.stored});
}

bool Weights::has_bundles(int64_t i, const char* suffix) const {
    return has(blk(i, kUpDownRows) + suffix) || has(blk(i, kBundle) + suffix);
}

ggml::DType Weights::bundled_type(const Rows& of, const char* part) const {
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string key = bundled_type_key(part, of.suffix);
    const auto refuse = [&](const std::string& why) {
        throw ggml::Error(ggml::Code::format, gguf.path() + ": key \"" + key + "\" " + why);
    };
    const ggml::Value* v = gguf.find(key);
    if (!v) refuse("is missing");
    if (!v->is_string() || (v->is_array() && int64_t(v->count()) != m.config.n_layer))
        refuse("is neither one format nor an array with one per layer");
    const std::string name(v->string(v->is_array() ? uint64_t(of.layer) : 0).substr(0, 20));
    const ggml::DTypeInfo* t = ggml::find_dtype(std::string_view(name));
    if (!t || !t->is_float()) refuse("names format \"" + name + "\", which is not known");
    if (of.part.columns(m.config.n_embd) % t->block) {
        refuse(std::string("names format ") + t->name + ", whose blocks do not divide a row");
    }
    return t->type;
}

void Weights::predictor(const Rows& of, Ffn& f) {
    Config& c = m.config;
    const int64_t n_ff = of.part.n_ff, row0 = of.expert * n_ff;
    const int64_t cols = c.predict_from_normed ? of.part.columns(c.n_embd) : c.n_embd;
    const auto name = [&](const char* part, const char* end) {
        return blk(of.layer, part) + of.suffix + end;
    };
    // A file with half a predictor is damaged, and so is PowerInfer's file without one. In our
    // files a layer may have none.
    const std::string fc1 = name("fc1", ".weight"), fc2 = name("fc2", ".weight");
    const std::string signs = name("sketch", ".weight"), offset = name("sketch", ".bias");
    if (c.sketches) {
        if (has(signs) || has(offset)) {
            c.has_predictors = true;
            rows(Part::predictor, signs, shaped(of, cols / 8, n_ff), row0, n_ff, Signs{&f.signs});
            optional(Part::predictor, offset, n_ff, &f.sketch_offset);
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
        rows(Part::predictor, fc1, shaped(of, cols, rank), of.expert * rank, rank, Product{&f.fc1});
        rows(Part::predictor, fc2, shaped(of, rank, n_ff), row0, n_ff, Product{&f.fc2});
    }
    const std::string rate = name("ffn_rate", "");
    if (!has(rate)) return;
    vector(Part::predictor, rate, n_ff, &f.rate);
    if (of.n_expert) {
        specs_.back().shape = {n_ff, of.n_expert};
        specs_.back().row0 = of.expert;
    }
}

void Weights::ffn(int64_t i, bool gated, bool gates_first) {
    FeedForward& of = last_feed_forward(i);
    const std::string down = blk(i, "ffn_down_t.weight");
    bool by_rows = has(down) || has_bundles(i, "");
    // If a PowerInfer file has no down tensor at all, ffn_down_t is reported as missing.
    if (m.file.gguf.pwri_magic() && !has(blk(i, "ffn_down.weight"))) by_rows = true;
    const int64_t n_embd = m.config.n_embd, n_ff = of.n_ff;
    if (!by_rows) {
        matrices(i, "", gated, of, gates_first);
        if (of.norms_values) {
            vector(Part::norms, blk(i, "ffn_sub_norm.weight"), n_ff, &of.blocks[0].value_norm);
        }
        return;
    }
    of.blocks.resize(1);
    Ffn& f = of.blocks[0];
    neurons({i, of, 0, 0, ""}, gated, down, f);
    optional(Part::ffn, blk(i, "ffn_gate.bias"), n_ff, &f.neurons.gate_bias);
    optional(Part::ffn, blk(i, "ffn_up.bias"), n_ff, &f.neurons.up_bias);
    // With a norm between, a bias would have to be added behind it.
    if (of.norms_values) return;
    optional(Part::ffn, blk(i, "ffn_down_t.bias"), n_embd, &f.neurons.down_bias);
}

FeedForward& Weights::last_feed_forward(int64_t i) {
    return std::get<FeedForward>(m.layers[size_t(i)].parts.back().op);
}

void Weights::limit_gates(int64_t i, const char* name, FeedForward& part) {
    const Config& c = m.config;
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string key = c.architecture + name;
    const float most = per_layer(gguf, key, c.n_layer, c.n_nextn)[size_t(i)];
    if (most < 0) {
        throw ggml::Error(ggml::Code::format,
                          ggml::format("%s: %s is negative in layer %lld", gguf.path().c_str(),
                                       key.c_str(), (long long)i));
    }
    part.limit.most = most;
}

void Weights::matrices(int64_t i, const char* suffix, bool gated, FeedForward& part,
                       bool gates_first) {
    const int64_t n_embd = m.config.n_embd, n_ff = part.n_ff;
    part.blocks.resize(1);
    Ffn& f = part.blocks[0];
    const auto name = [&](const char* matrix, const char* end) {
        return blk(i, matrix) + suffix + end;
    };
    const size_t first = specs_.size();
    const std::string gate = name("ffn_gate", ".weight"), up = name("ffn_up", ".weight");
    const ggml::TensorInfo* both = gated && !has(gate) ? m.file.gguf.find_tensor(up) : nullptr;
    if (both && both->ne[1] == 2 * n_ff) {
        const std::vector<int64_t> shape{n_embd, 2 * n_ff};
        rows(Part::ffn, up, shape, gates_first ? 0 : n_ff, n_ff, Product{&f.gate});
        rows(Part::ffn, up, shape, gates_first ? n_ff : 0, n_ff, Product{&f.up});
    } else {
        if (gated) matrix(Part::ffn, gate, n_ff, n_embd, &f.gate);
        matrix(Part::ffn, up, n_ff, n_embd, &f.up);
    }
    matrix(Part::ffn, name("ffn_down", ".weight"), n_embd, n_ff, &f.down);
    for (size_t k = first; k < specs_.size(); k++) {
        specs_[k].block = 0;
        specs_[k].of = &part;
    }
    optional(Part::ffn, name("ffn_gate", ".bias"), n_ff, &f.gate_bias);
    optional(Part::ffn, name("ffn_up", ".bias"), n_ff, &f.up_bias);
    optional(Part::ffn, name("ffn_down", ".bias"), n_embd, &f.down_bias);
}

void Weights::layer(int64_t i, const LayerForm& form) {
    attend(i, form);
    feed_forward(i, form);
}

void Weights::nextn(const LayerForm& form) {
    const Config& c = m.config;
    const int64_t i = c.n_layer, n = c.n_embd;
    const auto name = [&](const char* part) { return blk(i, "nextn.") + part + ".weight"; };
    matrix(Part::attention, name("eh_proj"), n, 2 * n, &m.nextn.join);
    vector(Part::norms, name("enorm"), n, &m.nextn.token_norm);
    vector(Part::norms, name("hnorm"), n, &m.nextn.row_norm);
    layer(i, form);
    Layer& here = m.layers[size_t(i)];
    here.hidden = n;
    here.find<Attention>()->first = 1;  // before the first position there is no row
    const std::string own = blk(i, "layer_output_norm.weight");  // Ling's name
    optional(Part::norms, has(own) ? own : name("shared_head_norm"), n, &m.nextn.last_norm);
    m.nextn.last_eps = c.norm_eps;
    if (has(name("embed_tokens"))) {
        table(Part::embedding, name("embed_tokens"), c.n_vocab, n, &m.nextn.token_embd);
    }
    if (has(name("shared_head_head"))) {
        matrix(Part::head, name("shared_head_head"), c.n_vocab, n, &m.nextn.output);
    }
}

void Weights::attend(int64_t i, const LayerForm& form) {
    LayerPart& attention_part = add_attention(i, form.attention_norm);
    attention_part.scale = form.scale;
    if (form.parallel) attention_part.add = LayerPart::Add::with_next;
    Attention& a = std::get<Attention>(attention_part.op);
    a.gated = form.gates_attention;
    form.latent ? latent_attention(i) : attention(i);
    if (form.output_gate) output_gate(i, *form.output_gate);
    if (form.head_norms) {
        a.norms = *form.head_norms;
        if (!form.some_lack_norms || has(blk(i, "attn_q_norm.weight"))) head_norms(i);
    }
    if (*form.attention_post_norm) post_norm(i, form.attention_post_norm, attention_part);
    if (form.inner_norms) {
        vector(Part::norms, blk(i, "attn_sub_norm.weight"), a.out_dim(), &a.out_norm);
    }
}

void Weights::feed_forward(int64_t i, const LayerForm& form) {
    const LayerSizes sizes = layer_sizes(m.file.gguf, m.config, i);
    const bool experts_here = sizes.n_expert > 0;
    if (experts_here) {
        add_router(i, form.ffn_norm, form);
        router(i);
    }
    LayerPart& part = add_feed_forward(i, experts_here ? "" : form.ffn_norm);
    part.scale = form.scale;
    if (*form.ffn_post_norm && !sizes.n_ff_shared) post_norm(i, form.ffn_post_norm, part);
    std::get<FeedForward>(part.op).norms_values = form.inner_norms;
    if (form.limits_gates) {
        limit_gates(i, experts_here ? kExpertLimit : kOtherLimit, std::get<FeedForward>(part.op));
    }
    if (!experts_here) return ffn(i, form.gated, form.gates_first);
    part.input = LayerPart::Input::as_before;
    if (form.narrow_experts) narrow(i, std::get<FeedForward>(part.op));
    experts(i, form.gated);
    if (!sizes.n_ff_shared) return;
    part.add = LayerPart::Add::with_next;
    LayerPart& shared = add_feed_forward(i, "");
    shared.input = LayerPart::Input::as_before;
    shared.scale = form.scale;
    if (*form.ffn_post_norm) {
        norm(blk(i, form.ffn_post_norm), &shared.sum_norm.emplace(), m.config.n_embd);
    }
    std::get<FeedForward>(shared.op).n_ff = sizes.n_ff_shared;
    if (form.limits_gates) limit_gates(i, kOtherLimit, std::get<FeedForward>(shared.op));
    shared_expert(i, form.gated);
}

}  // namespace powerinfer
