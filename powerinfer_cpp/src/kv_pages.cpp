#include "kv_pages.h"

#include <cstring>

namespace powerinfer {

KvPages::KvPages(ggml::Carver& carver, const Config& c, const pi_session_params& p)
    : type_(ggml::DType(p.type_k)),
      n_head_kv_(c.n_head_kv),
      head_dim_(c.head_dim),
      runs_(c.n_layer * 2 * c.n_head_kv),
      run_bytes_(kKvPage * ggml::info(type_).size(c.head_dim)) {
    const int64_t pages = p.n_seq * pages_of(p.n_ctx);
    carver.take(memory_, {pages, runs_, run_bytes_});
    carver.take(labels_, {pages});
    carver.take(owners_, {pages});
    carver.take(free_, {pages});
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
    const ptrdiff_t apart = (int64_t(to) - from) * runs_ * run_bytes_;
    each_run(from, n, [&](uint8_t* run, size_t size) { std::memcpy(run + apart, run, size); });
}

ggml::KvLayer KvPages::layer(int64_t i) const {
    const int64_t per_kind = n_head_kv_ * run_bytes_;
    uint8_t* keys = memory_ + i * 2 * per_kind;
    return {type_, n_head_kv_, head_dim_, keys, keys + per_kind, runs_ * run_bytes_};
}

}  // namespace powerinfer
