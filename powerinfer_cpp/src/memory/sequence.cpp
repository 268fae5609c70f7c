#include "memory/sequence.h"

#include "ggml/status.h"

namespace powerinfer {

Sequences::Sequences(ggml::Carver& carver, const std::vector<Layer>& layers,
                     const pi_session_params& p, int64_t n_ram)
    : kv_(carver, layers, p, n_ram), n_seq_(p.n_seq), n_ctx_(p.n_ctx) {
    carver.take(length_, {p.n_seq});
    carver.take(pages_, {p.n_seq, pages_of(p.n_ctx)});
}

int64_t Sequences::pages_for(const int64_t* added) const {
    const auto continues_in = [&](int32_t seq, int32_t page) {  // a page that it has begun
        return added[seq] && length_[seq] % kKvPage && pages(seq)[length_[seq] / kKvPage] == page;
    };
    int64_t n = 0;
    for (int32_t i = 0; i < n_seq_; i++) {
        if (!added[i]) continue;
        n += pages_of(length_[i] + added[i]) - pages_of(length_[i]);
        if (length_[i] % kKvPage == 0) continue;
        const int32_t page = pages(i)[length_[i] / kKvPage];
        if (!kv_.is_shared(page)) continue;
        // The last owner keeps the page, the others copy it.
        int32_t copies = 1;
        for (int32_t j = 0; j < i; j++) copies += continues_in(j, page);
        n += copies < kv_.owners(page);
    }
    return n;
}

int64_t Sequences::own_pages(int32_t seq) const {
    int64_t n = 0;
    for (int64_t i = 0; i < pages_of(length_[seq]); i++) n += !kv_.is_shared(pages(seq)[i]);
    return n;
}

void Sequences::require_pages(const char* what, int64_t n, int64_t returned) const {
    const int64_t free = free_pages() + returned;
    if (n <= free) return;
    throw ggml::Error(
        ggml::Code::context,
        ggml::format("%s would take %lld positions of the pool that all sequences share, in whole "
                     "pages; %lld of its %lld are free (n_kv)",
                     what, (long long)(n * kKvPage), (long long)(free * kKvPage),
                     (long long)(kv_.n_pages() * kKvPage)));
}

ggml::KvSlot Sequences::append(int32_t seq, int32_t token, bool generated) {
    const int64_t position = length_[seq]++, at = position % kKvPage;
    int32_t& page = pages_[seq * pages_of(n_ctx_) + position / kKvPage];
    if (at == 0) {
        page = kv_.take();
    } else if (kv_.is_shared(page)) {
        const int32_t own = kv_.take();
        kv_.copy(page, own, at);
        kv_.give_back(page);
        page = own;
    }
    KvPages::Label& label = kv_.label(page);
    label.token[at] = token;
    label.generated = (label.generated & ~(uint64_t(1) << at)) | uint64_t(generated) << at;
    return {page, int32_t(at)};
}

void Sequences::truncate(int32_t seq, int64_t n) {
    for (int64_t i = pages_of(n); i < pages_of(length_[seq]); i++) kv_.give_back(pages(seq)[i]);
    length_[seq] = n;
}

void Sequences::copy(int32_t from, int32_t to, int64_t n) {
    if (from == to) return truncate(to, n);
    truncate(to, 0);
    for (int64_t i = 0; i < pages_of(n); i++) {
        pages_[to * pages_of(n_ctx_) + i] = pages(from)[i];
        kv_.share(pages(from)[i]);
    }
    length_[to] = n;
}

int32_t Sequences::token(int32_t seq, int64_t position) const {
    return label(seq, position).token[position % kKvPage];
}

bool Sequences::generated(int32_t seq, int64_t position) const {
    return label(seq, position).generated >> position % kKvPage & 1;
}

}  // namespace powerinfer
