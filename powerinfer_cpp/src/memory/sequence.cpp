#include "memory/sequence.h"

#include <algorithm>
#include <utility>

#include "ggml/status.h"

namespace powerinfer {

Sequences::Sequences(ggml::Carver& carver, const std::vector<Layer>& layers,
                     const pi_session_params& p, int64_t n_ram)
    : kv_(carver, layers, p, n_ram),
      n_seq_(p.n_seq),
      n_hidden_(p.n_checkpoints),
      n_active_(p.n_active),
      n_ctx_(p.n_ctx),
      n_reserve_(pool().n_pages() - pages_of(p.n_kv)) {
    carver.take(held_, {all()});
    carver.take(pages_, {kv_.n_kinds(), all(), pages_of(p.n_ctx)});
    carver.take(first_, {kv_.n_kinds(), all()});
    if (!held_) return;  // counted only
    std::fill_n(held_, all(), Held());
    std::fill_n(first_, kv_.n_kinds() * all(), 0);
}

int64_t Sequences::first_cut(int32_t seq) const {
    if (states_) return std::max<int64_t>(1, length(seq) + !find(seq, length(seq)));
    int64_t n = 1;
    for (int64_t kind = 1; kind < kv_.n_kinds(); kind++) {
        const int64_t begin = first_page(kind, seq) * kKvPage;
        if (begin) n = std::max(n, begin + kv_.classes()[size_t(kind)].window - 1);
    }
    return n;
}

bool Sequences::has_windows(int32_t seq, int64_t n) const {
    for (int64_t kind = 1; n && kind < kv_.n_kinds(); kind++) {
        const int64_t begin = first_page(kind, seq) * kKvPage;
        if (begin > kv_.classes()[size_t(kind)].first_seen(n)) return false;
    }
    return true;
}

int64_t Sequences::pages_for(const int64_t* added) const {
    const auto continues_in = [&](int32_t seq, int32_t page) {  // a page that it has begun
        return added[seq] && length(seq) % kKvPage && pages(0, seq)[length(seq) / kKvPage] == page;
    };
    int64_t n = 0;
    for (int32_t i = 0; i < n_seq_; i++) {
        if (!added[i]) continue;
        n += pages_of(length(i) + added[i]) - pages_of(length(i));
        if (length(i) % kKvPage == 0) continue;
        const int64_t last = length(i) / kKvPage;
        const int32_t page = pages(0, i)[last];
        const int64_t owners = pool().owners(page) - pool().hidden_owners(page);
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
    for (int64_t i = 0; i < pages_of(length(seq)); i++) n += !is_shared(pages(0, seq)[i]);
    return n;
}

void Sequences::require_pages(const char* what, int64_t n, int64_t returned) const {
    if (n <= pool().n_free() - n_reserve_ + returned) return;  // whatever checkpoints have
    const int64_t free = free_pages() + returned;
    if (n <= free) return;
    throw ggml::Error(
        ggml::Code::context,
        ggml::format("%s would take %lld positions of the pool that all sequences share, in whole "
                     "pages; %lld of its %lld are free (n_kv)",
                     what, (long long)(n * kKvPage), (long long)(free * kKvPage),
                     (long long)((pool().n_pages() - n_reserve_) * kKvPage)));
}

void Sequences::wake(const int64_t* added) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_seq_; i++) n += added[i] || (length(i) && !held_[i].rests);
    if (n > n_active_ && kv_.forgets()) {
        throw ggml::Error(ggml::Code::context,
                          ggml::format("the windows of %d sequences have room, and %d would be "
                                       "continued in turn (n_active)",
                                       n_active_, n));
    }
    for (int32_t i = 0; i < n_seq_; i++) {
        if (added[i]) rest(i, false);
    }
}

void Sequences::restore_end(int32_t seq) {
    const Known known = *find(seq, length(seq));
    if (known.checkpoint >= 0) copy(seq, seq, length(seq), known);
}

ggml::KvSlot Sequences::next_slot(int64_t kind, int32_t seq) {
    const int64_t position = length(seq), at = position % kKvPage;
    PagePool& pool = kv_.pool(kind);
    int32_t& page = table(kind, seq)[position / kKvPage];
    // A page that is shared with checkpoints alone need not be copied if they are dropped.
    const auto takes_page = [&] { return at == 0 || pool.is_shared(page); };
    while (takes_page() && !pool.n_free()) make_room(kind);
    if (at == 0) {
        page = pool.take();
    } else if (pool.is_shared(page)) {
        const int32_t own = pool.take();
        kv_.copy(kind, page, own, at);
        pool.give_back(page, is_hidden(seq));
        page = own;
    }
    return {page, int32_t(at)};
}

void Sequences::label_next(int32_t seq, int32_t token, bool generated) {
    const int64_t at = held_[seq].length++ % kKvPage;
    KvPages::Label& label = this->label(seq, length(seq) - 1);
    label.token[at] = token;
    label.generated = (label.generated & ~(uint64_t(1) << at)) | uint64_t(generated) << at;
}

int64_t Sequences::needed_from(int64_t kind, int32_t seq, bool in_pass) const {
    const Held& h = held_[seq];
    const int64_t next = h.begun < 0 ? h.length : in_pass ? h.passed : h.begun;
    return kv_.classes()[size_t(kind)].first_seen(next) / kKvPage;
}

void Sequences::forget_before(int32_t seq, int64_t kind, int64_t page) {
    int64_t& begin = first(kind, seq);
    for (; begin < std::min(page, pages_of(length(seq))); begin++) {
        kv_.pool(kind).give_back(table(kind, seq)[begin], is_hidden(seq));
    }
}

// In this order: a page behind a window, of the sequence that was not continued for longest; what
// only a call that fails would go back to; a checkpoint; the window of a sequence that rests. Of
// pages of all positions checkpoints alone give some up.
void Sequences::make_room(int64_t kind) {
    const auto least_used = [&](const auto& gives) {
        int32_t found = -1;
        for (int32_t i = 0; i < n_seq_; i++) {
            if (gives(i) && (found < 0 || held_[i].used < held_[found].used)) found = i;
        }
        return found;
    };
    const auto behind = [&](bool in_pass) {
        return least_used(
            [&](int32_t seq) { return first_page(kind, seq) < needed_from(kind, seq, in_pass); });
    };
    const auto drop_first = [&](int32_t seq) {
        if (seq >= 0) forget_before(seq, kind, first_page(kind, seq) + 1);
        return seq >= 0;
    };
    if (drop_first(behind(false)) || drop_first(behind(true))) return;
    if (drop_checkpoint() >= 0) return;
    const int32_t resting = least_used([&](int32_t seq) {
        return kind && held_[seq].rests && first_page(kind, seq) < pages_of(length(seq));
    });
    if (resting >= 0) return forget_before(resting, kind, pages_of(length(resting)));
    throw ggml::Error(ggml::Code::internal, "a pool of pages has too few");
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
        if (!added[i]) continue;
        held_[i].used = calls_;
        forget_call(i);  // its slot may be needed
    }
    calls_++;
}

void Sequences::begin_pass() {
    for (int32_t i = 0; i < n_seq_; i++) held_[i].passed = length(i);
}

void Sequences::assign_states(RowsBySequence& rows) {
    for (int64_t i = 0; i < rows.n; i++) {
        SequenceRows& s = rows.sequences[i];
        int32_t& next = held_[s.seq].next;
        const int32_t before = next >= 0 ? next : held_[s.seq].state;
        s.from = before;
        s.before = before >= 0 ? states_.slot(before) : nullptr;
        if (next < 0) {
            next = states_.take();
        } else if (states_.is_shared(next)) {  // with a checkpoint, which keeps it
            const int32_t own = states_.take();
            states_.give_back(next);
            next = own;
        }
        s.to = next;
        s.after = states_.slot(next);
        const int64_t first = held_[s.seq].length - s.n - held_[s.seq].begun;
        s.kept = held_[s.seq].keeps ? first : -1;
        s.entered = held_[s.seq].keeps ? states_.entered(s.seq, first) : nullptr;
    }
}

void Sequences::commit() {
    for (int32_t i = 0; i < n_seq_; i++) {
        Held& h = held_[i];
        const int64_t begun = std::exchange(h.begun, -1);
        if (h.next < 0) continue;
        if (h.keeps) {
            h.before = h.state;
            h.before_n = begun;
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
        const int64_t begun = std::exchange(held_[i].begun, -1);
        if (begun < 0) continue;
        truncate(i, begun);
        if (has_windows(i, begun)) continue;
        const int64_t n = continuable(i, begun);
        copy(i, i, n, *find(i, n));
    }
}

void Sequences::truncate(int32_t seq, int64_t n) {
    for (int64_t kind = 0; kind < kv_.n_kinds(); kind++) {
        int64_t& begin = first(kind, seq);
        for (int64_t i = std::max(begin, pages_of(n)); i < pages_of(length(seq)); i++) {
            kv_.pool(kind).give_back(pages(kind, seq)[i], is_hidden(seq));
        }
        begin = std::min(begin, pages_of(n));
    }
    held_[seq].length = n;
    if (n > 0) return;
    replace(held_[seq].state, -1);
    held_[seq].rests = false;
    if (seq < n_seq_) forget_call(seq);
}

void Sequences::clear() {
    for (int32_t i = 0; i < all(); i++) truncate(i, 0);
}

bool Sequences::agree(int32_t a, int32_t b, int64_t n) const {
    for (int64_t i = 0; i < pages_of(n); i++) {
        const int32_t in_a = pages(0, a)[i], in_b = pages(0, b)[i];
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
    const bool windows = has_windows(seq, n);
    if (n == 0 || (windows && !states_)) return Known();
    if (windows && n == h.length && h.state >= 0) return Known{h.state};
    if (windows && n == h.before_n && h.before >= 0) return Known{h.before};
    for (int32_t c = n_seq_; c < all(); c++) {
        if (length(c) == n && is_prefix(c, seq)) return Known{held_[c].state, 0, c};
    }
    if (windows && h.before_n >= 0 && n > h.before_n) return Known{h.before, n - h.before_n};
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

void Sequences::share_pages(int64_t kind, int32_t from, int32_t to, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        table(kind, to)[i] = pages(kind, from)[i];
        kv_.pool(kind).share(pages(kind, from)[i], is_hidden(to));
    }
    first(kind, to) = begin;
}

void Sequences::copy(int32_t from, int32_t to, int64_t n, const Known& state) {
    if (state.checkpoint >= 0) held_[state.checkpoint].used = ++clock_;
    // Where a sequence has lost the window of the n positions, the checkpoint has it.
    const int32_t source = has_windows(from, n) ? from : state.checkpoint;
    const bool own = from == to && source == from;
    truncate(to, from == to ? n : 0);
    for (int64_t kind = 0; !own && kind < kv_.n_kinds(); kind++) {
        if (kind == 0 && from == to) continue;
        const int32_t giver = kind ? source : from;
        forget_before(to, kind, pages_of(n));
        share_pages(kind, giver, to, std::min(first_page(kind, giver), pages_of(n)), pages_of(n));
    }
    held_[to].length = n;
    if (n > 0) replace(held_[to].state, state.slot);
}

Sequences::Fold Sequences::fold(int32_t seq) {
    int32_t& slot = held_[seq].state;
    const int32_t before = slot;
    if (slot < 0) {
        slot = states_.take();
    } else if (states_.is_shared(slot)) {
        const int32_t own = states_.take();
        states_.give_back(slot);
        slot = own;
    }
    return {before, slot};
}

int32_t Sequences::new_state(int32_t seq) {
    forget_state(seq);
    return held_[seq].state = states_.take();
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
    if (least >= 0) truncate(least, 0);
    return least;
}

void Sequences::keep_checkpoint(int32_t seq, int64_t n) {
    const int32_t slot = held_[seq].next >= 0 ? held_[seq].next : held_[seq].state;
    if (!keeps_checkpoints() || n == 0 || (states_ && slot < 0)) return;
    int32_t to = -1;
    for (int32_t c = n_seq_; c < all(); c++) {
        if (length(c) == n && is_prefix(c, seq)) {
            held_[c].used = ++clock_;
            return;
        }
        if (length(c) == 0 && to < 0) to = c;
    }
    if (to < 0) to = drop_checkpoint();
    for (int64_t kind = 0; kind < kv_.n_kinds(); kind++) {
        const int64_t begin = kv_.classes()[size_t(kind)].first_seen(n) / kKvPage;
        share_pages(kind, seq, to, kind ? std::min(begin, pages_of(n)) : 0, pages_of(n));
    }
    held_[to].length = n;
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
