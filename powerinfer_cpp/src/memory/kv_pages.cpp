#include "memory/kv_pages.h"

#include <cstring>

namespace powerinfer {

KvPages::KvPages(ggml::Carver& carver, const Config& c, const pi_session_params& p, int64_t n_ram)
    : type_(ggml::DType(p.type_k)),
      n_head_kv_(c.n_head_kv),
      head_dim_(c.head_dim),
      all_runs_(c.n_layer * 2 * c.n_head_kv),
      runs_(n_ram * 2 * c.n_head_kv),
      run_bytes_(kKvPage * ggml::info(type_).size(c.head_dim)),
      n_pages_(kv_pages(p)) {
    carver.take(memory_, {n_pages_, runs_, run_bytes_});
    carver.take(labels_, {n_pages_});
    carver.take(owners_, {n_pages_});
    carver.take(free_, {n_pages_});
}

int32_t KvPages::take() {
    const int32_t page = n_free_ ? free_[--n_free_] : int32_t(n_touched_++);
    owners_[page] = 1;
    return page;
}

void KvPages::give_back(int32_t page) {
    if (--owners_[page] == 0) free_[n_free_++] = page;
}

void KvPages::copy(int32_t from, int32_t to, int64_t n) const {
    labels_[to] = labels_[from];
    const size_t size = size_t(n * run_bytes_ / kKvPage);
    const ptrdiff_t apart = (int64_t(to) - from) * runs_ * run_bytes_;
    for (int64_t run = 0; run < runs_; run++) {
        uint8_t* const bytes = memory_ + (from * runs_ + run) * run_bytes_;
        std::memcpy(bytes + apart, bytes, size);
    }
    if (device_) device_->copy_page(from, to);
}

void KvPages::read(int32_t page, int64_t n, uint8_t* out) const {
    const int64_t size = n * run_bytes_ / kKvPage;
    for (int64_t run = 0; run < runs_; run++, out += size) {
        std::memcpy(out, memory_ + (page * runs_ + run) * run_bytes_, size_t(size));
    }
    if (device_) device_->read_page(page, n, out);
}

void KvPages::write(int32_t page, int64_t n, const uint8_t* from) const {
    const int64_t size = n * run_bytes_ / kKvPage;
    for (int64_t run = 0; run < runs_; run++, from += size) {
        std::memcpy(memory_ + (page * runs_ + run) * run_bytes_, from, size_t(size));
    }
    if (device_) device_->write_page(page, n, from);
}

ggml::KvLayer KvPages::layer(int64_t i) const {
    const int64_t per_kind = n_head_kv_ * run_bytes_;
    uint8_t* keys = memory_ + i * 2 * per_kind;
    return {type_, n_head_kv_, head_dim_, keys, keys + per_kind, runs_ * run_bytes_};
}

}  // namespace powerinfer
