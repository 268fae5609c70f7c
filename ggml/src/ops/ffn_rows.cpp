// Several tokens. The first pass takes a few neurons at a time for all tokens and keeps the ones
// that fired. The second pass adds the down rows by columns. Each row is read and unpacked once for
// all tokens. Additions are in the same order as for one token, so the bits are the same.
#include <algorithm>
#include <bitset>
#include <numeric>

#include "ops/ffn_parts.h"
#include "ops/neuron_rows.h"

namespace ggml {

namespace {

using cpu::kMostRows;  // neurons in a tile

// If at least this share of the (neuron, token) pairs of a tile is needed, all pairs are multiplied
// and the mask is applied to the result. Otherwise each row is multiplied with a list of tokens.
// Measured with 11,008 x 4,096 Q4_0 neurons and 128 tokens, in ms for 50, 60 and 70% of the pairs:
// avx2, all pairs 156, 158 and 167, lists 121, 137 and 162; avx512, all pairs 91, 95 and 99, lists
// 89, 104 and 113.
constexpr double kDense = 0.75;
// Values of y that stay in a core's cache while the pass walks over the rows of all neurons.
constexpr int64_t kResident = 1 << 15;

int64_t tiles_per_segment(int64_t n) {
    return (segment_of(n, 0).end + kMostRows - 1) / kMostRows;
}

// Tokens that one thread adds at a time.
int64_t token_piece(int64_t columns) {
    return std::max<int64_t>(16, kResident / columns);
}

// For each neuron of a tile, tokens in ascending order.
struct Lists {
    Lists(int32_t* room, int64_t rows) : tokens(room), rows(rows) {}

    int32_t* of(int64_t j) const { return tokens + j * rows; }
    void add(int64_t j, int64_t t) { of(j)[length[j]++] = int32_t(t); }
    // Keeps the pairs for which wanted(j, t) is true.
    template <typename Wanted>
    void filter(int64_t n, const Wanted& wanted) {
        for (int64_t j = 0; j < n; j++) {
            int32_t *const of_j = of(j), count = 0;
            for (int64_t i = 0; i < length[j]; i++) {
                of_j[count] = of_j[i];  // kept if count advances
                count += wanted(j, of_j[i]);
            }
            length[j] = count;
        }
    }
    int64_t pairs() const { return std::accumulate(length, length + kMostRows, int64_t(0)); }

    int32_t* tokens;  // [kMostRows, rows]
    int64_t rows, length[kMostRows] = {};
};

class ManyTokens {
 public:
    // prepared: the scratch has the input already in the orders that products need.
    ManyTokens(Context& context, const Neurons& w, const Input& x, const NeuronMask& mask,
               NeuronScratch& scratch, bool* fired, bool prepared = false)
        : profiled_(context.profile.on),
          w_(w),
          rows_(context, w, x, scratch, 0, prepared ? 0 : x.rows),
          n_rows_(x.rows),
          mask_(mask),
          masked_(mask.masked &&
                  std::find(mask.masked, mask.masked + x.rows, true) != mask.masked + x.rows),
          s_(scratch),
          fired_(fired) {}

    // Computes and stores the values of the neurons of a tile of segment s.
    void fire_tile(int64_t s, int64_t tile, NeuronScratch::PerThread& own) {
        cpu::Done done;
        const Segment segment = segment_of(w_.n, s);
        const int64_t i = segment.begin + tile * kMostRows,
                      n = std::min(kMostRows, segment.end - i);
        Lists lists(own.tokens, n_rows_);
        if (masked_) {
            list_candidates(i, n, lists);
            compute(i, n, lists, own, done);
            keep_tile(i, n, lists, stored_at(s) + tile, own, done);
        } else if (compute_all(i, n, lists, own, done)) {
            keep_all(i, n, stored_at(s) + tile, own, done);
        } else {
            keep_tile(i, n, lists, stored_at(s) + tile, own, done);
        }
        totals.add(done);
    }

    int64_t tiles_of(int64_t s) const {
        const Segment segment = segment_of(w_.n, s);
        return (segment.end - segment.begin + kMostRows - 1) / kMostRows;
    }

    // Adds the down rows of 2^k segments [begin, end), for tokens [t0, t0 + nt) and n columns from
    // c0 on; then as many sums of earlier segments, from `partial`, as a tree over all would.
    void add(int64_t begin, int64_t end, int64_t c0, int64_t n, int64_t t0, int64_t nt, float* sum,
             float* partial, float* y) {
        cpu::add_tree(end - begin, sum, nt * n,
                      [&](int64_t i, float* of) { sum_segment(begin + i, c0, n, t0, nt, of); });
        const int64_t level_size = n_rows_ * w_.cols;
        for (int64_t ones = begin / (end - begin); ones % 2; ones /= 2, partial += level_size) {
            for (int64_t t = 0; t < nt; t++) {
                const float* const left = partial + (t0 + t) * w_.cols + c0;
                for (int64_t i = 0; i < n; i++) sum[t * n + i] = left[i] + sum[t * n + i];
            }
        }
        for (int64_t t = 0; t < nt; t++) {
            if (end == kSegments) {
                cpu::unpermute(w_, sum + t * n, c0, n, y + (t0 + t) * w_.cols);
            } else {
                std::copy_n(sum + t * n, n, partial + (t0 + t) * w_.cols + c0);
            }
        }
    }

    // For how many tokens each neuron of segment s fired.
    void count_fires(int64_t s, int32_t* fires) const {
        const Segment segment = segment_of(w_.n, s);
        std::fill(fires + segment.begin, fires + segment.end, 0);
        for (int64_t tile = 0; tile < tiles_of(s); tile++) {
            const int64_t at = stored_at(s) + tile;
            const cpu::WeightedRows weighted = weighted_of(at);
            const int32_t* const ids = neurons_of(at) + 1;
            for (int32_t k = 0; k < weighted.first[n_rows_]; k++) {
                fires[ids[weighted.row[k]]] += weighted.h[k] != 0;
            }
        }
    }

    // Gate and up rows are read once for all tokens, down rows once per piece of tokens that one
    // thread adds.
    cpu::Totals totals;

 private:
    // The first tile of a segment among those that are stored.
    int64_t stored_at(int64_t s) const {
        return (s_.by_segment ? s % kTogether : s) * tiles_per_segment(w_.n);
    }

    // The sum of the down rows of segment s.
    void sum_segment(int64_t s, int64_t c0, int64_t n, int64_t t0, int64_t nt, float* sum) {
        int64_t n_read = 0;  // rows; counted only in the first range of columns
        std::fill_n(sum, nt * n, 0.0f);
        for (int64_t tile = 0; tile < tiles_of(s); tile++) {
            const int32_t* const neurons = neurons_of(stored_at(s) + tile);
            cpu::WeightedRows weighted = weighted_of(stored_at(s) + tile);
            weighted.first += t0;
            if (weighted.first[nt] == weighted.first[0]) continue;
            rows_.add(neurons + 1, neurons[0], c0, n, weighted, nt, sum, n);
            if (profiled_ && c0 == 0) n_read += rows_of(weighted, nt);
        }
        if (n_read) totals.bytes += uint64_t(n_read) * cpu::row_bytes(w_, w_.down);
    }

    // The tokens for which neurons [begin, begin + n) may fire.
    void list_candidates(int64_t begin, int64_t n, Lists& lists) const {
        for (int64_t t = 0; t < n_rows_; t++) {
            if (!mask_.masks(t)) {
                for (int64_t j = 0; j < n; j++) lists.add(j, t);
                continue;
            }
            int32_t found[kMostRows];
            const int32_t count = mask_.list(t, w_.n, begin, begin + n, found);
            for (int32_t i = 0; i < count; i++) lists.add(found[i] - begin, t);
        }
    }

    // own.h[j * rows + t] = the value of neuron begin + j for token t, for the listed pairs. Those
    // that do not fire leave the lists.
    void compute(int64_t begin, int64_t n, Lists& lists, NeuronScratch::PerThread& own,
                 cpu::Done& done) const {
        dot_listed(cpu::first_rows(w_), cpu::first_bias(w_), begin, n, lists, own, done);
        done.proposed += lists.pairs();
        rows_.activate(own.out, n * n_rows_);
        std::swap(own.h, own.out);
        compute_gated(begin, n, lists, own, done);
    }

    // The same from own.h, the activated gates of the listed pairs.
    void compute_gated(int64_t begin, int64_t n, Lists& lists, NeuronScratch::PerThread& own,
                       cpu::Done& done) const {
        const auto fires = [&](int64_t j, int64_t t) { return own.h[j * n_rows_ + t] != 0; };
        lists.filter(n, fires);
        done.computed += lists.pairs();
        if (!w_.gate) return;
        dot_listed(w_.up, w_.up_bias, begin, n, lists, own, done);
        rows_.values(own.h, own.out, n * n_rows_, own.h);
        lists.filter(n, fires);
    }

    // Computes neurons begin + j for all tokens. Do so many pairs fire that zeros may be added like
    // other values? If not, the pairs that fire are listed.
    bool compute_all(int64_t begin, int64_t n, Lists& lists, NeuronScratch::PerThread& own,
                     cpu::Done& done) const {
        const int64_t pairs = n * n_rows_;
        const auto fired = [&] { return pairs - std::count(own.h, own.h + pairs, 0.0f); };
        dot_all(cpu::first_rows(w_), cpu::first_bias(w_), begin, n, own.h, own, done);
        rows_.activate(own.h, pairs);
        done.proposed += pairs;
        const int64_t n_first = fired();
        if (double(n_first) < kDense * double(pairs)) {
            for (int64_t t = 0; t < n_rows_; t++) {
                for (int64_t j = 0; j < n; j++) lists.add(j, t);
            }
            compute_gated(begin, n, lists, own, done);
            return false;
        }
        done.computed += n_first;
        if (w_.gate) {
            dot_all(w_.up, w_.up_bias, begin, n, own.out, own, done);
            rows_.values(own.h, own.out, pairs, own.h);
        }
        // Rows that nobody needs may not be there. Then nothing is added of them.
        const int64_t n_fired = fired();
        if (n_fired == pairs || (!w_.down.row_at && double(n_fired) >= kDense * double(pairs))) {
            done.fired += n_fired;
            return true;
        }
        for (int64_t j = 0; j < n; j++) {
            for (int64_t t = 0; t < n_rows_; t++) {
                if (own.h[j * n_rows_ + t] != 0) lists.add(j, t);
            }
        }
        return false;
    }

    void dot_all(const NeuronRows& rows, const float* bias, int64_t begin, int64_t n, float* out,
                 const NeuronScratch::PerThread& own, cpu::Done& done) const {
        int32_t ids[kMostRows];
        std::iota(ids, ids + n, int32_t(begin));
        rows_.dot(rows, bias, ids, n, s_.tokens, n_rows_, out, {}, own.strips);
        done.bytes += uint64_t(n) * cpu::row_bytes(w_, rows);
    }

    // own.out[j * rows + t] = row begin + j . token t for the listed pairs; undefined for the
    // others.
    void dot_listed(const NeuronRows& rows, const float* bias, int64_t begin, int64_t n,
                    const Lists& lists, NeuronScratch::PerThread& own, cpu::Done& done) const {
        if (double(lists.pairs()) >= kDense * double(n * n_rows_)) {
            return dot_all(rows, bias, begin, n, own.out, own, done);
        }
        int32_t ids[kMostRows];
        std::iota(ids, ids + n, int32_t(begin));
        for (int64_t j = 0; j < n; j++) {
            const int64_t m = lists.length[j];
            if (!m) continue;
            rows_.dot(rows, bias, ids + j, 1, lists.of(j), m, own.line);
            for (int64_t i = 0; i < m; i++) own.out[j * n_rows_ + lists.of(j)[i]] = own.line[i];
            done.bytes += cpu::row_bytes(w_, rows);
        }
    }

    // Stores the neurons of a tile that fired, by token for the second pass.
    void keep_tile(int64_t begin, int64_t n, const Lists& lists, int64_t tile,
                   const NeuronScratch::PerThread& own, cpu::Done& done) {
        const int64_t at = tile * kMostRows * n_rows_;
        int32_t *const first = s_.first + tile * (n_rows_ + 1), *const row = s_.fired + at;
        float* const kept = s_.h + at;
        int32_t index[kMostRows];  // in the list of neurons that fired
        std::fill_n(first, n_rows_ + 1, 0);
        int32_t *const neurons = neurons_of(tile), n_fired = 0;
        const auto each = [&](const auto& visit) {
            for (int64_t j = 0; j < n; j++) {
                for (int64_t i = 0; i < lists.length[j]; i++) visit(j, lists.of(j)[i]);
            }
        };
        for (int64_t j = 0; j < n; j++) {
            neurons[1 + n_fired] = int32_t(begin + j);  // kept if n_fired advances
            index[j] = n_fired;
            n_fired += lists.length[j] > 0;
        }
        neurons[0] = n_fired;
        each([&](int64_t, int64_t t) { first[t + 1]++; });
        std::partial_sum(first, first + n_rows_ + 1, first);
        each([&](int64_t j, int64_t t) {
            const int32_t k = first[t]++;
            row[k] = index[j];
            kept[k] = own.h[j * n_rows_ + t];
            if (fired_) fired_[t * w_.n + begin + j] = true;
            if (s_.values) s_.values[t * w_.n + begin + j] = kept[k];
        });
        std::copy_backward(first, first + n_rows_, first + n_rows_ + 1);
        first[0] = 0;
        done.fired += first[n_rows_];
    }

    // Stores all of them, for all tokens.
    void keep_all(int64_t begin, int64_t n, int64_t tile, const NeuronScratch::PerThread& own,
                  cpu::Done&) {
        const int64_t at = tile * kMostRows * n_rows_;
        int32_t *const first = s_.first + tile * (n_rows_ + 1), *const neurons = neurons_of(tile);
        neurons[0] = int32_t(n);
        std::iota(neurons + 1, neurons + 1 + n, int32_t(begin));
        for (int64_t t = 0; t <= n_rows_; t++) first[t] = int32_t(t * n);
        for (int64_t t = 0; t < n_rows_; t++) {
            float* const kept = s_.h + at + t * n;
            std::iota(s_.fired + at + t * n, s_.fired + at + (t + 1) * n, 0);
            for (int64_t j = 0; j < n; j++) kept[j] = own.h[j * n_rows_ + t];
            if (s_.values) std::copy_n(kept, n, s_.values + t * w_.n + begin);
            for (int64_t j = 0; fired_ && j < n; j++) fired_[t * w_.n + begin + j] = kept[j] != 0;
        }
    }

    // What keep_tile() stored.
    int32_t* neurons_of(int64_t tile) const { return s_.neurons + tile * (1 + kMostRows); }
    cpu::WeightedRows weighted_of(int64_t tile) const {
        const int64_t at = tile * kMostRows * n_rows_;
        return {s_.first + tile * (n_rows_ + 1), s_.fired + at, s_.h + at};
    }

    // The number of rows of a tile that nt tokens need.
    static int64_t rows_of(const cpu::WeightedRows& weighted, int64_t nt) {
        uint64_t taken = 0;
        for (int32_t k = weighted.first[0]; k < weighted.first[nt]; k++) {
            taken |= uint64_t(1) << weighted.row[k];
        }
        return int64_t(std::bitset<kMostRows>(taken).count());
    }

    const bool profiled_;  // counting the rows that are read costs time
    const Neurons& w_;
    const cpu::RowProducts rows_;
    const int64_t n_rows_;
    const NeuronMask& mask_;
    const bool masked_;  // is any token?
    NeuronScratch& s_;
    bool* const fired_;  // [rows, n] or null
};

}  // namespace

NeuronScratch::NeuronScratch(Carver& carver, int64_t max_rows, int64_t n, int64_t cols,
                             int max_threads, bool by_segment_)
    : folded(Q8Rows::carve(carver, max_rows, cols)),
      by_segment(by_segment_),
      threads(size_t(max_threads)) {
    const int64_t tiles = (by_segment ? kTogether : kSegments) * tiles_per_segment(n);
    carver.take(grouped, {max_rows, cols});
    carver.take(neurons, {tiles, 1 + kMostRows});
    carver.take(fired, {tiles, kMostRows, max_rows});
    carver.take(h, {tiles, kMostRows, max_rows});
    carver.take(first, {tiles, max_rows + 1});
    carver.take(tokens, {max_rows});
    if (tokens) std::iota(tokens, tokens + max_rows, 0);
    const int64_t few = by_segment ? 1 : std::min(max_rows, kFewRows);
    if (few > 1) carver.take(few_sums, {few, kSegments, cols});
    for (PerThread& t : threads) {
        if (few > 1) carver.take(t.candidates, {few, cpu::kTurn});
        carver.take(t.sums, {cpu::kSums, std::min(kResident, max_rows * cols)});
        carver.take(t.segments, {2 * kPairsTogether, cols});
        carver.take(t.h, {kMostRows, max_rows});
        carver.take(t.tokens, {kMostRows, max_rows});
        carver.take(t.out, {kMostRows, max_rows});
        carver.take(t.line, {max_rows});
        if (cols % (kStrip * 2 * kQ))
            carver.take(t.strips, {cpu::kPacked, info(DType::Q8_0).size(cols)});
    }
}

namespace {

// Segments [begin, end) of several rows: see ManyTokens::add. grain: tiles that a thread computes
// at a time.
void run_segments(Context& context, OpTimer& timer, const Neurons& w, const Input& x,
                  const NeuronMask& mask, NeuronScratch& scratch, int64_t begin, int64_t end,
                  int64_t grain, float* partial, float* y, NeuronCounts* counts, bool* fired,
                  int32_t* fires) {
    if (fired && begin == 0) std::fill_n(fired, x.rows * w.n, false);
    ManyTokens tokens(context, w, x, mask, scratch, fired, begin > 0);
    const int64_t tiles = tiles_per_segment(w.n);
    context.threads.run((end - begin) * tiles, grain, [&](int64_t tile, int64_t last, int thread) {
        for (; tile < last; tile++) {
            const int64_t s = begin + tile / tiles, i = tile % tiles;
            if (i < tokens.tiles_of(s)) tokens.fire_tile(s, i, scratch.threads[size_t(thread)]);
        }
    });
    const int64_t columns = cpu::column_piece(w), n_tokens = token_piece(columns);
    const int64_t across = (w.cols + columns - 1) / columns;
    const int64_t down = (x.rows + n_tokens - 1) / n_tokens;
    context.threads.run(across * down, 1, [&](int64_t piece, int64_t, int thread) {
        const int64_t c0 = piece % across * columns, t0 = piece / across * n_tokens;
        tokens.add(begin, end, c0, std::min(columns, w.cols - c0), t0,
                   std::min(n_tokens, x.rows - t0), scratch.threads[size_t(thread)].sums, partial,
                   y);
    });
    for (int64_t s = begin; fires && s < end; s++) tokens.count_fires(s, fires);
    tokens.totals.report(timer, end == kSegments ? x.rows : 0, counts);
}

}  // namespace

// Do a few rows share little of what they read besides gates? Under a mask, or if many gates are 0.
// Decoding a 7B Q4_0 with a predictor at a density of 0.10 on 2 cores of Zen 5, tokens a second by
// turns and together: 2 rows 23 and 14, 4 rows 36 and 21, 8 rows 57 and 32, 16 rows 64 and 45, 32
// rows 76 and 63 (since then computing together became faster; on Sapphire Rapids, 24 and 32 rows
// take as long either way). Sums of so many rows would take 16 MB. Without a predictor, 16 layers
// of a 1B, one core, ms of this operator: 2 rows 14 and 18, 4 rows 26 and 33, 8 rows 41 and 54, 16
// rows 75 and 88; at a density of 0.6, 4 of these layers, about the same from 8 rows on.
//
// In a larger batch of masked rows and of a prompt, masked rows by themselves save nothing: the
// operator took 142 and 144 ms for 2 of them and 32 of a prompt, 174 and 167 for 8; with 128 of a
// prompt 435 and 426, and 457 and 449.
static bool takes_turns(const Neurons& w, const NeuronMask& mask, int64_t rows) {
    const bool zeros = w.act == Activation::relu || w.act == Activation::drelu ||
                       w.act == Activation::relu2 || w.threshold > 0;
    return zeros || (mask.masked && std::all_of(mask.masked, mask.masked + rows,
                                                [](bool masked) { return masked; }));
}

void rows_ffn(Context& context, const Neurons& w, const Input& x, const NeuronMask& mask,
              NeuronScratch& scratch, float* y, NeuronCounts* counts, bool* fired) {
    if (scratch.few_sums && x.rows <= kFewRows && takes_turns(w, mask, x.rows)) {
        few_rows_ffn(context, w, x, mask, scratch, y, counts, fired);
        return;
    }
    OpTimer timer(context.profile, "rows_ffn");
    if (scratch.values) std::fill_n(scratch.values, x.rows * w.n, 0.0f);
    run_segments(context, timer, w, x, mask, scratch, 0, kSegments, tiles_per_segment(w.n), nullptr,
                 y, counts, fired, nullptr);
}

void rows_ffn_segments(Context& context, const Neurons& w, const Input& x, const NeuronMask& mask,
                       NeuronScratch& scratch, int64_t s, float* partial, float* y,
                       NeuronCounts* counts, bool* fired, int32_t* fires) {
    OpTimer timer(context.profile, "rows_ffn_segments");
    if (scratch.values && s == 0) std::fill_n(scratch.values, x.rows * w.n, 0.0f);
    run_segments(context, timer, w, x, mask, scratch, s, s + kTogether, 1, partial, y, counts,
                 fired, fires);
}

}  // namespace ggml
