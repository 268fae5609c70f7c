#include "memory/sequence.h"

#include <algorithm>

#include "ggml/status.h"

namespace powerinfer {

Sequences::Sequences(ggml::Carver& carver, const std::vector<Layer>& layers,
                     const pi_session_params& p, int64_t n_ram)
    : kv_(carver, layers, p, n_ram), n_seq_(p.n_seq), n_hidden_(p.n_checkpoints), n_ctx_(p.n_ctx) {
    carver.take(held_, {all()});
    carver.take(pages_, {all(), pages_of(p.n_ctx)});
    if (held_) std::fill_n(held_, all(), Held());
}

int64_t Sequences::pages_for(const int64_t* added) const {
    const auto continues_in = [&](int32_t seq, int32_t page) {  // a page that it has begun
        return added[seq] && length(seq) % kKvPage && pages(seq)[length(seq) / kKvPage] == page;
    };
    int64_t n = 0;
    for (int32_t i = 0; i < n_seq_; i++) {
        if (!added[i]) continue;
        n += pages_of(length(i) + added[i]) - pages_of(length(i));
        if (length(i) % kKvPage == 0) continue;
        const int64_t last = length(i) / kKvPage;
        const int32_t page = pages(i)[last];
        const int64_t owners = kv_.owners(page) - kv_.hidden_owners(page);
        if (owners < 2) continue;
        // The last owner keeps the page, the others copy it.
        int32_t copies = 1;
        for (int32_t j = 0; j < i; j++) copies += continues_in(j, page);
        n += copies < owners;
    }
    return n;
}

int64_t Sequences::own_pages(int32_t seq) const {
    int64_t n = 0;
    for (int64_t i = 0; i < pages_of(length(seq)); i++) n += !is_shared(pages(seq)[i]);
    return n;
}

void Sequences::require_pages(const char* what, int64_t n, int64_t returned) const {
    if (n <= kv_.n_free() - n_hidden_ + returned) return;  // whatever checkpoints have
    const int64_t free = free_pages() + returned;
    if (n <= free) return;
    throw ggml::Error(
        ggml::Code::context,
        ggml::format("%s would take %lld positions of the pool that all sequences share, in whole "
                     "pages; %lld of its %lld are free (n_kv)",
                     what, (long long)(n * kKvPage), (long long)(free * kKvPage),
                     (long long)((kv_.n_pages() - n_hidden_) * kKvPage)));
}

ggml::KvSlot Sequences::append(int32_t seq, int32_t token, bool generated) {
    const int64_t position = length(seq), at = position % kKvPage;
    int32_t& page = pages_[seq * pages_of(n_ctx_) + position / kKvPage];
    // A page that is shared with checkpoints alone need not be copied if they are dropped.
    const auto takes_page = [&] { return at == 0 || kv_.is_shared(page); };
    while (takes_page() && !kv_.n_free()) drop_checkpoint();
    held_[seq].length++;
    if (at == 0) {
        page = kv_.take();
    } else if (kv_.is_shared(page)) {
        const int32_t own = kv_.take();
        kv_.copy(page, own, at);
        kv_.give_back(page, is_hidden(seq));
        page = own;
    }
    KvPages::Label& label = kv_.label(page);
    label.token[at] = token;
    label.generated = (label.generated & ~(uint64_t(1) << at)) | uint64_t(generated) << at;
    return {page, int32_t(at)};
}

void Sequences::replace(int32_t& slot, int32_t by) {
    if (by >= 0) states_.share(by);
    if (slot >= 0) states_.give_back(slot);
    slot = by;
}

void Sequences::forget_call(int32_t seq) {
    replace(held_[seq].before, -1);
    held_[seq].before_n = -1;
}

void Sequences::begin(const int64_t* added) {
    for (int32_t i = 0; i < n_seq_; i++) {
        held_[i].begun = added[i] ? length(i) : -1;
        held_[i].keeps = added[i] <= kReplayedRows;
        if (added[i]) forget_call(i);  // its slot may be needed
    }
}

void Sequences::assign_states(RowsBySequence& rows) {
    for (int64_t i = 0; i < rows.n; i++) {
        SequenceRows& s = rows.sequences[i];
        int32_t& next = held_[s.seq].next;
        const int32_t before = next >= 0 ? next : held_[s.seq].state;
        s.before = before >= 0 ? states_.slot(before) : nullptr;
        if (next < 0) {
            next = states_.take();
        } else if (states_.is_shared(next)) {  // with a checkpoint, which keeps it
            const int32_t own = states_.take();
            states_.give_back(next);
            next = own;
        }
        s.after = states_.slot(next);
        const int64_t first = held_[s.seq].length - s.n - held_[s.seq].begun;
        s.entered = held_[s.seq].keeps ? states_.entered(s.seq, first) : nullptr;
    }
}

void Sequences::commit() {
    for (int32_t i = 0; i < n_seq_; i++) {
        Held& h = held_[i];
        if (h.next < 0) continue;
        if (h.keeps) {
            h.before = h.state;
            h.before_n = h.begun;
        } else if (h.state >= 0) {
            states_.give_back(h.state);
        }
        h.state = h.next;
        h.next = -1;
    }
}

void Sequences::rollback() {
    for (int32_t i = 0; i < n_seq_; i++) {
        replace(held_[i].next, -1);
        if (held_[i].begun >= 0) truncate(i, held_[i].begun);
    }
}

void Sequences::truncate(int32_t seq, int64_t n) {
    for (int64_t i = pages_of(n); i < pages_of(length(seq)); i++) {
        kv_.give_back(pages(seq)[i], is_hidden(seq));
    }
    held_[seq].length = n;
    if (n > 0) return;
    replace(held_[seq].state, -1);
    if (seq < n_seq_) forget_call(seq);
}

void Sequences::clear() {
    for (int32_t i = 0; i < all(); i++) truncate(i, 0);
}

bool Sequences::agree(int32_t a, int32_t b, int64_t n) const {
    for (int64_t i = 0; i < pages_of(n); i++) {
        const int32_t in_a = pages(a)[i], in_b = pages(b)[i];
        if (in_a == in_b) continue;
        const int64_t here = std::min(kKvPage, n - i * kKvPage);
        const KvPages::Label &x = kv_.label(in_a), &y = kv_.label(in_b);
        const uint64_t differ = x.generated ^ y.generated;
        if (here < kKvPage ? differ << (kKvPage - here) : differ) return false;
        if (!std::equal(x.token, x.token + here, y.token)) return false;
    }
    return true;
}

std::optional<Sequences::Known> Sequences::find(int32_t seq, int64_t n) const {
    const Held& h = held_[seq];
    if (n == 0 || !states_) return Known();
    if (n == h.length && h.state >= 0) return Known{h.state};
    if (n == h.before_n && h.before >= 0) return Known{h.before};
    for (int32_t c = n_seq_; c < all(); c++) {
        if (length(c) == n && is_prefix(c, seq)) return Known{held_[c].state, 0, c};
    }
    if (h.before_n >= 0 && n > h.before_n) return Known{h.before, n - h.before_n};
    return std::nullopt;
}

int64_t Sequences::continuable(int32_t seq, int64_t n) const {
    if (find(seq, n)) return n;
    int64_t best = 0;
    for (int32_t c = n_seq_; c < all(); c++) {
        if (length(c) > best && length(c) < n && is_prefix(c, seq)) best = length(c);
    }
    return best;
}

void Sequences::share_pages(int32_t from, int32_t to, int64_t n) {
    for (int64_t i = 0; i < pages_of(n); i++) {
        pages_[to * pages_of(n_ctx_) + i] = pages(from)[i];
        kv_.share(pages(from)[i], is_hidden(to));
    }
    held_[to].length = n;
}

void Sequences::copy(int32_t from, int32_t to, int64_t n, const Known& state) {
    if (state.checkpoint >= 0) held_[state.checkpoint].used = ++clock_;
    if (from == to) {
        truncate(to, n);
    } else {
        truncate(to, 0);
        share_pages(from, to, n);
    }
    if (n > 0) replace(held_[to].state, state.slot);
}

Sequences::Fold Sequences::fold(int32_t seq) {
    int32_t& slot = held_[seq].state;
    const float* const before = slot >= 0 ? states_.slot(slot) : nullptr;
    if (slot < 0) {
        slot = states_.take();
    } else if (states_.is_shared(slot)) {
        const int32_t own = states_.take();
        states_.give_back(slot);
        slot = own;
    }
    return {before, states_.slot(slot)};
}

float* Sequences::new_state(int32_t seq) {
    forget_state(seq);
    held_[seq].state = states_.take();
    return states_.slot(held_[seq].state);
}

void Sequences::forget_state(int32_t seq) {
    forget_call(seq);
    replace(held_[seq].state, -1);
}

double Sequences::worth(int32_t c) const {
    bool of_use = false;
    for (int32_t s = 0; s < n_seq_ && !of_use; s++) of_use = is_prefix(c, s);
    if (!of_use) return 0;
    // Positions that would have to be computed again, from the next checkpoint before.
    int64_t before = 0;
    for (int32_t d = n_seq_; d < all(); d++) {
        if (length(d) > before && length(d) < length(c) && is_prefix(d, c)) before = length(d);
    }
    return double(length(c) - before) / double(1 + clock_ - held_[c].used);
}

int32_t Sequences::drop_checkpoint() {
    int32_t least = -1;
    std::pair<double, int64_t> of_least;
    for (int32_t c = n_seq_; c < all(); c++) {
        if (length(c) == 0) continue;
        const std::pair here{worth(c), held_[c].used};  // of equal ones the older
        if (least >= 0 && here >= of_least) continue;
        least = c;
        of_least = here;
    }
    truncate(least, 0);
    return least;
}

void Sequences::keep_checkpoint(int32_t seq) {
    const int32_t slot = held_[seq].next >= 0 ? held_[seq].next : held_[seq].state;
    if (!keeps_checkpoints() || slot < 0) return;
    int32_t to = -1;
    for (int32_t c = n_seq_; c < all(); c++) {
        if (length(c) == length(seq) && is_prefix(c, seq)) {
            held_[c].used = ++clock_;
            return;
        }
        if (length(c) == 0 && to < 0) to = c;
    }
    if (to < 0) to = drop_checkpoint();
    share_pages(seq, to, length(seq));
    replace(held_[to].state, slot);
    held_[to].used = ++clock_;
}

std::vector<int64_t> Sequences::checkpoints() const {
    std::vector<int64_t> found;
    for (int32_t c = n_seq_; c < all(); c++) {
        if (length(c)) found.push_back(length(c));
    }
    return found;
}

int32_t Sequences::token(int32_t seq, int64_t position) const {
    return label(seq, position).token[position % kKvPage];
}

bool Sequences::generated(int32_t seq, int64_t position) const {
    return label(seq, position).generated >> position % kKvPage & 1;
}

}  // namespace powerinfer
