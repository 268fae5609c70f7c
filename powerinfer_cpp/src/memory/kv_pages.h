// Keys and values of positions, in pages of 64 positions (as in PagedAttention, arXiv 2309.06180).
// A page holds those of all layers, and sequences can share it.
#pragma once

#include "ggml/attention.h"
#include "ggml/carver.h"
#include "model/model.h"

namespace powerinfer {

using ggml::kKvPage;

// Pages that a sequence of n_ctx positions needs.
inline int64_t pages_of(int64_t n_ctx) {
    return (n_ctx + kKvPage - 1) / kKvPage;
}

// Keys and values of the layers that a device has, in pages of the same numbers. Runs are in the
// order of KvPages, without gaps.
class DeviceKv {
 public:
    virtual ~DeviceKv() = default;
    virtual void copy_page(int32_t from, int32_t to) = 0;
    // The first n positions of a page.
    virtual void read_page(int32_t page, int64_t n, uint8_t* out) = 0;
    virtual void write_page(int32_t page, int64_t n, const uint8_t* from) = 0;
};

// The keys and values of a layer in a page: a run of kKvPage positions for each head of the keys,
// then of the values. No runs where a layer has no attention, or reads those of another one, and
// none of values where keys hold them.
struct KvRuns {
    int64_t n_head_kv = 0, head_dim = 0, v_head_dim = 0;
    int64_t k_bytes = 0, v_bytes = 0;  // of a run

    int64_t bytes() const { return n_head_kv * (k_bytes + v_bytes); }
};
KvRuns kv_runs(const Layer& layer, ggml::DType type);
// Bytes of a page, over layers from `first` on.
int64_t kv_page_bytes(const std::vector<Layer>& layers, int64_t first, ggml::DType type);

// Pages of the pool that all sequences of a session share, and one for each checkpoint: where it
// ends within a page, its sequence goes on in a copy. params must be resolved.
inline int64_t kv_pages(const pi_session_params& params) {
    return pages_of(params.n_kv) + params.n_checkpoints;
}

class KvPages {
 public:
    KvPages() = default;
    // params must be resolved. RAM has the first n_ram layers, a device the others (attach).
    KvPages(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& params,
            int64_t n_ram);
    void attach(DeviceKv* device) { device_ = device; }

    // The positions of a page: tokens, and a bit for each one that was generated. Keys and values
    // follow from these.
    struct Label {
        uint64_t generated;
        int32_t token[kKvPage];
    };

    // Returns a page with one owner. There must be a free one.
    int32_t take();
    int64_t n_pages() const { return n_pages_; }
    int64_t n_free() const { return n_pages_ - n_touched_ + n_free_; }
    // hidden: the owner is a checkpoint.
    void share(int32_t page, bool hidden) { own(page, hidden, 1); }
    void give_back(int32_t page, bool hidden);
    int32_t owners(int32_t page) const { return owners_[page]; }
    int32_t hidden_owners(int32_t page) const { return hidden_[page]; }
    bool is_shared(int32_t page) const { return owners(page) > 1; }
    // Pages that checkpoints alone have.
    int64_t n_hidden() const { return n_only_hidden_; }
    // Copies the first n positions of a page and their labels. What follows them may change.
    void copy(int32_t from, int32_t to, int64_t n) const;

    Label& label(int32_t page) const { return labels_[page]; }
    // The keys and values of a layer in RAM, for the operators.
    ggml::KvLayer layer(int64_t i) const;
    ggml::DType type() const { return type_; }
    // The first n positions of a page, n * position_bytes(): for each layer rows of the keys, then
    // of the values, of each head.
    void read(int32_t page, int64_t n, uint8_t* out) const;
    void write(int32_t page, int64_t n, const uint8_t* from) const;
    // Bytes of a position: of one layer, and over all layers.
    int64_t position_bytes(int64_t layer) const { return runs_[size_t(layer)].bytes() / kKvPage; }
    int64_t position_bytes() const { return all_bytes_ / kKvPage; }

 private:
    void own(int32_t page, bool hidden, int32_t change);
    template <typename F>
    void each_run(int32_t page, const F& f) const;

    ggml::DType type_ = ggml::DType::F16;
    std::vector<KvRuns> runs_;                // of all layers
    std::vector<int64_t> begin_;              // of each layer's runs in a page, bytes
    int64_t n_ram_ = 0;                       // layers
    int64_t all_bytes_ = 0, page_bytes_ = 0;  // of a page: of all layers, and of those in RAM
    uint8_t* memory_ = nullptr;               // [pages][n_ram] KvRuns
    DeviceKv* device_ = nullptr;              // null: every layer is in RAM
    Label* labels_ = nullptr;                 // [pages]
    int32_t* owners_ = nullptr;               // [pages]
    int32_t* hidden_ = nullptr;               // [pages]: owners that are checkpoints
    int32_t* free_ = nullptr;                 // [pages]: pages given back
    int64_t n_pages_ = 0;
    int64_t n_free_ = 0, n_touched_ = 0;  // pages >= n_touched_ were never used
    int64_t n_only_hidden_ = 0;
};

}  // namespace powerinfer
