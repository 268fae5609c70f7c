// The neuron-aware feed-forward operator. Threads take segments of neurons. For one token a
// segment's gate, up and down are one pass over its candidates. For several tokens the first pass
// takes a few neurons at a time for all tokens and keeps what fired, and a second one adds the down
// rows by columns: each row is read, and unpacked, once for all tokens. Both add in the same order,
// hence with the same bits. neuron_rows.h multiplies and adds the rows, whatever their format.
#include "ggml/neurons.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu/neuron_rows.h"
#include "ggml/math.h"

namespace ggml {

namespace {

constexpr int64_t kSegments = 32;
// One token: candidates whose rows are on their way while the tile before is computed.
constexpr int64_t kTile = 8;
using cpu::kShared;  // several tokens: neurons taken together

// Several tokens: of the pairs of a tile's neurons and the tokens, the share from which on all are
// multiplied and the mask is applied to the result: fewer are listed row by row. 11,008 x 4,096
// Q4_0 neurons, 128 tokens, ms when 50, 60 and 70% are proposed: avx2 multiplied 156, 158 and 167,
// listed 121, 137 and 162; avx512 multiplied 91, 95 and 99, listed 89, 104 and 113.
constexpr double kDense = 0.75;
// Values of y that stay in a core's cache while the rows of all neurons go by.
constexpr int64_t kResident = 1 << 15;

// Neurons of a segment: whole tiles, so that dense lists stay aligned.
int64_t segment_size(int64_t n) {
    return (n + kSegments * kTile - 1) / (kSegments * kTile) * kTile;
}

int64_t tiles_per_segment(int64_t n) {
    return (segment_size(n) + kShared - 1) / kShared;
}

// Tokens that one thread adds at a time.
int64_t token_piece(int64_t columns) {
    return std::max<int64_t>(16, kResident / columns);
}

// Adds kSegments sums of n values, `step` apart, into the first: neighbours, then pairs, and so on.
void add_tree(float* sums, int64_t step, int64_t n) {
    for (int64_t apart = 1; apart < kSegments; apart *= 2) {
        for (int64_t s = 0; s + apart < kSegments; s += 2 * apart) {
            float* to = sums + s * step;
            const float* from = sums + (s + apart) * step;
            for (int64_t i = 0; i < n; i++) to[i] += from[i];
        }
    }
}

}  // namespace

class SparseFfn {
 public:
    SparseFfn(Context& context, const Neurons& w, const Input& x, const NeuronMask& mask,
              NeuronScratch& scratch, bool* fired)
        : context_(context),
          w_(w),
          x_(x),
          mask_(mask),
          s_(scratch),
          fired_(fired),
          size_(segment_size(w.n)),
          rows_(context, w, x, scratch.folded_, scratch.grouped_) {}

    void run(float* y, NeuronCounts* counts) {
        for (NeuronScratch::PerThread& own : s_.threads_) own.counts = {};
        if (fired_) std::fill_n(fired_, x_.rows * w_.n, false);
        // One token: more segments at a time, as rows are fetched ahead within them.
        const int64_t grain =
            x_.rows == 1 ? std::max<int64_t>(1, kSegments / (6 * context_.threads.active())) : 1;
        context_.threads.run(kSegments, grain, [&](int64_t begin, int64_t end, int thread) {
            if (x_.rows == 1) {
                one_token(begin, end, thread);
            } else {
                for (int64_t s = begin; s < end; s++) many_tokens(s, thread);
            }
        });
        if (x_.rows == 1) {
            finish_one(y);
        } else {
            finish_many(y);
        }
        if (!counts) return;
        counts->rows += x_.rows;
        for (const NeuronScratch::PerThread& own : s_.threads_) {
            counts->proposed += own.counts.proposed;
            counts->computed += own.counts.computed;
            counts->fired += own.counts.fired;
        }
    }

 private:
    bool masked(int64_t t) const { return mask_.masked && mask_.masked[t]; }

    bool proposed(int64_t t, int64_t neuron) const {
        return !masked(t) || mask_.score[t * w_.n + neuron] >= mask_.threshold ||
               (mask_.hot && mask_.hot[neuron]);
    }

    // One token: ids of the neurons of [begin, end) that it may compute.
    int64_t propose(int64_t begin, int64_t end, int32_t* ids) const {
        int64_t n = 0;
        for (int64_t i = begin; i < end; i++) {
            ids[n] = int32_t(i);  // kept by moving on: no branch to mispredict
            n += proposed(0, i);
        }
        return n;
    }

    float activate(float v) const {
        switch (w_.act) {
            case Activation::relu:
            case Activation::drelu:
                return v > w_.threshold ? v : 0;
            case Activation::relu2:
                return v > w_.threshold ? v * v : 0;
            default:
                break;
        }
        const float a = w_.act == Activation::silu ? silu(v) : gelu(v);
        return std::fabs(a) < w_.threshold ? 0 : a;
    }

    // What a neuron sends down, from its activated gate and its up product.
    float value(float gate, float up) const {
        return gate * (w_.act == Activation::drelu ? activate(up) : up);
    }

    void note(int64_t t, const int32_t* ids, int64_t n) const {
        if (!fired_) return;
        for (int64_t i = 0; i < n; i++) fired_[t * w_.n + ids[i]] = true;
    }

    // Neurons of segment s.
    int64_t begin_of(int64_t s) const { return std::min(s * size_, w_.n); }
    int64_t end_of(int64_t s) const { return begin_of(s + 1); }

    // One token, segments [s0, s1): tiles of candidates, then batches of those whose gates fire.
    // The rows of one tile or batch are on their way while the one before is computed, over the
    // ends of segments too.
    void one_token(int64_t s0, int64_t s1, int thread) {
        const NeuronRows& first = w_.gate ? w_.gate : w_.up;
        const float* first_bias = w_.gate ? w_.gate_bias : w_.up_bias;
        NeuronCounts& counts = s_.threads_[size_t(thread)].counts;
        int64_t n_ids[kSegments];
        for (int64_t s = s0; s < s1; s++) {
            n_ids[s] = propose(begin_of(s), end_of(s), s_.ids_ + begin_of(s));
            counts.proposed += n_ids[s];
        }
        Batch ready, waiting;
        // The waiting take the place of the ready, which are computed while their rows are fetched.
        const auto move_on = [&] {
            finish(ready, waiting, counts);
            ready = waiting;
            waiting.n = 0;
        };
        for (int64_t s = s0; s < s1; s++) {
            waiting.sum = s_.partial_ + s * w_.cols;
            std::fill_n(waiting.sum, w_.cols, 0.0f);
            const int32_t *ids = s_.ids_ + begin_of(s), *end = ids + n_ids[s];
            while (ids < end) {
                const int64_t n = std::min<int64_t>(kTile, end - ids);
                cpu::Ahead ahead =
                    ahead_of(first, ids + n, std::min<int64_t>(kTile, end - ids - n));
                if (ids + n == end && s + 1 < s1) {
                    ahead = ahead_of(first, s_.ids_ + end_of(s), std::min(kTile, n_ids[s + 1]));
                }
                float g[kTile];
                rows_.dot(first, first_bias, ids, n, kFirst, 1, g, ahead);
                for (int64_t j = 0; j < n; j++) {
                    const float v = activate(g[j]);
                    if (v == 0) continue;
                    waiting.ids[waiting.n] = ids[j];
                    waiting.h[waiting.n++] = v;
                    if (waiting.n == kTile) move_on();
                }
                ids += n;
            }
            if (waiting.n) move_on();
        }
        finish(ready, waiting, counts);
    }

    // Neurons of one segment whose gates fire, and where their sum goes.
    struct Batch {
        int32_t ids[kTile];
        float h[kTile];
        int64_t n = 0;
        float* sum;
    };

    cpu::Ahead ahead_of(const NeuronRows& rows, const int32_t* ids, int64_t n) const {
        return {rows.data, rows.stride, ids, n};
    }

    void finish(Batch& batch, const Batch& next, NeuronCounts& counts) const {
        if (!batch.n) return;
        counts.computed += batch.n;
        int64_t m = batch.n;
        if (w_.gate) {
            float u[kTile];
            rows_.dot(w_.up, w_.up_bias, batch.ids, m, kFirst, 1, u,
                      ahead_of(w_.up, next.ids, next.n));
            m = 0;
            for (int64_t i = 0; i < batch.n; i++) {
                batch.ids[m] = batch.ids[i];
                batch.h[m] = value(batch.h[i], u[i]);
                m += batch.h[m] != 0;
            }
        }
        counts.fired += m;
        note(0, batch.ids, m);
        const int32_t first[] = {0, int32_t(m)};
        rows_.add(batch.ids, m, 0, w_.cols,
                  {first, kInOrder, batch.h, ahead_of(w_.down, next.ids, next.n)}, 1, batch.sum, 0);
    }

    void many_tokens(int64_t s, int thread) {
        const int64_t begin = begin_of(s), end = end_of(s);
        NeuronScratch::PerThread& own = s_.threads_[size_t(thread)];
        const int64_t tile0 = s * tiles_per_segment(w_.n);
        for (int64_t i = begin; i < end; i += kShared) {
            const int64_t n = std::min(kShared, end - i), tile = tile0 + (i - begin) / kShared;
            fire_tile(i, n, own);
            keep_tile(i, n, tile, own);
        }
    }

    // Which tokens each of a tile's n neurons is computed for.
    struct Lists {
        Lists(int32_t* room, int64_t rows) : tokens(room), rows(rows) {}
        int32_t* of(int64_t j) const { return tokens + j * rows; }

        int32_t* tokens;  // [kShared, rows]
        int64_t rows, length[kShared], pairs = 0;
    };

    template <typename Wanted>
    Lists list(int64_t n, int32_t* room, const Wanted& wanted) const {
        Lists lists(room, x_.rows);
        for (int64_t j = 0; j < n; j++) {
            int64_t length = 0;
            for (int64_t t = 0; t < x_.rows; t++) {
                lists.of(j)[length] = int32_t(t);
                length += wanted(j, t);
            }
            lists.length[j] = length;
            lists.pairs += length;
        }
        return lists;
    }

    // out[j * rows + t] = row begin + j . token t for what is listed; anything for the rest.
    void dot_listed(const NeuronRows& rows, const float* bias, int64_t begin, int64_t n,
                    const Lists& lists, float* line, float* out) const {
        int32_t ids[kShared];
        for (int64_t j = 0; j < n; j++) ids[j] = int32_t(begin + j);
        if (double(lists.pairs) >= kDense * double(n * x_.rows)) {
            rows_.dot(rows, bias, ids, n, s_.all_tokens_, x_.rows, out);
            return;
        }
        for (int64_t j = 0; j < n; j++) {
            const int64_t m = lists.length[j];
            if (m) rows_.dot(rows, bias, ids + j, 1, lists.of(j), m, line);
            for (int64_t i = 0; i < m; i++) out[j * x_.rows + lists.of(j)[i]] = line[i];
        }
    }

    // h[j * rows + t] = what neuron begin + j of n sends down for token t; 0 where it does not fire
    // or is not proposed.
    void fire_tile(int64_t begin, int64_t n, NeuronScratch::PerThread& own) {
        const int64_t rows = x_.rows;
        float* h = own.h;
        const auto put = [&](const Lists& lists, const auto& result) {
            for (int64_t j = 0; j < n; j++) {
                for (int64_t i = 0; i < lists.length[j]; i++) {
                    const int64_t at = j * rows + lists.of(j)[i];
                    h[at] = result(h[at], own.out[at]);
                }
            }
        };
        std::fill_n(h, n * rows, 0.0f);
        const Lists candidates =
            list(n, own.tokens, [&](int64_t j, int64_t t) { return proposed(t, begin + j); });
        dot_listed(w_.gate ? w_.gate : w_.up, w_.gate ? w_.gate_bias : w_.up_bias, begin, n,
                   candidates, own.line, own.out);
        put(candidates, [&](float, float v) { return activate(v); });
        own.counts.proposed += candidates.pairs;
        const Lists fired =
            list(n, own.tokens, [&](int64_t j, int64_t t) { return h[j * rows + t] != 0; });
        own.counts.computed += fired.pairs;
        if (!w_.gate) return;
        dot_listed(w_.up, w_.up_bias, begin, n, fired, own.line, own.out);
        put(fired, [&](float gate, float up) { return value(gate, up); });
    }

    // Lists what fired in a tile token by token, as the second pass wants it.
    void keep_tile(int64_t begin, int64_t n, int64_t tile, NeuronScratch::PerThread& own) {
        const int64_t rows = x_.rows, at = tile * kShared * rows;
        int32_t *first = s_.first_ + tile * (rows + 1), *row = s_.ids_ + at;
        float* kept = s_.h_ + at;
        int32_t k = 0;
        for (int64_t t = 0; t < rows; t++) {
            first[t] = k;
            for (int64_t j = 0; j < n; j++) {
                const float v = own.h[j * rows + t];
                row[k] = int32_t(j);
                kept[k] = v;
                k += v != 0;
                if (fired_ && v != 0) fired_[t * w_.n + begin + j] = true;
            }
        }
        first[rows] = k;
        own.counts.fired += k;
    }

    // What tokens take of the neurons of a tile, in the scratch.
    cpu::Shares shares_of(int64_t tile) const {
        const int64_t at = tile * kShared * x_.rows;
        return {s_.first_ + tile * (x_.rows + 1), s_.ids_ + at, s_.h_ + at};
    }

    void finish_one(float* y) {
        context_.threads.run(w_.cols, 256, [&](int64_t begin, int64_t end, int) {
            add_tree(s_.partial_ + begin, w_.cols, end - begin);
            rows_.place(s_.partial_ + begin, begin, end - begin, y);
        });
    }

    void finish_many(float* y) {
        const int64_t columns = rows_.column_piece(), tokens = token_piece(columns);
        const int64_t n_columns = (w_.cols + columns - 1) / columns;
        const int64_t n_tokens = (x_.rows + tokens - 1) / tokens;
        context_.threads.run(n_columns * n_tokens, 1, [&](int64_t begin, int64_t end, int thread) {
            for (int64_t p = begin; p < end; p++) {
                const int64_t c0 = p % n_columns * columns, t0 = p / n_columns * tokens;
                finish_piece(c0, std::min(columns, w_.cols - c0), t0,
                             std::min(tokens, x_.rows - t0), s_.threads_[size_t(thread)].sums, y);
            }
        });
    }

    // Tokens [t0, t0 + nt) and n columns from c0 on. Sums of segments are added as add_tree does,
    // but as soon as both are there: where the number of a segment ends in ones, as many additions
    // follow it.
    void finish_piece(int64_t c0, int64_t n, int64_t t0, int64_t nt, float* sums, float* y) {
        const int64_t size = nt * n, tiles = tiles_per_segment(w_.n);
        float* sum = sums;
        for (int64_t s = 0; s < kSegments; s++, sum += size) {
            std::fill_n(sum, size, 0.0f);
            const int64_t begin = begin_of(s), end = end_of(s);
            for (int64_t i = begin; i < end; i += kShared) {
                int32_t ids[kShared];
                const int64_t m = std::min(kShared, end - i);
                for (int64_t j = 0; j < m; j++) ids[j] = int32_t(i + j);
                cpu::Shares shares = shares_of(s * tiles + (i - begin) / kShared);
                shares.first += t0;
                if (shares.first[nt] == shares.first[0]) continue;
                rows_.add(ids, m, c0, n, shares, nt, sum, n);
            }
            for (int64_t ones = s; ones % 2; ones /= 2) {
                sum -= size;
                for (int64_t i = 0; i < size; i++) sum[i] += sum[size + i];
            }
        }
        for (int64_t t = 0; t < nt; t++) rows_.place(sums + t * n, c0, n, y + (t0 + t) * w_.cols);
    }

    Context& context_;
    const Neurons& w_;
    const Input& x_;
    const NeuronMask& mask_;
    NeuronScratch& s_;
    bool* const fired_;  // [rows, n] or null
    const int64_t size_;
    cpu::RowProducts rows_;

    static constexpr int32_t kFirst[1] = {0};  // the only token
    static constexpr int32_t kInOrder[kTile] = {0, 1, 2, 3, 4, 5, 6, 7};
};

namespace {

// How many sums a thread keeps at once while it adds those of segments pairwise.
constexpr int64_t kSums = 6;
static_assert(int64_t(1) << (kSums - 1) == kSegments);

struct Sizes {
    Sizes(int64_t max_rows, int64_t n, int64_t cols, int threads_)
        : rows(max_rows), threads(threads_), partial(kSegments * cols) {
        blocks = rows * ((cols + kQ - 1) / kQ);
        listed = n;
        if (rows == 1) return;
        const int64_t tiles = kSegments * tiles_per_segment(n);
        listed = tiles * kShared * rows;
        firsts = tiles * (rows + 1);
        tile = kShared * rows;
        sums = kSums * std::min(kResident, rows * cols);
    }
    uint64_t bytes() const {
        return uint64_t(listed) * 8 + uint64_t(partial + firsts + rows) * 4 +
               uint64_t(threads * (3 * tile + rows + sums)) * 4 +
               uint64_t(blocks) * (2 * kQ + 3 * 4 + 2 * 2);
    }
    int64_t rows, threads, partial, blocks = 0, listed = 0, firsts = 0, tile = 0, sums = 0;
};

}  // namespace

uint64_t NeuronScratch::bytes(int64_t max_rows, int64_t n, int64_t cols, int max_threads) {
    return Sizes(max_rows, n, cols, max_threads).bytes();
}

NeuronScratch::NeuronScratch(int64_t max_rows, int64_t n, int64_t cols, int max_threads)
    : memory_(bytes(max_rows, n, cols, max_threads), "sparse scratch"),
      threads_(size_t(max_threads)) {
    const Sizes sizes(max_rows, n, cols, max_threads);
    uint8_t* at = memory_.data();
    const auto take = [&](auto& pointer, int64_t count) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(at);
        at += uint64_t(count) * sizeof(*pointer);
    };
    take(partial_, sizes.partial);
    for (PerThread& t : threads_) {
        take(t.sums, sizes.sums);
        take(t.h, sizes.tile);
        take(t.tokens, sizes.tile);
        take(t.out, sizes.tile);
        take(t.line, sizes.rows);
    }
    take(h_, sizes.listed);
    take(ids_, sizes.listed);
    take(first_, sizes.firsts);
    take(all_tokens_, sizes.rows);
    std::iota(all_tokens_, all_tokens_ + sizes.rows, 0);
    take(folded_.d, sizes.blocks);
    take(folded_.ds, sizes.blocks);
    take(folded_.s8, sizes.blocks);
    take(folded_.s16, 2 * sizes.blocks);
    take(folded_.q, sizes.blocks * kQ);
    take(grouped_, sizes.blocks * kQ);
}

void sparse_ffn(Context& context, const Neurons& neurons, const Input& x, const NeuronMask& mask,
                NeuronScratch& scratch, float* y, NeuronCounts* counts, bool* fired) {
    const NeuronRows* parts[] = {&neurons.gate, &neurons.up, &neurons.down};
    uint64_t bytes = 0;
    for (const NeuronRows* p : parts) {
        if (*p) bytes += uint64_t(neurons.n * info(p->type).size(neurons.cols));
    }
    const OpTimer timer(context.profile, "sparse_ffn", bytes);
    SparseFfn(context, neurons, x, mask, scratch, fired).run(y, counts);
}

}  // namespace ggml
