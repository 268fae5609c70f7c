#include "memory/kv_pages.h"

#include <cstring>

namespace powerinfer {

KvRuns kv_runs(const Layer& layer, ggml::DType type) {
    const auto* a = layer.find<Attention>();
    if (!a || a->kv_of >= 0) return {};
    const auto run = [&](int64_t width) { return kKvPage * ggml::info(type).size(width); };
    const int64_t v_bytes = a->latent ? 0 : run(a->v_head_dim);
    return {a->n_head_kv, a->head_dim, a->v_head_dim, run(a->head_dim), v_bytes};
}

int64_t kv_page_bytes(const std::vector<Layer>& layers, int64_t first, ggml::DType type) {
    int64_t bytes = 0;
    for (size_t i = size_t(first); i < layers.size(); i++)
        bytes += kv_runs(layers[i], type).bytes();
    return bytes;
}

KvPages::KvPages(ggml::Carver& carver, const std::vector<Layer>& layers, const pi_session_params& p,
                 int64_t n_ram)
    : type_(ggml::DType(p.type_k)),
      n_ram_(n_ram),
      all_bytes_(kv_page_bytes(layers, 0, type_)),
      page_bytes_(all_bytes_ - kv_page_bytes(layers, n_ram, type_)),
      n_pages_(kv_pages(p)) {
    int64_t begin = 0;
    for (const Layer& layer : layers) {
        begin_.push_back(begin);
        begin += runs_.emplace_back(kv_runs(layer, type_)).bytes();
    }
    carver.take(memory_, {n_pages_, page_bytes_});
    carver.take(labels_, {n_pages_});
    carver.take(owners_, {n_pages_});
    carver.take(hidden_, {n_pages_});
    carver.take(free_, {n_pages_});
}

int32_t KvPages::take() {
    const int32_t page = n_free_ ? free_[--n_free_] : int32_t(n_touched_++);
    owners_[page] = 1;
    hidden_[page] = 0;
    return page;
}

void KvPages::own(int32_t page, bool hidden, int32_t change) {
    const auto only_hidden = [&] { return owners_[page] && owners_[page] == hidden_[page]; };
    n_only_hidden_ -= only_hidden();
    owners_[page] += change;
    hidden_[page] += hidden ? change : 0;
    n_only_hidden_ += only_hidden();
}

void KvPages::give_back(int32_t page, bool hidden) {
    own(page, hidden, -1);
    if (owners_[page] == 0) free_[n_free_++] = page;
}

// Calls f(run, its bytes, the width of its rows, has it keys?) for all runs of a page in RAM, in
// their order.
template <typename F>
void KvPages::each_run(int32_t page, const F& f) const {
    uint8_t* at = memory_ + page * page_bytes_;
    for (int64_t i = 0; i < n_ram_; i++) {
        const KvRuns& runs = runs_[size_t(i)];
        for (int64_t h = 0; h < runs.n_head_kv; h++, at += runs.k_bytes) {
            f(at, runs.k_bytes, runs.head_dim, true);
        }
        for (int64_t h = 0; runs.v_bytes && h < runs.n_head_kv; h++, at += runs.v_bytes) {
            f(at, runs.v_bytes, runs.v_head_dim, false);
        }
    }
}

void KvPages::copy(int32_t from, int32_t to, int64_t n) const {
    labels_[to] = labels_[from];
    const ptrdiff_t apart = (int64_t(to) - from) * page_bytes_;
    const bool blocks = ggml::info(type_).is_quantised();
    each_run(from, [&](uint8_t* run, int64_t bytes, int64_t, bool keys) {
        // A position is spread over the run, unless it is a row of floats.
        std::memcpy(run + apart, run, size_t(keys || blocks ? bytes : n * bytes / kKvPage));
    });
    if (device_) device_->copy_page(from, to);
}

void KvPages::read(int32_t page, int64_t n, uint8_t* out) const {
    each_run(page, [&](const uint8_t* run, int64_t bytes, int64_t width, bool keys) {
        (keys ? ggml::keys_to_rows : ggml::values_to_rows)(type_, width, run, n, out);
        out += n * bytes / kKvPage;
    });
    if (device_) device_->read_page(page, n, out);
}

void KvPages::write(int32_t page, int64_t n, const uint8_t* from) const {
    each_run(page, [&](uint8_t* run, int64_t bytes, int64_t width, bool keys) {
        (keys ? ggml::rows_to_keys : ggml::rows_to_values)(type_, width, from, n, run);
        from += n * bytes / kKvPage;
    });
    if (device_) device_->write_page(page, n, from);
}

ggml::KvLayer KvPages::layer(int64_t i) const {
    uint8_t* const keys = memory_ + begin_[size_t(i)];
    const KvRuns& runs = runs_[size_t(i)];
    uint8_t* const values = runs.v_bytes ? keys + runs.n_head_kv * runs.k_bytes : nullptr;
    return {type_, runs.n_head_kv, runs.head_dim, runs.v_head_dim, keys, values, page_bytes_};
}

}  // namespace powerinfer
