// One token, or a few. Each thread takes segments and computes gate, up and down in one pass over
// the candidates, of a few tokens one after the other.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "ops/neuron_rows.h"

namespace ggml {

namespace {

// Neurons of a batch, whose rows are prefetched while the batch before is computed. Rows in tiles
// are read in order, which the processor prefetches: then as many as a kernel takes.
constexpr int64_t kTile = 8;

bool in_order(const NeuronRows& rows) {
    return rows.tiles != NeuronRows::Tiles::none;
}
int64_t most_at_once(const NeuronRows& rows) {
    return in_order(rows) ? cpu::kMostRows : kTile;
}
// Columns whose sums stay in the L1 cache while segments are added.
constexpr int64_t kColumns = 256;

// Candidates of one token in one segment, ascending, and the destination of their sum. known: of
// neurons from `first` on, activated gates, or values; null if nothing is known.
struct Span {
    const int32_t* ids;
    int64_t n;
    int32_t token;
    float* sum;
    const float* known = nullptr;
    int64_t first = 0;
};

// Spans that one thread computes.
class Spans {
 public:
    // finished: what is known of neurons are their values, which only have to be added.
    Spans(const Neurons& w, const cpu::RowProducts& rows, bool finished, bool* computed = nullptr,
          bool* fired = nullptr, float* values = nullptr)
        : w_(w),
          rows_(rows),
          in_order_(in_order(w.down)),
          most_gates_(most_at_once(cpu::first_rows(w))),
          most_(most_at_once(w.down)),
          finished_(finished),
          computed_(computed),
          fired_(fired),
          values_(values) {}

    // Computes spans [span, end): tiles of candidates, then batches of neurons whose gates fired.
    void run(const Span* span, const Span* const last) {
        for (const Span* at = span; at < last; at++) {
            for (int64_t i = 0; at->known && i < at->n; i++) {
                const float h = at->known[at->ids[i] - at->first];
                if (h != 0) fires(at->token, at->ids[i], h, at->sum);
            }
        }
        cpu::NeuronBatch tiles[2], *tile = &tiles[0], *next = &tiles[1];
        int64_t at = 0;
        fill(*tile, span, last, at);
        while (tile->n) {
            fill(*next, span, last, at);
            rows_.gates(tile->ids, tile->n, &tile->token, 1, tile->h, beside(*next));
            proposed += tile->n;
            for (int64_t j = 0; j < tile->n; j++) {
                if (tile->h[j] != 0) fires(tile->token, tile->ids[j], tile->h[j], tile->sums[j]);
            }
            if (in_order_) drain();
            std::swap(tile, next);
        }
        drain();
    }

    int64_t proposed = 0;
    cpu::Done done() const {
        uint64_t bytes = uint64_t(proposed) * cpu::row_bytes(w_, cpu::first_rows(w_));
        if (w_.gate) bytes += uint64_t(n_computed_) * cpu::row_bytes(w_, w_.up);
        bytes += uint64_t(n_fired_) * cpu::row_bytes(w_, w_.down);
        return {proposed, n_computed_, n_fired_, bytes};
    }

 private:
    cpu::Next beside(const cpu::NeuronBatch& next) const {
        return in_order_ ? cpu::Next{} : cpu::Next{next.ids, next.n};
    }

    // The next candidates of one token, from index `at` of `span` on, without the spans of which
    // something is known.
    void fill(cpu::NeuronBatch& tile, const Span*& span, const Span* last, int64_t& at) const {
        tile.n = 0;
        while (span < last && tile.n < most_gates_) {
            if (span->known || at == span->n) {
                span++;
                at = 0;
                continue;
            }
            if (tile.n && tile.token != span->token) break;
            tile.token = span->token;
            tile.push(span->ids[at++], 0, span->sum);
        }
    }

    // A gate is not 0: its neuron waits until the batch is full. Segments are small, so a batch may
    // hold neurons of several: full batches keep prefetching at its pace.
    void fires(int32_t token, int32_t id, float value, float* sum) {
        if (waiting_->n == most_ || (waiting_->n && waiting_->token != token)) move_on();
        waiting_->token = token;
        waiting_->push(id, value, sum);
    }
    // Computes one batch while the rows of the one that waits are prefetched; then this one is
    // next.
    void move_on() {
        finish(*ready_, beside(*waiting_));
        std::swap(ready_, waiting_);
        waiting_->n = 0;
    }
    void drain() {
        move_on();
        move_on();
    }

    void finish(cpu::NeuronBatch& batch, const cpu::Next& next) {
        if (!batch.n) return;
        if (!finished_) value(batch, next);
        for (int64_t i = 0, end = 0; i < batch.n; i = end) {  // a segment's neurons at a time
            while (end < batch.n && batch.sums[end] == batch.sums[i]) end++;
            const int32_t first[] = {0, int32_t(end - i)};
            rows_.add(batch.ids + i, end - i, 0, w_.cols, {first, cpu::kEach.data(), batch.h + i},
                      1, batch.sums[i], 0, next.from(i));
        }
    }

    // From activated gates, not 0, to values.
    void value(cpu::NeuronBatch& batch, const cpu::Next& next) {
        n_computed_ += batch.n;
        for (int64_t i = 0; computed_ && i < batch.n; i++) computed_[batch.ids[i]] = true;
        rows_.values(batch.ids, batch.n, batch.token, batch.h, next);
        batch.drop_zeros();
        n_fired_ += batch.n;
        const int64_t row = batch.token * w_.n;
        for (int64_t i = 0; fired_ && i < batch.n; i++) fired_[row + batch.ids[i]] = true;
        for (int64_t i = 0; values_ && i < batch.n; i++) values_[row + batch.ids[i]] = batch.h[i];
    }

    const Neurons& w_;
    const cpu::RowProducts& rows_;
    const bool in_order_;  // are down rows read in order?
    const int64_t most_gates_, most_;
    const bool finished_;
    bool *const computed_, *const fired_;  // [n] of one token, [tokens, n]; or null
    float* const values_;                  // [tokens, n] or null
    int64_t n_computed_ = 0, n_fired_ = 0;
    cpu::NeuronBatch batches_[2], *ready_ = &batches_[0], *waiting_ = &batches_[1];
};

// All neurons of a token, without gates, whose up rows are read in order and most of which do not
// fire. The more of up are multiplied at a time, the better the processor reads ahead.
class InOrder {
 public:
    InOrder(const Neurons& w, const cpu::RowProducts& rows, NeuronScratch& scratch, bool* fired)
        : w_(w), rows_(rows), scratch_(scratch), fired_(fired) {}

    static bool suits(const Neurons& w) { return !w.gate && in_order(w.up) && !in_order(w.down); }
    static bool suits(const Neurons& w, const Candidates& candidates) {
        if (!suits(w)) return false;
        for (int64_t s = 0; s < kSegments; s++) {
            const Segment segment = segment_of(w.n, s);
            if (candidates.count[s] != segment.end - segment.begin) return false;
        }
        return true;
    }

    // How many segments a thread's room is enough for.
    static constexpr int64_t kMostTogether = 4 * kPairsTogether;
    // How many segments a thread adds up by itself, a power of two. Each sum goes to another
    // thread, and writing lines that another core's cache holds is slow: so few sums are written.
    static int64_t together(const Neurons& w, int64_t threads) {
        constexpr int64_t kLeastBytes = 512 << 10;
        const int64_t bytes = w.n * int64_t(cpu::row_bytes(w, w.up));
        const int64_t each = std::clamp<int64_t>(bytes / (threads * kLeastBytes), 2, 8);
        int64_t n = kMostTogether;
        while (n > 2 && kSegments / n < each * threads) n /= 2;
        return n;
    }

    // The sum of segments [begin, end), in the first row of `room`, [2 * kPairsTogether, cols].
    cpu::Done run(int64_t begin, int64_t end, float* room) const {
        Values values;
        values.end = segment_of(w_.n, begin).begin;
        cpu::Done done;
        const int64_t last = segment_of(w_.n, end - 1).end;
        cpu::add_tree(end - begin, room, w_.cols, [&](int64_t i, float* sum) {
            const Segment segment = segment_of(w_.n, begin + i);
            std::fill_n(sum, w_.cols, 0.0f);
            for (int64_t at = segment.begin, next; at < segment.end; at = next) {
                if (at == values.end) fire(values, last);
                next = std::min({at + cpu::kMostRows, segment.end, values.end});
                done.fired += add(values, at, next, sum);
            }
            done.proposed += segment.end - segment.begin;
        });
        done.computed = done.fired;
        done.bytes = uint64_t(done.proposed) * cpu::row_bytes(w_, w_.up) +
                     uint64_t(done.fired) * cpu::row_bytes(w_, w_.down);
        return done;
    }

 private:
    // Values of neurons [begin, end). What they need of down stays in a core's second cache.
    struct Values {
        int64_t begin = 0, end = 0;
        float h[256];
    };

    // The next ones, up to `last`.
    void fire(Values& v, int64_t last) const {
        v.begin = v.end;
        v.end = std::min(v.begin + int64_t(std::size(v.h)), last);
        rows_.in_order(w_.up, w_.up_bias, v.begin, v.end - v.begin, v.h);
        rows_.activate(v.h, v.end - v.begin);
        for (int64_t i = v.begin; i < v.end; i++) {
            const float h = v.h[i - v.begin];
            if (h == 0) continue;
            rows_.fetch(w_.down, i);
            if (scratch_.computed) scratch_.computed[i] = true;
            if (fired_) fired_[i] = true;
            if (scratch_.values) scratch_.values[i] = h;
        }
    }

    // Adds the down rows of neurons [begin, end), at most kMostRows; returns how many.
    int64_t add(const Values& v, int64_t begin, int64_t end, float* sum) const {
        int32_t ids[cpu::kMostRows];
        float h[cpu::kMostRows];
        int64_t n = 0;
        for (int64_t i = begin; i < end; i++) {
            ids[n] = int32_t(i);  // kept if n advances: no branch to mispredict
            h[n] = v.h[i - v.begin];
            n += h[n] != 0;
        }
        const int32_t first[] = {0, int32_t(n)};
        if (n) rows_.add(ids, n, 0, w_.cols, {first, cpu::kEach.data(), h}, 1, sum, 0);
        return n;
    }

    const Neurons& w_;
    const cpu::RowProducts& rows_;
    NeuronScratch& scratch_;
    bool* const fired_;  // [n] or null
};

// Adds n_sums sums [n_sums, cols] for n <= kColumns columns from c0 on.
void add_up(const Neurons& w, const float* sums, int64_t n_sums, int64_t c0, int64_t n, float* y) {
    float part[cpu::kSums * kColumns];
    cpu::add_tree(n_sums / 2, part, n, [&](int64_t pair, float* sum) {
        const float* const left = sums + 2 * pair * w.cols + c0;
        for (int64_t i = 0; i < n; i++) sum[i] = left[i] + left[w.cols + i];
    });
    cpu::unpermute(w, part, c0, n, y);
}

// The gates of neurons [begin, end), at most kTurn, for rows that need all of them, which are read
// once for these: from t * kTurn on for row t. So are the ids of those that are not 0; count is by
// the index in `rows`.
void shared_gates(const cpu::RowProducts& products, const int32_t* rows, int64_t n_rows,
                  int64_t first, int64_t end, int32_t* ids, float* known, int32_t* count,
                  uint8_t* strips) {
    float gates[cpu::kMostRows * kFewRows];
    for (int64_t begin = first; begin < end; begin += cpu::kMostRows) {
        const int64_t n = std::min(cpu::kMostRows, end - begin);
        int32_t tile[cpu::kMostRows];
        std::iota(tile, tile + n, int32_t(begin));
        products.gates(tile, n, rows, n_rows, gates, {}, strips);
        for (int64_t t = 0; t < n_rows; t++) {
            int32_t* const of = ids + rows[t] * cpu::kTurn;
            float* const of_row = known + rows[t] * cpu::kTurn;
            for (int64_t i = 0; i < n; i++) {
                const float v = gates[i * n_rows + t];
                of_row[begin + i - first] = v;
                if (v != 0) of[count[t]++] = tile[i];
            }
        }
    }
}

}  // namespace

int64_t partial_ffn(Context& context, const Neurons& w, const Input& x,
                    const Candidates& candidates, NeuronScratch& scratch, float* sums,
                    NeuronCounts* counts, bool* fired) {
    OpTimer timer(context.profile, "partial_ffn");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 1);
    if (fired) std::fill_n(fired, w.n, false);
    if (scratch.values) std::fill_n(scratch.values, w.n, 0.0f);
    const int64_t threads = context.threads.active();
    int64_t n_sums = kSegmentPairs;
    cpu::Totals totals;
    // The sums of segments stay in a core's cache.
    const auto own = [&](int thread) { return scratch.threads[size_t(thread)].segments; };
    if (InOrder::suits(w, candidates)) {
        const InOrder all(w, rows, scratch, fired);
        const int64_t together = InOrder::together(w, threads);
        n_sums = kSegments / together;
        context.threads.run(n_sums, 1, [&](int64_t i, int64_t, int thread) {
            totals.add(all.run(i * together, (i + 1) * together, own(thread)));
            std::copy_n(own(thread), w.cols, sums + i * w.cols);
        });
    } else {
        // Several pairs at a time, because prefetching does not cross the pieces of a thread.
        const int64_t grain = std::clamp<int64_t>(kSegmentPairs / (6 * threads), 1, kPairsTogether);
        context.threads.run(kSegmentPairs, grain, [&](int64_t begin, int64_t end, int thread) {
            Spans all(w, rows, false, scratch.computed, fired, scratch.values);
            Span spans[2 * kPairsTogether];
            const int64_t n = 2 * (end - begin);
            float* const segments = own(thread);
            std::fill_n(segments, n * w.cols, 0.0f);
            for (int64_t i = 0; i < n; i++) {
                const int64_t s = 2 * begin + i;
                spans[i] = {candidates.ids + segment_of(w.n, s).begin, candidates.count[s], 0,
                            segments + i * w.cols};
            }
            all.run(spans, spans + n);
            for (int64_t pair = begin; pair < end; pair++) {
                const float* const left = segments + 2 * (pair - begin) * w.cols;
                const float* const right = left + w.cols;
                float* const sum = sums + pair * w.cols;
                for (int64_t c = 0; c < w.cols; c++) sum[c] = left[c] + right[c];
            }
            totals.add(all.done());
        });
    }
    totals.report(timer, 1, counts);
    return n_sums;
}

bool can_be_whole(const Neurons& neurons) {
    return InOrder::suits(neurons);
}

void whole_ffns(Context& context, const Neurons* experts, int64_t n, const Input& x,
                NeuronScratch& scratch, float* sums, float* y, NeuronCounts* counts) {
    OpTimer timer(context.profile, "whole_ffns");
    for (int64_t e = 0; e < n; e++) prepare_steps(context, experts[e], x, scratch);
    int64_t together = 2;  // the more experts, the fewer pieces of each
    while (together < n) together *= 2;
    const int64_t pieces = kSegments / together, cols = experts[0].cols;
    cpu::Totals totals;
    context.threads.run(n * pieces, 1, [&](int64_t piece, int64_t, int thread) {
        const Neurons& w = experts[piece / pieces];
        const cpu::RowProducts rows(context, w, x, scratch, 0, 0);
        float* const own = scratch.threads[size_t(thread)].segments;
        const int64_t begin = piece % pieces * together;
        totals.add(InOrder(w, rows, scratch, nullptr).run(begin, begin + together, own));
        std::copy_n(own, cols, sums + piece * cols);
    });
    const int64_t across = (cols + kColumns - 1) / kColumns;
    context.threads.run(n * across, 1, [&](int64_t piece, int64_t, int) {
        const int64_t e = piece / across, c0 = piece % across * kColumns;
        add_up(experts[e], sums + e * pieces * cols, pieces, c0, std::min(kColumns, cols - c0),
               y + e * cols);
    });
    totals.report(timer, n, counts);
}

void few_rows_ffn(Context& context, const Neurons& w, const Input& x, const NeuronMask& mask,
                  NeuronScratch& scratch, float* y, NeuronCounts* counts, bool* fired) {
    OpTimer timer(context.profile, "few_rows_ffn");
    const cpu::RowProducts products(context, w, x, scratch, 0, x.rows);
    if (fired) std::fill_n(fired, x.rows * w.n, false);
    if (scratch.values) std::fill_n(scratch.values, x.rows * w.n, 0.0f);
    int32_t whole[kFewRows], n_whole = 0;  // rows that no mask concerns
    for (int32_t t = 0; t < int32_t(x.rows); t++) {
        if (!mask.masks(t)) whole[n_whole++] = t;
    }
    cpu::Totals totals;
    context.threads.run(kSegments, 1, [&](int64_t s, int64_t, int thread) {
        const Segment segment = segment_of(w.n, s);
        int32_t* ids = scratch.threads[size_t(thread)].candidates;
        for (int64_t t = 0; t < x.rows; t++) {
            std::fill_n(scratch.few_sums + (t * kSegments + s) * w.cols, w.cols, 0.0f);
        }
        Spans all(w, products, false, nullptr, fired, scratch.values);
        Span spans[kFewRows];
        float gates[kFewRows * cpu::kTurn];
        for (int64_t begin = segment.begin; begin < segment.end; begin += cpu::kTurn) {
            const int64_t end = std::min(begin + cpu::kTurn, segment.end);
            int64_t n = 0;
            const auto add_span = [&](int32_t token, int32_t count, const float* known) {
                float* const sum = scratch.few_sums + (token * kSegments + s) * w.cols;
                if (count) spans[n++] = {ids + token * cpu::kTurn, count, token, sum, known, begin};
            };
            for (int32_t t = 0; t < int32_t(x.rows); t++) {
                if (!mask.masks(t)) continue;
                add_span(t, mask.list(t, w.n, begin, end, ids + t * cpu::kTurn), nullptr);
            }
            if (n_whole) {
                int32_t count[kFewRows] = {};
                shared_gates(products, whole, n_whole, begin, end, ids, gates, count,
                             scratch.threads[size_t(thread)].strips);
                all.proposed += n_whole * (end - begin);
                for (int64_t i = 0; i < n_whole; i++) {
                    add_span(whole[i], count[i], gates + whole[i] * cpu::kTurn);
                }
            }
            all.run(spans, spans + n);
        }
        totals.add(all.done());
    });
    const int64_t across = (w.cols + kColumns - 1) / kColumns;
    context.threads.run(x.rows * across, 1, [&](int64_t piece, int64_t, int) {
        const int64_t t = piece / across, c0 = piece % across * kColumns;
        add_up(w, scratch.few_sums + t * kSegments * w.cols, kSegments, c0,
               std::min(kColumns, w.cols - c0), y + t * w.cols);
    });
    totals.report(timer, x.rows, counts);
}

// ---- In steps: rows that arrive one after the other ---------------------------------------------
//
// Products in any order, sums in ascending order. The bits are those of partial_ffn, because the
// product of a row does not depend on the rows beside it.

namespace {

// Calls step(ids, number, those that come next) for a few of n neurons at a time, in parallel. A
// thread's piece is at most about 20 microseconds of work with 4,096 columns in Q4_0. What just
// came from a disk are few rows, which several threads share nevertheless.
template <typename F>
void for_tiles(Context& context, const int32_t* ids, int64_t n, const F& step) {
    constexpr int64_t kPiece = cpu::kMostRows, kLeastPiece = 4;
    const int64_t threads = context.threads.active();
    const int64_t piece = std::clamp((n + threads - 1) / threads, kLeastPiece, kPiece);
    context.threads.run(n, piece, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin, next; i < end; i = next) {
            next = std::min(i + kTile, end);
            step(ids + i, next - i, cpu::Next{ids + next, std::min(kTile, end - next)});
        }
    });
}

}  // namespace

void prepare_steps(Context& context, const Neurons& w, const Input& x, NeuronScratch& scratch) {
    cpu::RowProducts(context, w, x, scratch, 0, 1);
}

void first_values(Context& context, const Neurons& w, const Input& x, const NeuronScratch& scratch,
                  const int32_t* ids, int64_t n, float* h) {
    OpTimer timer(context.profile, "first_values");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 0);
    for_tiles(context, ids, n, [&](const int32_t* of, int64_t m, const cpu::Next& next) {
        float gate[kTile];
        rows.gates(of, m, cpu::kEach.data(), 1, gate, next);
        for (int64_t j = 0; j < m; j++) h[of[j]] = gate[j];
    });
    timer.read(uint64_t(n) * cpu::row_bytes(w, cpu::first_rows(w)));
}

void gated_values(Context& context, const Neurons& w, const Input& x, const NeuronScratch& scratch,
                  const int32_t* ids, int64_t n, float* h) {
    OpTimer timer(context.profile, "gated_values");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 0);
    for_tiles(context, ids, n, [&](const int32_t* of, int64_t m, const cpu::Next& next) {
        float value[kTile];
        for (int64_t j = 0; j < m; j++) value[j] = h[of[j]];
        rows.values(of, m, 0, value, next);
        for (int64_t j = 0; j < m; j++) h[of[j]] = value[j];
    });
    timer.read(uint64_t(n) * cpu::row_bytes(w, w.up));
}

void sum_values(Context& context, const Neurons& w, const Input& x, const NeuronScratch& scratch,
                const Candidates& candidates, const float* h, int64_t begin, int64_t end,
                float* sums) {
    OpTimer timer(context.profile, "sum_values");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 0);
    const int64_t grain = std::max<int64_t>(1, kSegments / (6 * context.threads.active()));
    context.threads.run(end - begin, grain, [&](int64_t first, int64_t last, int) {
        Spans all(w, rows, true);
        Span spans[kSegments], *span = spans;
        std::fill_n(sums + (begin + first) * w.cols, (last - first) * w.cols, 0.0f);
        for (int64_t s = begin + first; s < begin + last; s++) {
            *span++ = {candidates.ids + segment_of(w.n, s).begin, candidates.count[s], 0,
                       sums + s * w.cols, h};
        }
        all.run(spans, span);
    });
}

void merge(Context& context, const Neurons& w, const float* sums, int64_t n_sums, float* y) {
    const OpTimer timer(context.profile, "merge");
    context.threads.run(w.cols, kColumns, [&](int64_t begin, int64_t end, int) {
        add_up(w, sums, n_sums, begin, end - begin, y);
    });
}

}  // namespace ggml
