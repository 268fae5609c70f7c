// One token, or a few. Each thread takes segments and computes gate, up and down in one pass over
// the candidates, of a few tokens one after the other.
#include <algorithm>
#include <atomic>
#include <numeric>

#include "ops/ffn_parts.h"
#include "ops/neuron_rows.h"

namespace ggml {

namespace {

// Candidates per tile. The rows of a tile are prefetched while the tile before is computed.
constexpr int64_t kTile = 8;
// Columns whose sums stay in the L1 cache while segments are added.
constexpr int64_t kColumns = 256;

// Candidates of one token in one segment, ascending, and the destination of their sum. values: of
// their activated gates, not 0; null if these have to be computed.
struct Span {
    const int32_t* ids;
    int64_t n;
    int32_t token;
    float* sum;
    const float* values = nullptr;
};

// Some neurons of one token: candidates, or those whose gates fired. Segments are small, so a batch
// may hold neurons of several: full batches keep prefetching at its pace.
struct Batch {
    int32_t ids[kTile];
    float h[kTile];
    float* sums[kTile];  // of the neurons' segments
    int64_t n = 0;
    int32_t token = 0;

    void push(int32_t id, float value, float* sum) {
        ids[n] = id;
        h[n] = value;
        sums[n++] = sum;
    }
};

// Spans that one thread computes.
class Spans {
 public:
    Spans(const Neurons& w, const cpu::RowProducts& rows, bool* computed, bool* fired,
          float* values)
        : w_(w), rows_(rows), computed_(computed), fired_(fired), values_(values) {}

    // Computes spans [span, end): tiles of candidates, then batches of neurons whose gates fired.
    // The rows of a tile or batch are prefetched while the one before is computed.
    void run(const Span* span, const Span* const last) {
        if (w_.down.tiles != NeuronRows::Tiles::none) {
            for (; span < last; span++) run_in_order(*span);
            return;
        }
        for (const Span* known = span; known < last; known++) {
            for (int64_t i = 0; known->values && i < known->n; i++) {
                fires(known->token, known->ids[i], known->values[i], known->sum);
            }
        }
        const NeuronRows& first = cpu::first_rows(w_);
        int64_t at = 0;
        Batch tile = next_tile(span, last, at);
        while (tile.n) {
            const Batch next = next_tile(span, last, at);
            float g[kTile];
            rows_.dot(first, cpu::first_bias(w_), tile.ids, tile.n, &tile.token, 1, g,
                      ahead_of(first, next.ids, next.n));
            proposed += tile.n;
            cpu::activate(w_, g, tile.n);
            for (int64_t j = 0; j < tile.n; j++) {
                if (g[j] != 0) fires(tile.token, tile.ids[j], g[j], tile.sums[j]);
            }
            tile = next;
        }
        move_on();
        move_on();
    }

    int64_t proposed = 0, computed = 0, fired = 0;

 private:
    static cpu::Ahead ahead_of(const NeuronRows& rows, const int32_t* ids, int64_t n) {
        return {rows.data, rows.stride, ids, n};
    }

    // One span whose rows lie in tiles. The processor prefetches what is read in order, so there
    // is no batch that waits: as many neurons at a time as a kernel takes.
    void run_in_order(const Span& span) {
        for (int64_t i = 0, n = 0; i < span.n; i += n) {
            n = std::min(cpu::kShared, span.n - i);
            int32_t ids[cpu::kShared];
            float h[cpu::kShared];
            if (span.values) {
                std::copy_n(span.values + i, n, h);
            } else {
                rows_.dot(cpu::first_rows(w_), cpu::first_bias(w_), span.ids + i, n, &span.token, 1,
                          h);
                proposed += n;
                cpu::activate(w_, h, n);
            }
            int64_t m = 0;
            for (int64_t j = 0; j < n; j++) {
                ids[m] = span.ids[i + j];
                h[m] = h[j];
                m += h[j] != 0;
            }
            m = compute(ids, h, m, span.token, {}, [](int64_t, int64_t) {});
            const int32_t first[] = {0, int32_t(m)};
            if (m) rows_.add(ids, m, 0, w_.cols, {first, cpu::kEach.data(), h}, 1, span.sum, 0);
        }
    }

    // The next candidates of one token, from place `at` of `span` on, without the spans whose gates
    // are known.
    static Batch next_tile(const Span*& span, const Span* last, int64_t& at) {
        Batch tile;
        while (span < last && tile.n < kTile) {
            if (span->values || at == span->n) {
                span++;
                at = 0;
                continue;
            }
            if (tile.n && tile.token != span->token) break;
            tile.token = span->token;
            tile.push(span->ids[at++], 0, span->sum);
        }
        return tile;
    }

    // A gate is not 0: its neuron waits until the batch is full.
    void fires(int32_t token, int32_t id, float value, float* sum) {
        if (waiting_.n == kTile || (waiting_.n && waiting_.token != token)) move_on();
        waiting_.token = token;
        waiting_.push(id, value, sum);
    }
    // Computes one batch while the rows of the one that waits are prefetched; then this one is
    // next.
    void move_on() {
        finish(ready_, waiting_);
        ready_ = waiting_;
        waiting_.n = 0;
    }

    // h[i] = the value of neuron ids[i], from its activated gate, not 0. Keeps the m of n that are
    // not 0, and calls moved(to, from) for each of them; returns m.
    template <typename F>
    int64_t compute(int32_t* ids, float* h, int64_t n, int32_t token, const cpu::Ahead& ahead,
                    const F& moved) {
        computed += n;
        for (int64_t i = 0; computed_ && i < n; i++) computed_[ids[i]] = true;
        int64_t m = n;
        if (w_.gate && n) {
            float u[cpu::kShared];
            rows_.dot(w_.up, w_.up_bias, ids, n, &token, 1, u, ahead);
            cpu::values(w_, h, u, n, u);
            m = 0;
            for (int64_t i = 0; i < n; i++) {
                ids[m] = ids[i];
                h[m] = u[i];
                moved(m, i);
                m += u[i] != 0;
            }
        }
        fired += m;
        for (int64_t i = 0; fired_ && i < m; i++) fired_[token * w_.n + ids[i]] = true;
        for (int64_t i = 0; values_ && i < m; i++) values_[token * w_.n + ids[i]] = h[i];
        return m;
    }

    void finish(Batch& batch, const Batch& next) {
        if (!batch.n) return;
        const int64_t m =
            compute(batch.ids, batch.h, batch.n, batch.token, ahead_of(w_.up, next.ids, next.n),
                    [&](int64_t to, int64_t from) { batch.sums[to] = batch.sums[from]; });
        for (int64_t i = 0, end = 0; i < m; i = end) {  // a segment's neurons at a time
            while (end < m && batch.sums[end] == batch.sums[i]) end++;
            const int32_t first[] = {0, int32_t(end - i)};
            const int64_t from = std::min(i, next.n);
            rows_.add(batch.ids + i, end - i, 0, w_.cols,
                      {first, cpu::kEach.data(), batch.h + i,
                       ahead_of(w_.down, next.ids + from, next.n - from)},
                      1, batch.sums[i], 0);
        }
    }

    const Neurons& w_;
    const cpu::RowProducts& rows_;
    bool *const computed_, *const fired_;  // [n] of one token, [tokens, n]; or null
    float* const values_;                  // [tokens, n] or null
    Batch ready_, waiting_;
};

// Adds up what several threads have done.
struct Totals {
    std::atomic<int64_t> proposed{0}, computed{0}, fired{0};

    void add(const Spans& done) {
        proposed += done.proposed;
        computed += done.computed;
        fired += done.fired;
    }
    void report(OpTimer& timer, const Neurons& w, int64_t rows, NeuronCounts* counts) const {
        timer.read(uint64_t(proposed) * cpu::row_bytes(w, cpu::first_rows(w)));
        if (w.gate) timer.read(uint64_t(computed) * cpu::row_bytes(w, w.up));
        timer.read(uint64_t(fired) * cpu::row_bytes(w, w.down));
        if (!counts) return;
        counts->rows += rows;
        counts->proposed += proposed;
        counts->computed += computed;
        counts->fired += fired;
    }
};

// Adds n_sums sums [n_sums, cols] for n <= kColumns columns from c0 on.
void add_up(const Neurons& w, const float* sums, int64_t n_sums, int64_t c0, int64_t n, float* y) {
    float part[cpu::kSums * kColumns];
    cpu::add_tree(n_sums / 2, part, n, [&](int64_t pair, float* sum) {
        const float* const left = sums + 2 * pair * w.cols + c0;
        for (int64_t i = 0; i < n; i++) sum[i] = left[i] + left[w.cols + i];
    });
    cpu::place(w, part, c0, n, y);
}

// Neurons [begin, end), at most kTurn, whose gates are not 0: for rows that need all gates, which
// are read once for these. Their ids and values of row t begin at t * kTurn; count is by the place
// in `rows`.
void shared_gates(const Neurons& w, const cpu::RowProducts& products, const int32_t* rows,
                  int64_t n_rows, int64_t begin, int64_t end, int32_t* ids, float* values,
                  int32_t* count, uint8_t* strips) {
    float gates[cpu::kShared * kFewRows];
    for (; begin < end; begin += cpu::kShared) {
        const int64_t n = std::min(cpu::kShared, end - begin);
        int32_t tile[cpu::kShared];
        std::iota(tile, tile + n, int32_t(begin));
        products.dot(cpu::first_rows(w), cpu::first_bias(w), tile, n, rows, n_rows, gates, {},
                     strips);
        cpu::activate(w, gates, n * n_rows);
        for (int64_t t = 0; t < n_rows; t++) {
            for (int64_t i = 0; i < n; i++) {
                const float v = gates[i * n_rows + t];
                if (v == 0) continue;
                const int64_t at = rows[t] * cpu::kTurn + count[t]++;
                ids[at] = tile[i];
                values[at] = v;
            }
        }
    }
}

}  // namespace

void partial_ffn(Context& context, const Neurons& w, const Input& x, const Candidates& candidates,
                 NeuronScratch& scratch, float* sums, NeuronCounts* counts, bool* fired) {
    OpTimer timer(context.profile, "partial_ffn");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 1);
    if (fired) std::fill_n(fired, w.n, false);
    if (scratch.values) std::fill_n(scratch.values, w.n, 0.0f);
    Totals totals;
    // The sums of segments stay in a core's cache; what another core will read are those of pairs.
    // Several pairs at a time, because prefetching does not cross the pieces of a thread.
    const int64_t grain =
        std::clamp<int64_t>(kSegmentPairs / (6 * context.threads.active()), 1, kPairsTogether);
    context.threads.run(kSegmentPairs, grain, [&](int64_t begin, int64_t end, int thread) {
        float* const own = scratch.threads[size_t(thread)].segments;
        Spans all(w, rows, scratch.computed, fired, scratch.values);
        for (int64_t n; begin < end; begin += n) {
            n = std::min(kPairsTogether, end - begin);
            Span spans[2 * kPairsTogether];
            std::fill_n(own, 2 * n * w.cols, 0.0f);
            for (int64_t i = 0; i < 2 * n; i++) {
                const int64_t s = 2 * begin + i;
                spans[i] = {candidates.ids + segment_of(w.n, s).begin, candidates.count[s], 0,
                            own + i * w.cols};
            }
            all.run(spans, spans + 2 * n);
            for (int64_t i = 0; i < n; i++) {
                const float *const left = own + 2 * i * w.cols, *const right = left + w.cols;
                float* const sum = sums + (begin + i) * w.cols;
                for (int64_t c = 0; c < w.cols; c++) sum[c] = left[c] + right[c];
            }
        }
        totals.add(all);
    });
    totals.report(timer, w, 1, counts);
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
    Totals totals;
    context.threads.run(kSegments, 1, [&](int64_t s, int64_t, int thread) {
        const Segment segment = segment_of(w.n, s);
        int32_t* ids = scratch.threads[size_t(thread)].candidates;
        for (int64_t t = 0; t < x.rows; t++) {
            std::fill_n(scratch.few_sums + (t * kSegments + s) * w.cols, w.cols, 0.0f);
        }
        Spans all(w, products, nullptr, fired, scratch.values);
        Span spans[kFewRows];
        float values[kFewRows * cpu::kTurn];
        for (int64_t begin = segment.begin; begin < segment.end; begin += cpu::kTurn) {
            const int64_t end = std::min(begin + cpu::kTurn, segment.end);
            int64_t n = 0;
            const auto add_span = [&](int32_t token, int32_t count, const float* known) {
                if (!count) return;
                spans[n++] = {ids + token * cpu::kTurn, count, token,
                              scratch.few_sums + (token * kSegments + s) * w.cols, known};
            };
            for (int32_t t = 0; t < int32_t(x.rows); t++) {
                if (!mask.masks(t)) continue;
                int32_t *const of = ids + t * cpu::kTurn, count = 0;
                for (int64_t i = begin; i < end; i++) {
                    of[count] = int32_t(i);  // kept if count advances
                    count += mask.finds(t, w.n, i);
                }
                add_span(t, count, nullptr);
            }
            if (n_whole) {
                int32_t count[kFewRows] = {};
                shared_gates(w, products, whole, n_whole, begin, end, ids, values, count,
                             scratch.threads[size_t(thread)].strips);
                all.proposed += n_whole * (end - begin);
                for (int64_t i = 0; i < n_whole; i++) {
                    add_span(whole[i], count[i], values + whole[i] * cpu::kTurn);
                }
            }
            all.run(spans, spans + n);
        }
        totals.add(all);
    });
    const int64_t across = (w.cols + kColumns - 1) / kColumns;
    context.threads.run(x.rows * across, 1, [&](int64_t piece, int64_t, int) {
        const int64_t t = piece / across, c0 = piece % across * kColumns;
        add_up(w, scratch.few_sums + t * kSegments * w.cols, kSegments, c0,
               std::min(kColumns, w.cols - c0), y + t * w.cols);
    });
    totals.report(timer, w, x.rows, counts);
}

void merge(Context& context, const Neurons& w, const float* sums, int64_t n_sums, float* y) {
    const OpTimer timer(context.profile, "merge");
    context.threads.run(w.cols, kColumns, [&](int64_t begin, int64_t end, int) {
        add_up(w, sums, n_sums, begin, end - begin, y);
    });
}

}  // namespace ggml
