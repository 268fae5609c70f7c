// Pages of keys and values (kv_layout.h), which sequences can share.
#pragma once

#include "ggml/carver.h"
#include "memory/device_kv.h"
#include "memory/kv_layout.h"

namespace powerinfer {

// Which pages of a class are in use, and by how many. An owner is a sequence, or a hidden one: a
// checkpoint.
class PagePool {
 public:
    PagePool() = default;
    PagePool(ggml::Carver& carver, int64_t n_pages);

    // Returns a page with one owner. There must be a free one.
    int32_t take();
    int64_t n_pages() const { return n_pages_; }
    int64_t n_free() const { return n_pages_ - n_touched_ + n_free_; }
    void share(int32_t page, bool hidden) { own(page, hidden, 1); }
    void give_back(int32_t page, bool hidden);
    int32_t owners(int32_t page) const { return owners_[page]; }
    int32_t hidden_owners(int32_t page) const { return hidden_[page]; }
    bool is_shared(int32_t page) const { return owners(page) > 1; }
    // Pages that checkpoints alone have.
    int64_t n_hidden() const { return n_only_hidden_; }

 private:
    void own(int32_t page, bool hidden, int32_t change);

    int32_t* owners_ = nullptr;  // [pages]
    int32_t* hidden_ = nullptr;  // [pages]: owners that are checkpoints
    int32_t* free_ = nullptr;    // [pages]: pages given back
    int64_t n_pages_ = 0;
    int64_t n_free_ = 0, n_touched_ = 0;  // pages >= n_touched_ were never used
    int64_t n_only_hidden_ = 0;
};

class KvPages {
 public:
    KvPages() = default;
    // params must be resolved. RAM has the first n_ram layers, a device the others (attach).
    KvPages(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& params,
            int64_t n_ram);
    void attach(DeviceKv* device) { device_ = device; }

    // The positions of a page of the first class: tokens, and a bit for each one that was
    // generated. Keys and values of all classes follow from these.
    struct Label {
        uint64_t generated;
        int32_t token[kKvPage];
    };

    const std::vector<KvClass>& classes() const { return classes_; }
    int64_t n_kinds() const { return all_.n_kinds(); }
    PagePool& pool(int64_t kind) { return pools_[size_t(kind)]; }
    const PagePool& pool(int64_t kind) const { return pools_[size_t(kind)]; }
    // Has a class of layers less room than that of all positions, so that sequences lose what is
    // behind their windows?
    bool forgets() const;
    // Copies the first n positions of a page, in the first class with labels. What follows them may
    // change.
    void copy(int64_t kind, int32_t from, int32_t to, int64_t n) const;

    Label& label(int32_t page) const { return labels_[page]; }
    // The class of a layer with keys and values of its own; and these in RAM, for the operators.
    int64_t kind(int64_t layer) const { return all_.kind(layer); }
    ggml::KvLayer layer(int64_t i) const { return ram_.layer(memory_, i); }
    ggml::DType type() const { return type_; }
    // The first n positions of a page, n * position_bytes(kind): for each layer rows of the keys,
    // then of the values, of each head.
    void read(int64_t kind, int32_t page, int64_t n, uint8_t* out) const;
    void write(int64_t kind, int32_t page, int64_t n, const uint8_t* from) const;
    // Bytes of a position of a class, RAM's and the device's; and of a layer.
    int64_t position_bytes(int64_t kind) const { return all_.page_bytes(kind) / kKvPage; }
    int64_t layer_bytes(int64_t layer) const { return all_.position_bytes(layer); }

 private:
    ggml::DType type_ = ggml::DType::F16;
    std::vector<KvClass> classes_;
    KvLayout all_, ram_;  // of all layers, and of those in RAM
    std::vector<PagePool> pools_;
    uint8_t* memory_ = nullptr;
    DeviceKv* device_ = nullptr;  // null: every layer is in RAM
    Label* labels_ = nullptr;     // [pages of the first class]
};

}  // namespace powerinfer
