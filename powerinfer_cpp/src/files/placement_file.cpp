#include "files/placement_file.h"

#include <algorithm>
#include <cstring>

#include "base/sha256.h"
#include "base/utf8.h"
#include "files/gpu_index.h"
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Code;
using ggml::DType;
using ggml::Error;
using ggml::format;

namespace {

constexpr char kPrefix[] = "powerinfer.placement.";

std::string key(const char* name) {
    return std::string(kPrefix) + name;
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
    throw Error(Code::format, path + ": " + what);
}

// A tensor name such as "blk.N.ffn_rate" or, for experts, "blk.N.ffn_rate_exps".
std::string of_neurons(const char* what, int64_t layer, bool experts) {
    return blk(layer, what) + (experts ? "_exps" : "");
}

// Finds a tensor with one number per neuron of a layer; it must exist.
const ggml::TensorInfo& numbers(const ggml::Gguf& gguf, const FeedForward& part,
                                const std::string& name, DType type) {
    const ggml::TensorInfo* t = gguf.find_tensor(name);
    if (!t) refuse(gguf.path(), "tensor \"" + name + "\" is missing");
    std::vector<int64_t> shape{part.n_ff};
    if (part.routed()) shape.push_back(part.n_blocks());
    check_shape(gguf, *t, shape);
    if (t->type != type) {
        refuse(gguf.path(), "tensor \"" + name + "\" has type " + ggml::info(t->type).name);
    }
    return *t;
}

Tier tier_of(const ggml::Gguf& gguf, const ggml::TensorInfo& t, uint8_t stored) {
    switch (stored) {
        case 0:
            return Tier::storage;
        case 1:
            return Tier::ram;
        case 2:
            return Tier::gpu;
        default:
            refuse(gguf.path(), format("tensor \"%s\" holds %d, and tiers are 0 to 2",
                                       t.name.c_str(), int(int8_t(stored))));
    }
}

// Does the file have tiers for any layer?
bool has_tiers(const ggml::Gguf& gguf) {
    const auto& tensors = gguf.tensors();
    return std::any_of(tensors.begin(), tensors.end(), [](const ggml::TensorInfo& t) {
        const int64_t layer = layer_of(t.name);
        return layer >= 0 &&
               (t.name == tier_tensor(layer, false) || t.name == tier_tensor(layer, true));
    });
}

// Reads the tiers from the model itself or from a sidecar file.
Placement read_tiers(const Model& model, const ModelFile& holder) {
    const ggml::Gguf& gguf = holder.gguf;
    Placement p;
    p.path = gguf.path();
    p.vram_budget = gguf.integer(key("vram_budget"), 0, INT64_MAX, 0);
    p.ram_budget = gguf.integer(key("ram_budget"), 0, INT64_MAX, 0);
    p.device = gguf.string(key("device"), "");
    for (int64_t i = 0; i < model.config.n_layer; i++) {
        std::vector<NeuronHomes>& blocks = p.layers.emplace_back();
        const FeedForward* const there = model.ffn_of(i);
        if (!there) continue;
        const FeedForward& part = *there;
        const std::string name = tier_tensor(i, part.routed());
        const ggml::TensorInfo& t = numbers(gguf, part, name, DType::I8);
        const std::vector<uint8_t> tiers = holder.read(t, t.bytes);
        const uint8_t* stored = tiers.data();
        for (int64_t b = 0; b < part.n_blocks(); b++) {
            NeuronHomes homes;
            for (int64_t n = 0; n < part.n_ff; n++) {
                homes.tier.push_back(tier_of(gguf, t, *stored++));
            }
            blocks.push_back(std::move(homes));
        }
    }
    return p;
}

// Was the placement solved for the model's current statistics?
bool of_these_statistics(const Model& model, const ggml::Gguf& holder) {
    return holder.string(key("stats_hash")) == statistics_hash(model);
}

Placement read_embedded(const Model& model) {
    const ggml::Gguf& gguf = model.file.gguf;
    if (!of_these_statistics(model, gguf)) {
        refuse(gguf.path(), "the placement was solved for other statistics");
    }
    return read_tiers(model, model.file);
}

// A sidecar becomes stale when its model is profiled again or overwritten. This is not an error.
Placement read_sidecar(const Model& model, const std::string& path) {
    const ModelFile sidecar = ModelFile::open(path);
    const ggml::Gguf& gguf = sidecar.gguf;
    if (gguf.string("general.architecture") != "powerinfer.placement") {
        refuse(path, "holds no placement (general.architecture is not powerinfer.placement)");
    }
    Placement stale;
    stale.path = path;
    if (gguf.string(key("model_hash")) != model_hash(model.file)) {
        stale.stale = "is a placement of another model";
    } else if (!of_these_statistics(model, gguf)) {
        stale.stale = "is a placement that was solved for other statistics";
    }
    return stale.stale.empty() ? read_tiers(model, sidecar) : stale;
}

Placement from_gpu_index(const Model& model, const std::string& path) {
    std::vector<int64_t> n_ff;
    if (int64_t(model.ffns.size()) != model.config.n_layer) {
        refuse(path, "PowerInfer's placements need one feed-forward block in each layer, and " +
                         model.file.gguf.path() + " has none or several in some");
    }
    for (const FeedForward* part : model.ffns) {
        n_ff.push_back(part->n_ff);
        if (!part->routed()) continue;
        refuse(path, "PowerInfer's placements do not support experts, and " +
                         model.file.gguf.path() + " has them");
    }
    Placement p;
    p.path = path;
    const std::vector<std::vector<int32_t>> ids = read_gpu_index(path, n_ff);
    for (size_t i = 0; i < ids.size(); i++) {
        NeuronHomes homes{std::vector<Tier>(size_t(n_ff[i]), Tier::ram)};
        for (int32_t id : ids[i]) homes.tier[size_t(id)] = Tier::gpu;
        p.layers.push_back({std::move(homes)});
    }
    return p;
}

// A shape as Python writes it: "(96,)" or "(4, 96)", slowest dimension first.
std::string python_shape(const ggml::TensorInfo& t) {
    std::string text;
    for (int i = t.n_dims; i-- > 0;) {
        text += std::to_string(t.ne[i]) + (t.n_dims == 1 ? "," : i ? ", " : "");
    }
    return "(" + text + ")";
}

// A name with each invalid UTF-8 byte replaced by '?'.
std::string python_name(std::string_view name) {
    std::string text;
    while (!name.empty()) {
        const size_t n = utf8_length(name);
        text += n ? std::string(name.substr(0, n)) : "?";
        name.remove_prefix(std::max<size_t>(n, 1));
    }
    return text;
}

bool of_tables(const std::string& name) {
    const int64_t layer = layer_of(name);
    if (layer < 0) return false;
    for (const char* what : {"ffn_rate", "ffn_tier"}) {
        for (bool experts : {false, true}) {
            if (name == of_neurons(what, layer, experts)) return true;
        }
    }
    return false;
}

}  // namespace

std::string tier_tensor(int64_t layer, bool experts) {
    return of_neurons("ffn_tier", layer, experts);
}

std::optional<Placement> read_placement(const Model& model, const pi_model_params& params) {
    if (has_tiers(model.file.gguf)) return read_embedded(model);
    std::vector<std::string> models{model.file.gguf.path()};
    // A placement of MODEL is one of MODEL.bundle.gguf, too.
    const std::string path = models[0], end = ".bundle.gguf";
    if (path.size() > end.size() && !path.compare(path.size() - end.size(), end.size(), end)) {
        models.push_back(path.substr(0, path.size() - end.size()));
    }
    for (const std::string& name : models) {
        const std::string sidecar = name + ".placement.gguf";
        if (ggml::file_exists(sidecar)) return read_sidecar(model, sidecar);
    }
    for (const std::string& name : models) {
        const std::string index = gpu_index_path(name);
        if (params.use_gpu_index && ggml::file_exists(index)) return from_gpu_index(model, index);
    }
    return std::nullopt;
}

std::string model_hash(const ModelFile& file) {
    constexpr uint64_t kFirst = 4096;  // bytes of each tensor
    // A bundled file says which model it was written from, whose placements are its own.
    const std::string_view source = file.gguf.string("powerinfer.bundle.model_hash", "");
    if (!source.empty()) return std::string(source);
    Sha256 hash;
    for (const ggml::TensorInfo& t : file.gguf.tensors()) {
        if (of_tables(t.name)) continue;
        hash.add(python_name(t.name) + " " + python_shape(t) + format(" %u\n", unsigned(t.type)));
        const std::vector<uint8_t> first = file.read(t, std::min(t.bytes, kFirst));
        hash.add(first.data(), first.size());
    }
    return hash.hex();
}

std::string statistics_hash(const Model& model) {
    const ggml::Gguf& gguf = model.file.gguf;
    Sha256 hash;
    for (int64_t i = 0; i < model.config.n_layer; i++) {
        const FeedForward* const part = model.ffn_of(i);
        if (!part) continue;
        const std::string name = of_neurons("ffn_rate", i, part->routed());
        const ggml::TensorInfo& t = numbers(gguf, *part, name, DType::F32);
        hash.add(std::to_string(i) + " " + python_shape(t));
        const std::vector<uint8_t> rates = model.file.read(t, t.bytes);
        hash.add(rates.data(), rates.size());
    }
    return hash.hex();
}

}  // namespace powerinfer
