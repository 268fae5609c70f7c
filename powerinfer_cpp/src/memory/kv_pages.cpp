#include "memory/kv_pages.h"

#include <algorithm>
#include <cstring>

namespace powerinfer {

PagePool::PagePool(ggml::Carver& carver, int64_t n_pages) : n_pages_(n_pages) {
    carver.take(owners_, {n_pages_});
    carver.take(hidden_, {n_pages_});
    carver.take(free_, {n_pages_});
}

int32_t PagePool::take() {
    const int32_t page = n_free_ ? free_[--n_free_] : int32_t(n_touched_++);
    owners_[page] = 1;
    hidden_[page] = 0;
    return page;
}

void PagePool::own(int32_t page, bool hidden, int32_t change) {
    const auto only_hidden = [&] { return owners_[page] && owners_[page] == hidden_[page]; };
    n_only_hidden_ -= only_hidden();
    owners_[page] += change;
    hidden_[page] += hidden ? change : 0;
    n_only_hidden_ += only_hidden();
}

void PagePool::give_back(int32_t page, bool hidden) {
    own(page, hidden, -1);
    if (owners_[page] == 0) free_[n_free_++] = page;
}

KvPages::KvPages(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& p,
                 int64_t n_ram)
    : type_(ggml::DType(p.type_k)),
      classes_(kv_classes(layers, p)),
      all_(layers, classes_, type_, 0, int64_t(layers.size())),
      ram_(layers, classes_, type_, 0, n_ram) {
    carver.take(memory_, {int64_t(ram_.bytes())});
    for (const KvClass& of : classes_) pools_.emplace_back(carver, of.n_pages);
    carver.take(labels_, {classes_[0].n_pages});
}

bool KvPages::forgets() const {
    return std::any_of(classes_.begin(), classes_.end(),
                       [&](const KvClass& of) { return of.n_pages < classes_[0].n_pages; });
}

void KvPages::copy(int64_t kind, int32_t from, int32_t to, int64_t n) const {
    if (kind == 0) labels_[to] = labels_[from];
    const ptrdiff_t apart = (int64_t(to) - from) * ram_.page_bytes(kind);
    const bool blocks = ggml::info(type_).is_quantised();
    ram_.each_run(memory_, kind, from, [&](uint8_t* at, const KvRun& run) {
        // A position is spread over the run, unless it is a row of floats.
        const bool whole = run.keys || blocks;
        std::memcpy(at + apart, at, size_t(whole ? run.bytes : n * run.bytes / kKvPage));
    });
    if (device_) device_->copy_page(kind, from, to);
}

void KvPages::read(int64_t kind, int32_t page, int64_t n, uint8_t* out) const {
    ram_.each_run(memory_, kind, page, [&](const uint8_t* at, const KvRun& run) {
        (run.keys ? ggml::keys_to_rows : ggml::values_to_rows)(type_, run.width, at, n, out);
        out += n * run.bytes / kKvPage;
    });
    if (device_) device_->read_page(kind, page, n, out);
}

void KvPages::write(int64_t kind, int32_t page, int64_t n, const uint8_t* from) const {
    ram_.each_run(memory_, kind, page, [&](uint8_t* at, const KvRun& run) {
        (run.keys ? ggml::rows_to_keys : ggml::rows_to_values)(type_, run.width, from, n, at);
        from += n * run.bytes / kKvPage;
    });
    if (device_) device_->write_page(kind, page, n, from);
}

}  // namespace powerinfer
