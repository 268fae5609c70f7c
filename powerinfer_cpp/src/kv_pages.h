// Keys and values of positions, in pages of 64 that hold every layer's and that sequences share.
#pragma once

#include "ggml/carver.h"
#include "ggml/ops.h"
#include "model.h"

namespace powerinfer {

using ggml::kKvPage;

// Pages that sequences of n_ctx positions need.
inline int64_t pages_of(int64_t n_ctx) {
    return (n_ctx + kKvPage - 1) / kKvPage;
}

class KvPages {
 public:
    KvPages() = default;
    // Of resolved parameters: as many pages as n_seq sequences can hold without sharing any.
    KvPages(ggml::Carver& carver, const Config& config, const pi_session_params& params);

    // What a page's positions are: their tokens, and a bit for each that was generated. They decide
    // how its keys and values came about.
    struct Label {
        uint64_t generated;
        int32_t token[kKvPage];
    };

    // A page with one owner. Those who hold no more than n_ctx positions each never run out.
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
    // Calls f(bytes, size) for the keys, then the values, of each head of each layer at the first n
    // positions of a page.
    template <typename F>
    void each_run(int32_t page, int64_t n, const F& f) const {
        for (int64_t run = 0; run < runs_; run++) {
            f(memory_ + (page * runs_ + run) * run_bytes_, size_t(n * run_bytes_ / kKvPage));
        }
    }
    int64_t position_bytes() const { return runs_ * run_bytes_ / kKvPage; }  // of all layers

 private:
    ggml::DType type_ = ggml::DType::F16;
    int64_t n_head_kv_ = 0, head_dim_ = 0;
    int64_t runs_ = 0, run_bytes_ = 0;  // n_layer * 2 * n_head_kv; bytes of 64 positions of a head
    uint8_t* memory_ = nullptr;         // [pages][n_layer][keys, values][n_head_kv][64][head_dim]
    Label* labels_ = nullptr;           // [pages]
    int32_t* owners_ = nullptr;         // [pages]
    int32_t* free_ = nullptr;           // [pages]: those given back
    int64_t n_free_ = 0, n_touched_ = 0;  // pages from n_touched_ on were never taken
};

}  // namespace powerinfer
