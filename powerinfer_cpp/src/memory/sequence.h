// The sequences of a session: their tokens, how each was computed, their pages, and the states of
// layers that have one. Nothing else makes a sequence shorter or longer, so that keys, values and
// states are always of the same positions.
//
// States cannot be rewound. A sequence of a model with states can only be cut to positions whose
// state is known (find): its end; those of its last call, if that was short; and those of
// checkpoints. A checkpoint is a hidden sequence behind the n_seq others, which shares the pages of
// the one that it was taken of. When pages or checkpoints run out, the one of least worth is
// dropped.
//
// Layers with a window see a sequence's last positions only. Where their pool is smaller than that
// of all positions (KvPages::forgets), a sequence has the pages of a contiguous end of its
// positions: what is behind the window goes first when pages are wanted, and not before. Such a
// sequence can be cut to the positions whose windows it still has, and to those of checkpoints.
#pragma once

#include <optional>

#include "memory/kv_pages.h"
#include "memory/states.h"

namespace powerinfer {

class Sequences {
 public:
    Sequences() = default;
    // params must be resolved. Makes n_seq empty sequences of up to n_ctx positions, of which the
    // pages of all may be fewer. RAM has the keys and values of the first n_ram layers.
    Sequences(ggml::Carver& carver, const std::vector<Layer>& layers,
              const pi_session_params& params, int64_t n_ram);
    void attach(DeviceKv* device) {
        kv_.attach(device);
        states_.attach(device);
    }
    // Of the same layers and parameters.
    void attach(States states) { states_ = std::move(states); }

    int32_t count() const { return n_seq_; }
    int64_t n_ctx() const { return n_ctx_; }
    int64_t length(int32_t seq) const { return held_[seq].length; }
    const KvPages& kv() const { return kv_; }
    const States& states() const { return states_; }
    // Pages of a sequence in a class of layers: page i holds the 64 positions from 64 i on, if i is
    // at least first_page().
    const int32_t* pages(int64_t kind, int32_t seq) const { return table(kind, seq); }
    int64_t first_page(int64_t kind, int32_t seq) const { return first_[kind * all() + seq]; }
    // The least position above 0 from which on find() knows all; with states the end, or one more.
    int64_t first_cut(int32_t seq) const;

    // Pages of all positions that no sequence has: those of checkpoints alone are given up when
    // they are needed.
    int64_t free_pages() const { return pool().n_free() - n_reserve_ + pool().n_hidden(); }
    // Pages that it takes to append added[i] positions to each sequence i: new ones, and copies of
    // pages that sequences share.
    int64_t pages_for(const int64_t* added) const;
    // Pages that emptying a sequence would give back: those that no other one shares.
    int64_t own_pages(int32_t seq) const;
    // Throws Error(context) if `what` takes more than the free pages and `returned` ones.
    void require_pages(const char* what, int64_t n, int64_t returned) const;

    // A sequence that rests is not continued for now: its windows may be given up when pages are
    // wanted.
    void rest(int32_t seq, bool rests) { held_[seq].rests = rests; }
    // What continues sequences, those with added[i], ends their rest. Throws Error(context), and
    // changes nothing, if more than n_active ones with positions did not rest then, and there is
    // not room for the windows of all.
    void wake(const int64_t* added);
    // A sequence whose end a checkpoint alone knows, since its own window or state was given up,
    // takes them from there. find() must know its end.
    void restore_end(int32_t seq);

    // Appends a position. place(kind, slot) gets the place of its keys and values in each class. A
    // page shared with other sequences is copied first. Requires length(seq) < n_ctx(), free pages
    // (pages_for), and that the sequence does not rest (wake).
    template <typename F>
    void append(int32_t seq, int32_t token, bool generated, const F& place) {
        for (int64_t kind = 0; kind < kv_.n_kinds(); kind++) place(kind, next_slot(kind, seq));
        label_next(seq, token, generated);
    }
    // Gives up the pages of a class before this one.
    void forget_before(int32_t seq, int64_t kind, int64_t page);

    // A call that appends added[i] positions to each sequence i: after begin() either commit(), or
    // rollback(), which leaves the sequences as they were. Each pass begins with begin_pass(),
    // before its rows are appended. A call of more rows than n_ubatch may give up the windows that
    // its sequences began with: then rollback() cuts them to what continuable() says.
    void begin(const int64_t* added);
    void begin_pass();
    // The states that the rows of a pass, which were appended just now, read and write.
    void assign_states(RowsBySequence& rows);
    void commit();
    void rollback();

    // Drops the positions from n on, 0 <= n <= length(seq), without a look at states.
    void truncate(int32_t seq, int64_t n);
    void clear();  // all sequences and checkpoints

    // Where the state of the first n positions of a sequence is known from, and their windows.
    struct Known {
        int32_t slot = -1;        // of States; -1: n is 0, or the model has no states
        int64_t rows = 0;         // to be folded behind that (States::entered)
        int32_t checkpoint = -1;  // the hidden sequence that has both
    };
    std::optional<Known> find(int32_t seq, int64_t n) const;
    // The largest position up to n, n <= length(seq), that find() knows.
    int64_t continuable(int32_t seq, int64_t n) const;
    // Replaces `to` by the first n positions of `from`, 0 <= n <= length(from), on the same pages,
    // and with the state that was found for them. `to` may be `from`. If that has rows to be
    // folded, the caller does so, from and to what fold() gives.
    void copy(int32_t from, int32_t to, int64_t n, const Known& state);
    struct Fold {
        int32_t from, to;  // slots of States; from -1: no positions before
    };
    Fold fold(int32_t seq);
    // A slot for the state of all positions of a sequence, to be filled.
    int32_t new_state(int32_t seq);
    // Its state is not known (until new_state): it has to be loaded.
    void forget_state(int32_t seq);

    // Keeps a checkpoint at position n of a sequence, whose window is there, or says that there is
    // one. With states n is the end of the sequence.
    void keep_checkpoint(int32_t seq, int64_t n);
    bool keeps_checkpoints() const { return n_hidden_ > 0 && (states_ || kv_.forgets()); }
    // The checkpoints' positions, of those that there are.
    std::vector<int64_t> checkpoints() const;

    int32_t token(int32_t seq, int64_t position) const;
    bool generated(int32_t seq, int64_t position) const;

 private:
    const PagePool& pool() const { return kv_.pool(0); }
    KvPages::Label& label(int32_t seq, int64_t position) const {
        return kv_.label(pages(0, seq)[position / kKvPage]);
    }
    int32_t* table(int64_t kind, int32_t seq) const {
        return pages_ + (kind * all() + seq) * pages_of(n_ctx_);
    }
    int64_t& first(int64_t kind, int32_t seq) { return first_[kind * all() + seq]; }
    int32_t all() const { return n_seq_ + n_hidden_; }
    bool is_hidden(int32_t seq) const { return seq >= n_seq_; }
    // Does a sequence that is no checkpoint share a page of all positions?
    bool is_shared(int32_t page) const {
        return pool().owners(page) - pool().hidden_owners(page) > 1;
    }
    // Are the first n positions of two sequences the same? Both have as many.
    bool agree(int32_t a, int32_t b, int64_t n) const;
    bool is_prefix(int32_t checkpoint, int32_t seq) const {
        const int64_t n = length(checkpoint);
        return n > 0 && n <= length(seq) && agree(checkpoint, seq, n);
    }
    // Has a sequence all that a row at position n, n <= length(seq), sees?
    bool has_windows(int32_t seq, int64_t n) const;
    // The pages of a class that a sequence must keep begin here; in_pass: whatever the call began
    // with.
    int64_t needed_from(int64_t kind, int32_t seq, bool in_pass) const;
    // The place of the next position in a class, and its label, which makes the sequence longer.
    ggml::KvSlot next_slot(int64_t kind, int32_t seq);
    void label_next(int32_t seq, int32_t token, bool generated);
    // Gives up pages of a class that are of least use. There must be some.
    void make_room(int64_t kind);
    double worth(int32_t checkpoint) const;
    // Drops the checkpoint of least worth and returns its number; -1: there is none.
    int32_t drop_checkpoint();
    // `to`, which has none, shares pages [begin, end) of a class.
    void share_pages(int64_t kind, int32_t from, int32_t to, int64_t begin, int64_t end);
    void replace(int32_t& slot, int32_t by);
    void forget_call(int32_t seq);

    KvPages kv_;
    States states_;
    int32_t n_seq_ = 0, n_hidden_ = 0, n_active_ = 0;
    int64_t n_ctx_ = 0;
    int64_t n_reserve_ = 0;  // pages of all positions beside those of n_kv, for checkpoints
    struct Held {
        int64_t length = 0;
        // Slots of States, or -1: of all positions, and in a call of those so far. With positions
        // but without a state a sequence cannot be continued.
        int32_t state = -1, next = -1;
        // Of the last call, if what entered in its rows was kept: the state before (-1: zeros), and
        // the position; -1: not kept.
        int32_t before = -1;
        int64_t before_n = -1;
        int64_t begun = -1;  // in a call: positions before it; -1: not in a call
        int64_t passed = 0;  // in a call: positions before the pass
        bool keeps = false;  // in a call: what enters is kept
        bool rests = false;
        int64_t used = 0;  // when a checkpoint was last of use, or a sequence in a call
    };
    Held* held_ = nullptr;      // [all]
    int32_t* pages_ = nullptr;  // [classes, all, pages_of(n_ctx)]
    int64_t* first_ = nullptr;  // [classes, all]: the first page that a sequence has; 0 without
    int64_t clock_ = 0;         // of uses of checkpoints
    int64_t calls_ = 0;         // of uses of sequences
};

}  // namespace powerinfer
