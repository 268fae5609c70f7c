// Keys and values of positions, in pages of 64 positions (as in PagedAttention, arXiv 2309.06180).
// A page holds those of all layers, and sequences can share it.
#pragma once

#include "ggml/carver.h"
#include "ggml/ops.h"
#include "model.h"

namespace powerinfer {

using ggml::kKvPage;

// Pages that a sequence of n_ctx positions needs.
inline int64_t pages_of(int64_t n_ctx) {
    return (n_ctx + kKvPage - 1) / kKvPage;
}

class KvPages {
 public:
    KvPages() = default;
    // params must be resolved. Takes enough pages for n_seq sequences that share none.
    KvPages(ggml::Carver& carver, const Config& config, const pi_session_params& params);

    // The positions of a page: tokens, and a bit for each one that was generated. Keys and values
    // follow from these.
    struct Label {
        uint64_t generated;
        int32_t token[kKvPage];
    };

    // Returns a page with one owner. There are always enough pages for sequences of up to n_ctx
    // positions.
    int32_t take();
    void share(int32_t page) { owners_[page]++; }
    void give_back(int32_t page);
    bool is_shared(int32_t page) const { return owners_[page] > 1; }
    // Copies the first n positions of a page and their labels.
    void copy(int32_t from, int32_t to, int64_t n) const;

    Label& label(int32_t page) const { return labels_[page]; }
    // A layer's keys and values, for the operators.
    ggml::KvLayer layer(int64_t i) const;
    ggml::DType type() const { return type_; }
    // Calls f(bytes, size) for the first n positions of a page: for each layer the keys, then the
    // values, of each head.
    template <typename F>
    void each_run(int32_t page, int64_t n, const F& f) const {
        for (int64_t run = 0; run < runs_; run++) {
            f(memory_ + (page * runs_ + run) * run_bytes_, size_t(n * run_bytes_ / kKvPage));
        }
    }
    int64_t position_bytes() const { return runs_ * run_bytes_ / kKvPage; }  // over all layers

 private:
    ggml::DType type_ = ggml::DType::F16;
    int64_t n_head_kv_ = 0, head_dim_ = 0;
    int64_t runs_ = 0, run_bytes_ = 0;    // n_layer * 2 * n_head_kv; bytes per head and page
    uint8_t* memory_ = nullptr;           // [pages][n_layer][keys, values][n_head_kv][64][head_dim]
    Label* labels_ = nullptr;             // [pages]
    int32_t* owners_ = nullptr;           // [pages]
    int32_t* free_ = nullptr;             // [pages]: pages given back
    int64_t n_free_ = 0, n_touched_ = 0;  // pages >= n_touched_ were never used
};

}  // namespace powerinfer
