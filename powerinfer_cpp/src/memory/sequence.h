// The sequences of a session: their tokens, how each was computed, and their pages.
#pragma once

#include "memory/kv_pages.h"

namespace powerinfer {

class Sequences {
 public:
    Sequences() = default;
    // params must be resolved. Makes n_seq empty sequences of up to n_ctx positions, of which the
    // pages of all may be fewer. RAM has the keys and values of the first n_ram layers.
    Sequences(ggml::Carver& carver, const std::vector<Layer>& layers,
              const pi_session_params& params, int64_t n_ram);
    void attach(DeviceKv* device) { kv_.attach(device); }

    int32_t count() const { return n_seq_; }
    int64_t n_ctx() const { return n_ctx_; }
    int64_t length(int32_t seq) const { return length_[seq]; }
    const KvPages& kv() const { return kv_; }
    // Pages of a sequence: page i holds the 64 positions from 64 i on.
    const int32_t* pages(int32_t seq) const { return pages_ + seq * pages_of(n_ctx_); }

    int64_t free_pages() const { return kv_.n_free(); }
    // Pages that it takes to append added[i] positions to each sequence i: new ones, and copies of
    // pages that sequences share.
    int64_t pages_for(const int64_t* added) const;
    // Pages that emptying a sequence would give back: those that no other one shares.
    int64_t own_pages(int32_t seq) const;
    // Throws Error(context) if `what` takes more than the free pages and `returned` ones.
    void require_pages(const char* what, int64_t n, int64_t returned) const;

    // Appends a position and returns the place of its keys and values. A page shared with other
    // sequences is copied first. Requires length(seq) < n_ctx(), and free pages (pages_for).
    ggml::KvSlot append(int32_t seq, int32_t token, bool generated);
    // Drops the positions from n on, 0 <= n <= length(seq).
    void truncate(int32_t seq, int64_t n);
    // Replaces `to` by the first n positions of `from`, 0 <= n <= length(from), on the same pages.
    void copy(int32_t from, int32_t to, int64_t n);

    int32_t token(int32_t seq, int64_t position) const;
    bool generated(int32_t seq, int64_t position) const;

 private:
    KvPages::Label& label(int32_t seq, int64_t position) const {
        return kv_.label(pages(seq)[position / kKvPage]);
    }
    KvPages kv_;
    int32_t n_seq_ = 0;
    int64_t n_ctx_ = 0;
    int64_t* length_ = nullptr;  // [n_seq]
    int32_t* pages_ = nullptr;   // [n_seq, pages_of(n_ctx)]
};

}  // namespace powerinfer
