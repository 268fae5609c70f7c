// What is said of a file whose family is unknown: whoever wants to add the family, or has a file
// under a new name, learns how far it is from those that are known.
#include <algorithm>
#include <map>
#include <set>

#include "ggml/status.h"
#include "load/unread.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

using Names = std::set<std::string>;

// "blk.3.attn_q.weight" -> "blk.*.attn_q.weight": of the tensors of all layers one is enough.
std::string of_any_layer(const std::string& name) {
    const int64_t layer = layer_of(name);
    if (layer < 0) return name;
    return "blk.*" + name.substr(4 + std::to_string(layer).size());
}

// Names for a message: four at most, and how many more there are.
std::string some(const Names& names) {
    constexpr size_t kMost = 4;
    std::string text;
    size_t n = 0;
    for (const std::string& name : names) {
        if (n++ < kMost) text += (text.empty() ? "" : ", ") + ggml::shown(name);
    }
    if (n > kMost) text += ggml::format(" and %zu more", n - kMost);
    return text;
}

// The file read as one of a family: tensors that the family needs and the file lacks, and the other
// way round.
struct Reading {
    const char* family;
    Names lacking, unread;
    size_t distance() const { return lacking.size() + unread.size(); }
};

Reading read_as(Model& model, const Family& family) {
    const ggml::Gguf& gguf = model.file.gguf;
    model.config = read_config(gguf, family, model.vocab.size());
    model.layers.clear();
    model.layers.resize(size_t(model.config.n_layer));
    Reading reading{family.architecture, {}, {}};
    std::set<std::string> named;
    for (const WeightSpec& w : weight_specs(model, family)) {
        named.insert(w.name);
        if (!gguf.find_tensor(w.name)) reading.lacking.insert(of_any_layer(w.name));
    }
    for (const ggml::TensorInfo& t : gguf.tensors()) {
        const bool guesses = layer_of(t.name) >= model.config.n_layer;
        if (!named.count(t.name) && !guesses) reading.unread.insert(of_any_layer(t.name));
    }
    return reading;
}

std::string nearest(const std::vector<Reading>& readings) {
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(2, readings.size()); i++) {
        const Reading& r = readings[i];
        text += std::string(i ? "; then " : "; nearest is ") + r.family;
        if (!r.lacking.empty()) text += ", which needs " + some(r.lacking);
        if (!r.unread.empty())
            text += (r.lacking.empty() ? ", which lacks " : " and lacks ") + some(r.unread);
    }
    return text;
}

}  // namespace

void refuse_unknown_family(Model& model) {
    const ggml::Gguf& gguf = model.file.gguf;
    const std::string arch(gguf.string("general.architecture"));
    std::vector<Reading> readings;
    std::string known;
    for (const Family& family : all_families()) {
        known += (known.empty() ? "" : ", ") + std::string(family.architecture);
        try {
            readings.push_back(read_as(model, family));
        } catch (const ggml::Error&) {  // a key that it needs is missing or contradicts another
        }
    }
    std::stable_sort(readings.begin(), readings.end(), [](const Reading& a, const Reading& b) {
        return a.distance() < b.distance();
    });
    Names tensors, keys;
    for (const ggml::TensorInfo& t : gguf.tensors()) {
        const std::string name = of_any_layer(t.name);
        const bool read = std::any_of(readings.begin(), readings.end(),
                                      [&](const Reading& r) { return !r.unread.count(name); });
        if (!read) tensors.insert(name);
    }
    for (size_t i = 0; i < gguf.values().size(); i++) {
        const std::string name(gguf.values()[i].first);
        if (name.rfind(arch + ".", 0) == 0 && !gguf.asked(i) && !is_harmless_key(name, arch)) {
            keys.insert(name);
        }
    }
    std::string what = gguf.path() + ": architecture " + ggml::shown(arch.substr(0, 40)) +
                       " is not supported" + nearest(readings);
    if (!readings.empty() && !tensors.empty()) what += "; no family knows tensors " + some(tensors);
    if (!readings.empty() && !keys.empty()) what += "; no family knows keys " + some(keys);
    throw ggml::Error(ggml::Code::unsupported, what + "; known: " + known);
}

}  // namespace powerinfer
