#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/sha256.h"
#include "ggml/sizes.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::DType;
using ggml::Error;
using ggml::format;
using ggml::TensorInfo;

namespace {

// Ranks of public adapters go up to 512.
constexpr int64_t kHighestRank = 1 << 14;
constexpr double kLargestAlpha = 1e6;

// A weight that an adapter may change: rows [row0, row0 + rows) of a tensor of the model.
struct RowRange {
    const void* weight;  // address of the Matrix or NeuronRows
    int64_t row0, rows;
};
struct Targets {
    std::vector<int64_t> shape;   // [inputs, outputs] of the whole tensor
    std::vector<RowRange> parts;  // several where the engine divides a tensor (attn_qkv)
    // Rows of the latter two are looked up. Files have the factors of the embedding the other way
    // round: lora_a is [outputs, rank], and lora_b [inputs, rank].
    enum class Kind { product, table, embedding } kind = Kind::product;
};

// Neuron rows have several names in files, adapters use that of the dense matrix.
void add_neurons(const Model& m, int64_t i, std::map<std::string, Targets>& all) {
    for (const LayerPart& of_layer : m.layers[size_t(i)].parts) {
        const auto* part = std::get_if<FeedForward>(&of_layer.op);
        if (!part || part->routed() || !part->blocks[0].neurons.n) continue;
        const ggml::Neurons& w = part->blocks[0].neurons;
        const char* const end = part == m.ffn_of(i) ? "" : "_shexp";
        const auto add = [&](const char* name, const ggml::NeuronRows& rows, int64_t in,
                             int64_t out) {
            all[format("blk.%lld.%s%s.weight", (long long)i, name, end)] = {{in, out},
                                                                            {{&rows, 0, out}}};
        };
        if (w.gate) add("ffn_gate", w.gate, w.cols, w.n);
        add("ffn_up", w.up, w.cols, w.n);
        // Down rows that have the weights of a norm as a factor are not what an adapter was trained
        // on.
        if (!part->norms_values) add("ffn_down", w.down, w.n, w.cols);
    }
}

std::map<std::string, Targets> all_targets(const Model& m) {
    std::map<std::string, Targets> all;
    std::set<std::string> turned;  // products read them in two ways, which no adapter does
    for (const WeightSpec& w : m.weights) {
        if (w.is<Turned>()) turned.insert(w.name);
        const auto* product = std::get_if<Product>(&w.target);
        if (!product || w.shape.size() != 2 || w.part == Part::predictor) continue;
        Targets& found = all[w.name];
        found.shape = w.shape;
        found.parts.push_back({product->to, w.row0, w.rows});
    }
    for (const std::string& name : turned) all.erase(name);
    // A tied head reads the embedding, but its adapter has nothing to do with that.
    const std::string embedding = "token_embd.weight";
    all.erase(embedding);
    if (m.config.encoder) {
        const auto add = [&](const std::string& name, const ggml::Matrix& w, Targets::Kind kind) {
            if (w.rows) all[name] = {{w.cols, w.rows}, {{&w, 0, w.cols}}, kind};
        };
        add(embedding, m.token_embd, Targets::Kind::embedding);
        add("token_types.weight", m.token_types, Targets::Kind::table);
    }
    all["output.weight"] = {{m.config.n_embd, m.config.n_vocab},
                            {{&m.output, 0, m.config.n_vocab}}};
    for (int64_t i = 0; i < m.config.n_layer; i++) add_neurons(m, i, all);
    return all;
}

// A fused ffn_up has the rows of gate and up, gates first, and so have its adapters. In files of
// neurons both are tensors by themselves.
Targets for_rows(const std::map<std::string, Targets>& all, const std::string& weight,
                 int64_t rows) {
    const Targets& up = all.at(weight);
    const std::string end = ".ffn_up.weight";
    const int64_t n = up.shape[1];
    const bool fused = weight.size() > end.size() && rows == 2 * n &&
                       !weight.compare(weight.size() - end.size(), end.size(), end);
    if (!fused) return up;
    const auto gate = all.find(weight.substr(0, weight.size() - end.size()) + ".ffn_gate.weight");
    if (gate == all.end()) return up;
    return {{up.shape[0], rows}, {gate->second.parts[0], {up.parts[0].weight, n, n}}, up.kind};
}

// The format in memory: that of the file if products read it row by row with inputs in floats.
DType format_in_memory(DType type) {
    const bool by_rows = type == DType::F16 || type == DType::BF16 || type == DType::Q8_0;
    return by_rows ? type : DType::F32;
}

[[noreturn]] void refuse(const ggml::Gguf& gguf, Code code, const std::string& what) {
    throw Error(code, gguf.path() + ": " + what);
}

[[noreturn]] void refuse_target(const ggml::Gguf& gguf, const std::string& tensor) {
    const bool expert = tensor.find("_exps.") != std::string::npos;
    const bool embedding = tensor.rfind("token_embd.", 0) == 0;
    refuse(gguf, Code::unsupported,
           "tensor \"" + tensor + "\" changes " +
               (expert      ? "experts, which adapters cannot change here"
                : embedding ? "the embedding, which adapters cannot change here"
                            : "a weight that this model does not have"));
}

}  // namespace

struct Adapter::Pair {
    std::string weight;  // "blk.0.attn_q.weight"
    const TensorInfo *file_a = nullptr, *file_b = nullptr;
    ggml::Matrix a, b;
    Targets targets;
    // What LowRank has of it, from the file's factors.
    void set_matrices() {
        const int64_t in = targets.shape[0], out = targets.shape[1];
        const auto matrix = [](DType type, int64_t rows, int64_t cols) {
            return ggml::Matrix{format_in_memory(type), ggml::Layout::rows, rows, cols, nullptr};
        };
        if (targets.kind == Targets::Kind::product) {
            a = matrix(file_a->type, file_a->ne[1], in);
            b = matrix(file_b->type, out, file_a->ne[1]);
            return;
        }
        if (targets.kind == Targets::Kind::table) std::swap(file_a, file_b);
        a = matrix(file_a->type, out, file_a->ne[0]);
        b = matrix(turned() ? DType::F32 : file_b->type, in, file_a->ne[0]);
    }
    bool turned() const { return targets.kind == Targets::Kind::table; }  // b in the file
};

void Adapter::check_kind() const {
    const ggml::Gguf& gguf = file_.gguf;
    const auto expect = [&](const char* key, std::string_view wanted, const char* means) {
        const std::string_view found = gguf.string(key);
        if (found == wanted) return;
        refuse(
            gguf, Code::format,
            format("key \"%s\" is \"%s\", not \"%s\": %s", key,
                   std::string(found.substr(0, 40)).c_str(), std::string(wanted).c_str(), means));
    };
    expect("general.type", "adapter", "this file is no adapter");
    expect("adapter.type", "lora", "only LoRA adapters are supported");
    expect("general.architecture", model->config.architecture,
           "the adapter belongs to another model");
    if (gguf.find("adapter.alora.invocation_tokens")) {
        refuse(gguf, Code::unsupported,
               "key \"adapter.alora.invocation_tokens\": adapters that begin at certain tokens "
               "(aLoRA) are not supported");
    }
}

std::vector<Adapter::Pair> Adapter::find_pairs() const {
    const ggml::Gguf& gguf = file_.gguf;
    std::map<std::string, Pair> found;
    for (const TensorInfo& t : gguf.tensors()) {
        const size_t end = t.name.size() < 7 ? 0 : t.name.size() - 7;
        const std::string suffix = t.name.substr(end);
        if (suffix != ".lora_a" && suffix != ".lora_b") {
            refuse(gguf, Code::unsupported,
                   "tensor \"" + t.name +
                       "\" is no part of a low-rank term (.lora_a or .lora_b): adapters with "
                       "other weights are not supported");
        }
        Pair& pair = found[t.name.substr(0, end)];
        pair.weight = t.name.substr(0, end);
        (suffix == ".lora_a" ? pair.file_a : pair.file_b) = &t;
    }
    const std::map<std::string, Targets> targets = all_targets(*model);
    std::vector<Pair> pairs;
    for (auto& [weight, pair] : found) {
        if (!pair.file_a || !pair.file_b) {
            refuse(gguf, Code::format,
                   "tensor \"" + weight + (pair.file_a ? ".lora_b" : ".lora_a") + "\" is missing");
        }
        const TensorInfo &a = *pair.file_a, &b = *pair.file_b;
        const auto target = targets.find(weight);
        if (target == targets.end()) refuse_target(gguf, a.name);
        pair.targets = for_rows(targets, weight, b.ne[1]);
        const bool other_way = pair.targets.kind == Targets::Kind::embedding;
        const int64_t rank = a.ne[other_way ? 0 : 1];
        const int64_t in = pair.targets.shape[0], out = pair.targets.shape[1];
        if (rank < 1 || rank > kHighestRank) {
            refuse(gguf, Code::format,
                   format("tensor \"%s\" has rank %lld, not 1 to %lld", a.name.c_str(),
                          (long long)rank, (long long)kHighestRank));
        }
        check_shape(gguf, a, other_way ? std::vector{rank, out} : std::vector{in, rank});
        check_shape(gguf, b, {rank, other_way ? in : out});
        for (const TensorInfo* t : {&a, &b}) {
            if (ggml::info(t->type).is_float()) continue;
            refuse(gguf, Code::format,
                   "tensor \"" + t->name + "\" has type " + ggml::info(t->type).name);
        }
        pair.set_matrices();
        pairs.push_back(pair);
    }
    if (pairs.empty()) refuse(gguf, Code::format, "the adapter changes no weight");
    return pairs;
}

void Adapter::set_addresses(ggml::Carver& carver, std::vector<Pair>& pairs) const {
    for (Pair& pair : pairs) {
        for (ggml::Matrix* m : {&pair.a, &pair.b}) {
            uint8_t* data;
            carver.take(data, {m->rows, m->row_bytes()});
            m->data = data;
        }
    }
}

void Adapter::read(const TensorInfo& t, const ggml::Matrix& to, bool turned) const {
    const ggml::DTypeInfo& stored = ggml::info(t.type);
    const int64_t n_rows = turned ? to.cols : to.rows, cols = turned ? to.rows : to.cols;
    const int64_t row = stored.size(cols), slab = std::max<int64_t>(1, (1 << 20) / row);
    const bool as_it_is = t.type == to.type && !turned;
    auto* const data = const_cast<uint8_t*>(to.data);
    std::vector<uint8_t> bytes;
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t r0 = 0; r0 < n_rows; r0 += slab) {
        const int64_t n = std::min(slab, n_rows - r0);
        uint8_t* from = data + r0 * to.row_bytes();
        if (!as_it_is) {
            bytes.resize(size_t(n * row));
            from = bytes.data();
        }
        file_.files[size_t(t.file)]->read(t.offset + uint64_t(r0 * row), from, size_t(n * row));
        for (int64_t i = 0; i < n; i++) {
            ggml::decode_row({t.type, ggml::Layout::rows, n, cols, from}, i, values.data());
            if (!std::all_of(values.begin(), values.end(),
                             [](float v) { return std::isfinite(v); }))
                refuse(file_.gguf, Code::format,
                       format("tensor \"%s\" holds a value that is not finite in row %lld",
                              t.name.c_str(), (long long)(r0 + i)));
            if (as_it_is) continue;
            auto* const floats = reinterpret_cast<float*>(data) + (r0 + i) * (turned ? 1 : cols);
            for (int64_t c = 0; c < cols; c++)
                floats[c * (turned ? to.cols : 1)] = values[size_t(c)];
        }
    }
}

Adapter::Adapter(std::shared_ptr<const Model> m, const std::string& path)
    : model(std::move(m)), file_(ModelFile::open(path)) {
    check_kind();
    // 0 or missing: the terms are added as they are, as in llama.cpp.
    const double alpha = file_.gguf.number("adapter.lora.alpha", -kLargestAlpha, kLargestAlpha, 0);
    std::vector<Pair> pairs = find_pairs();
    ggml::Carver counter;
    set_addresses(counter, pairs);
    reserved_ = model->budget->reserve(path + ": an adapter", counter.bytes());
    memory_ = ggml::Memory(counter.bytes(), "an adapter");
    ggml::Carver carver(memory_);
    set_addresses(carver, pairs);
    Sha256 hash;
    for (const Pair& pair : pairs) {
        read(*pair.file_a, pair.a);
        read(*pair.file_b, pair.b, pair.turned());
        const int64_t rank = pair.b.cols;
        const float scale = alpha == 0 ? 1.0f : float(alpha / double(rank));
        hash.add(format("%s %lld %d %d;", pair.weight.c_str(), (long long)rank, int(pair.a.type),
                        int(pair.b.type)));
        hash.add(&scale, sizeof(scale));  // its text would depend on the program's locale
        for (const ggml::Matrix* w : {&pair.a, &pair.b}) hash.add(w->data, size_t(w->bytes()));
        for (const RowRange& t : pair.targets.parts) {
            ggml::Matrix b = pair.b;
            b.rows = t.rows;
            b.data += t.row0 * b.row_bytes();
            if (terms_.emplace(t.weight, LowRank{pair.a, b, scale}).second) continue;
            refuse(file_.gguf, Code::format,
                   "tensor \"" + pair.file_b->name + "\" changes rows that another one changes");
        }
    }
    hash_ = hash.hex();
}

}  // namespace powerinfer
