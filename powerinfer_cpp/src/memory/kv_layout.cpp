#include "memory/kv_layout.h"

#include <algorithm>

#include "ggml/sizes.h"
#include "memory/states.h"

namespace powerinfer {

std::vector<KvClass> kv_classes(const std::vector<Layer>& layers) {
    // A layer keeps what those see that read its keys and values.
    std::vector<int64_t> window(layers.size(), 0);
    for (size_t i = 0; i < layers.size(); i++) {
        const Attention* a = layers[i].find<Attention>();
        if (!a) continue;
        if (a->kv_of < 0) {
            window[i] = a->both ? 0 : a->window;
        } else {
            int64_t& of = window[size_t(a->kv_of)];
            of = of && a->window ? std::max(of, a->window) : 0;
        }
    }
    std::vector<KvClass> classes(1);
    for (size_t i = 0; i < layers.size(); i++) {
        const Attention* a = layers[i].find<Attention>();
        if (!a || a->kv_of >= 0) continue;
        auto of = std::find_if(classes.begin(), classes.end(),
                               [&](const KvClass& c) { return c.window == window[i]; });
        if (of == classes.end()) of = classes.insert(of, {window[i], {}, 0});
        of->layers.push_back(int64_t(i));
    }
    return classes;
}

std::vector<KvClass> kv_classes(const std::vector<Layer>& layers, const pi_session_params& p) {
    std::vector<KvClass> classes = kv_classes(layers);
    const int64_t checkpoints = StateLayout(layers) ? p.n_checkpoints : 0;
    const int64_t all = pages_of(p.n_kv) + checkpoints;
    for (KvClass& c : classes) {
        c.n_pages = all;
        if (!c.window || c.window > p.n_kv || p.n_kv_old >= p.n_kv) continue;
        const int64_t in_pass =
            std::min(most_pages_of(c.window - 1 + p.n_ubatch), pages_of(p.n_ctx));
        const int64_t kept = c.window > 1 ? most_pages_of(c.window - 1) : 0;
        const int64_t old = pages_of(std::max<int64_t>(p.n_kv_old, 0));
        c.n_pages = std::min(all, p.n_active * in_pass + checkpoints * kept + old);
    }
    return classes;
}

std::vector<KvRun> kv_runs(const Layer& layer, ggml::DType type) {
    const Attention* a = layer.find<Attention>();
    if (!a || a->kv_of >= 0) return {};
    const auto run = [&](bool keys, int64_t width) {
        return KvRun{keys, a->n_head_kv, width, kKvPage * ggml::info(type).size(width)};
    };
    std::vector<KvRun> runs{run(true, a->head_dim)};
    if (!a->latent) runs.push_back(run(false, a->v_head_dim));
    return runs;
}

KvLayout::KvLayout(const std::vector<Layer>& layers, const std::vector<KvClass>& classes,
                   ggml::DType type, int64_t begin, int64_t end)
    : type_(type), begin_(begin), kinds_(classes.size()), places_(size_t(end - begin)) {
    for (size_t kind = 0; kind < classes.size(); kind++) {
        Kind& of = kinds_[kind];
        of.begin = bytes_;
        for (const int64_t i : classes[kind].layers) {
            if (i < begin || i >= end) continue;
            Place& place = places_[size_t(i - begin)];
            const auto& attention = *layers[size_t(i)].find<Attention>();
            place = {int64_t(kind), attention.both ? 0 : of.page_bytes, 0, attention.v_head_dim,
                     kv_runs(layers[size_t(i)], type)};
            for (const KvRun& run : place.runs) place.bytes += run.n_head * run.bytes;
            of.page_bytes = std::max(of.page_bytes, place.begin + place.bytes);
            if (attention.both && !of.runs.empty()) continue;
            of.runs.insert(of.runs.end(), place.runs.begin(), place.runs.end());
        }
        bytes_ = ggml::size_sum(
            bytes_, ggml::size_product(uint64_t(classes[kind].n_pages), uint64_t(of.page_bytes)));
    }
}

ggml::KvLayer KvLayout::layer(uint8_t* memory, int64_t i) const {
    const Place& place = places_[size_t(i - begin_)];
    const KvRun& keys = place.runs[0];
    uint8_t* const k = page(memory, place.kind, 0) + place.begin;
    uint8_t* const v = place.runs.size() > 1 ? k + keys.n_head * keys.bytes : nullptr;
    return {type_, keys.n_head, keys.width, place.v_head_dim, k, v, page_bytes(place.kind)};
}

}  // namespace powerinfer
