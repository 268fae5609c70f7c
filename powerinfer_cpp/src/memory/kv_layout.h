// Where keys and values lie: classes of layers, and the runs of a page. Pages of 64 positions are
// as in PagedAttention (arXiv 2309.06180).
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/attention.h"
#include "model/layer.h"
#include "powerinfer.h"

namespace powerinfer {

using ggml::kKvPage;

// Pages that a sequence of n_ctx positions needs.
inline int64_t pages_of(int64_t n_ctx) {
    return (n_ctx + kKvPage - 1) / kKvPage;
}

// The most pages that n adjacent positions lie in, wherever they begin; n > 0.
inline int64_t most_pages_of(int64_t n) {
    return (n + kKvPage - 2) / kKvPage + 1;
}

// Layers whose rows see the same positions. A page has the keys and values of one class, and each
// class has a pool of pages. The first class sees all positions, and exists without layers, too:
// its pages also stand for the sequence's tokens (KvPages::Label).
struct KvClass {
    int64_t window = 0;           // positions that a row sees, its own too; 0: all
    std::vector<int64_t> layers;  // that have keys and values of their own, ascending
    int64_t n_pages = 0;          // of the pool

    // The first position that a row at position n sees.
    int64_t first_seen(int64_t n) const { return window && n + 1 > window ? n + 1 - window : 0; }
};

// The classes of a model, that of all positions first; n_pages is 0.
std::vector<KvClass> kv_classes(const std::vector<Layer>& layers);
// The same with pools. params must be resolved, but n_kv_old may be negative: then there is no room
// for positions behind windows.
//
// The first pool holds n_kv positions, and with states a page for each checkpoint: where it ends
// within a page, its sequence goes on in a copy. That of a window has room for what n_active
// sequences need at the same time: the window and the rows of a pass; with states for the window of
// each checkpoint; and for n_kv_old positions behind windows.
std::vector<KvClass> kv_classes(const std::vector<Layer>& layers, const pi_session_params& params);

// In a page, kKvPage positions of keys or of values for each of n_head heads.
struct KvRun {
    bool keys = false;
    int64_t n_head = 0, width = 0;  // values of a head
    int64_t bytes = 0;              // of a head
};
// The runs of a layer in the order in which they lie. None where a layer has no attention or reads
// the keys and values of another one, and no values where keys hold them.
std::vector<KvRun> kv_runs(const Layer& layer, ggml::DType type);

// The places of keys and values of layers [begin, end), in RAM or on a device: the pages of one
// class after those of another, and in a page the runs of its layers. Layers that see both sides
// all have the same place: what they keep is of use until the next one is computed.
class KvLayout {
 public:
    KvLayout() = default;
    KvLayout(const std::vector<Layer>& layers, const std::vector<KvClass>& classes,
             ggml::DType type, int64_t begin, int64_t end);

    int64_t n_kinds() const { return int64_t(kinds_.size()); }
    uint64_t bytes() const { return bytes_; }  // of all pages; kMostBytes: too many
    int64_t page_bytes(int64_t kind) const { return kinds_[size_t(kind)].page_bytes; }
    // The class of a layer that has keys and values, and bytes of one of its positions.
    int64_t kind(int64_t layer) const { return places_[size_t(layer - begin_)].kind; }
    int64_t position_bytes(int64_t layer) const {
        return places_[size_t(layer - begin_)].bytes / kKvPage;
    }
    // Where a page begins.
    uint8_t* page(uint8_t* memory, int64_t kind, int32_t page) const {
        const Kind& of = kinds_[size_t(kind)];
        return memory + of.begin + page * of.page_bytes;
    }
    ggml::KvLayer layer(uint8_t* memory, int64_t i) const;
    // Calls f(the run of a head, its KvRun) for all of a page, in their order.
    template <typename F>
    void each_run(uint8_t* memory, int64_t kind, int32_t number, const F& f) const {
        uint8_t* at = page(memory, kind, number);
        for (const KvRun& run : kinds_[size_t(kind)].runs) {
            for (int64_t h = 0; h < run.n_head; h++, at += run.bytes) f(at, run);
        }
    }

 private:
    struct Kind {
        std::vector<KvRun> runs;
        int64_t page_bytes = 0;
        uint64_t begin = 0;  // of its pages
    };
    struct Place {                               // of a layer
        int64_t kind = 0, begin = 0, bytes = 0;  // in a page
        int64_t v_head_dim = 0;
        std::vector<KvRun> runs;
    };
    ggml::DType type_ = ggml::DType::F16;
    int64_t begin_ = 0;  // the first layer
    std::vector<Kind> kinds_;
    std::vector<Place> places_;  // of each layer
    uint64_t bytes_ = 0;
};

}  // namespace powerinfer
