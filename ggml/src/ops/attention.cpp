// Causal attention. The queries of a KV head are those of all rows and of all heads of its group.
// Up to kQueries adjacent ones of a sequence form a tile, which goes over keys and values together.
//
// Positions are divided into blocks of kBlock, which begin at multiples of kBlock. Each block gives
// a query a largest score, a sum and weighted values of its own (as in FlashAttention, arXiv
// 2205.14135), and these are merged in ascending order. So the bits of a row do not depend on its
// tile, nor on what computes its blocks: one thread after the other for the rows of a prompt, many
// threads at once for a few rows (as in Flash-Decoding).
#include "ggml/attention.h"

#include <algorithm>
#include <cmath>

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml {

// Queries [first_query, first_query + n) of each KV head, of rows from `row` on, which is the first
// row of their sequence here.
struct AttentionTile {
    int64_t row, first_query, n;
    int64_t begin, end;    // positions that one of them sees
    int64_t items, parts;  // blocks, and queries times blocks, of the tiles before this one

    int64_t first_block() const { return begin / kAttentionBlock; }
    int64_t n_blocks() const {
        return (end + kAttentionBlock - 1) / kAttentionBlock - first_block();
    }
};

namespace {

constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kQueries = 64;     // in a tile at most
constexpr int64_t kSplitRows = 4;    // whose blocks are computed at the same time
constexpr int64_t kSerial = 200000;  // products that take less time than waking a thread is worth

// Those of the queries from number i on.
AttentionSums from(const AttentionSums& sums, int64_t i, int64_t width) {
    return {sums.top + i, sums.sum + i, sums.values + i * width};
}

void clear(const AttentionSums& sums, int64_t n, int64_t width) {
    std::fill_n(sums.top, n, -INFINITY);
    std::fill_n(sums.sum, n, 0.0f);
    std::fill_n(sums.values, n * width, 0.0f);
}

// to[i] += block[j]: the sums of more positions.
void merge(const cpu::Kernels& kernels, const AttentionSums& to, int64_t i,
           const AttentionSums& block, int64_t j, int64_t width) {
    const float top = std::max(to.top[i], block.top[j]);
    const float shrink = exp_f32(to.top[i] - top), weight = exp_f32(block.top[j] - top);
    to.top[i] = top;
    to.sum[i] = to.sum[i] * shrink + block.sum[j] * weight;
    kernels.mix[int(DType::F32)](to.values + i * width, shrink, block.values + j * width, weight,
                                 width);
}

struct Range {
    int64_t begin, end;

    bool operator==(const Range& o) const { return begin == o.begin && end == o.end; }
};

// One call of attention().
class Call {
 public:
    Call(Context& context, const KvLayer& layer, int64_t n_head, AttentionScores how,
         const AttentionRow* rows, int64_t n_rows, const float* q, const AttentionScratch& scratch,
         float* out)
        : context_(context),
          kernels_(context.kernels),
          layer_(layer),
          n_head_(n_head),
          n_kv_(layer.n_head_kv),
          group_(n_head / layer.n_head_kv),
          dim_(layer.head_dim),
          v_dim_(layer.v_head_dim),
          how_(how),
          rows_(rows),
          n_rows_(n_rows),
          q_(q),
          scratch_(scratch),
          out_(out) {}

    void run() {
        OpTimer timer(context_.profile, "attention");
        divide();
        int64_t positions = 0, products = 0;
        for (int64_t i = 0; i < n_tiles_; i++) {
            const int64_t seen = tiles_[i].end - tiles_[i].begin;
            positions += seen;
            products += seen * tiles_[i].n * n_kv_ * (dim_ + v_dim_);
        }
        const int64_t values = layer_.v ? layer_.value_bytes() : 0;
        timer.read(uint64_t(positions * n_kv_ * (layer_.key_bytes() + values)));
        const int64_t items = n_tiles_ * n_kv_;
        const bool alone = context_.threads.active() == 1 || products < kSerial;
        if (!alone && n_rows_ <= kSplitRows && items < 8 * context_.threads.active() &&
            parts_ * n_kv_ <= scratch_.max_sums && parts_ * n_kv_ * v_dim_ <= scratch_.max_values) {
            blocks_apart();
            return;
        }
        // The last tiles of a prompt see most positions, so they come first.
        context_.threads.run(items, alone ? items : 1, [&](int64_t b, int64_t e, int thread) {
            for (int64_t i = b; i < e; i++) {
                whole_tile(tiles_[n_tiles_ - 1 - i / n_kv_], i % n_kv_, scratch_.threads[thread]);
            }
        });
    }

 private:
    // Divides the queries of a KV head into tiles.
    void divide() {
        // Smaller tiles if otherwise some threads would have none.
        const int64_t all = n_rows_ * group_ * n_kv_, threads = context_.threads.active();
        const int64_t most = std::clamp(all / (2 * threads), std::min(group_, kQueries), kQueries);
        int64_t items = 0;
        for (int64_t t = 0; t < n_rows_;) {
            const int64_t row = t;
            while (++t < n_rows_ && follows(rows_[t - 1], rows_[t])) {
            }
            const int64_t queries = (t - row) * group_;
            const int64_t n = (queries + most - 1) / most;
            for (int64_t i = 0; i < n; i++) {
                const int64_t first = queries * i / n, end = queries * (i + 1) / n;
                AttentionTile tile{row, first, end - first, 0, 0, items, parts_};
                tile.begin = row_of(tile, 0).first;
                tile.end = row_of(tile, tile.n - 1).end;
                items += tile.n_blocks();
                parts_ += tile.n_blocks() * tile.n;
                tiles_[n_tiles_++] = tile;
            }
        }
        items_ = items;
    }
    static bool follows(const AttentionRow& a, const AttentionRow& b) {
        return a.pages == b.pages && a.first <= b.first && a.end <= b.end;
    }

    const AttentionRow& row_of(const AttentionTile& tile, int64_t i) const {
        return rows_[tile.row + (tile.first_query + i) / group_];
    }
    // The number of query i of a tile among the heads of all rows, as they are in q and out.
    int64_t number(const AttentionTile& tile, int64_t kv_head, int64_t i) const {
        const int64_t query = tile.first_query + i;
        return (tile.row + query / group_) * n_head_ + kv_head * group_ + query % group_;
    }
    // The queries of a tile, less those of the first rows that are `before` and of the last ones
    // that are `beyond`. Rows see ever later positions.
    template <typename Before, typename Beyond>
    Range queries(const AttentionTile& tile, const Before& before, const Beyond& beyond) const {
        const int64_t first = tile.first_query, last = first + tile.n;
        int64_t begin = first / group_, end = (last - 1) / group_ + 1;  // rows
        const AttentionRow* rows = rows_ + tile.row;
        while (begin < end && before(rows[begin])) begin++;
        while (end > begin && beyond(rows[end - 1])) end--;
        return {std::max(begin * group_, first) - first, std::min(end * group_, last) - first};
    }
    // Those that see one of these positions, or all of them.
    Range seeing(const AttentionTile& tile, int64_t begin, int64_t end) const {
        return queries(
            tile, [&](const AttentionRow& r) { return r.end <= begin; },
            [&](const AttentionRow& r) { return r.first >= end; });
    }
    Range seeing_all(const AttentionTile& tile, int64_t begin, int64_t end) const {
        return queries(
            tile, [&](const AttentionRow& r) { return r.end < end; },
            [&](const AttentionRow& r) { return r.first > begin; });
    }

    // Gathers the queries of a tile, multiplied by the scale of the scores.
    void load(const AttentionTile& tile, int64_t kv_head,
              const AttentionScratch::Thread& mine) const {
        const float scale = how_.softcap == 0 ? how_.scale : how_.scale / how_.softcap;
        for (int64_t i = 0; i < tile.n; i++) {
            const float* from = q_ + number(tile, kv_head, i) * dim_;
            for (int64_t c = 0; c < dim_; c++) mine.q[i * dim_ + c] = from[c] * scale;
        }
        if (!quantised_) return;
        Q8Rows q8 = mine.q8;
        q8.cols = dim_;
        kernels_.quantize[int(DType::F32)](mine.q, 0, tile.n, q8);
    }

    // The sums of a block of positions for the queries of a tile that see one of them.
    Range block(const AttentionTile& tile, int64_t kv_head, int64_t b,
                const AttentionScratch::Thread& mine, const AttentionSums& out) const {
        const int64_t b0 = b * kBlock, b1 = b0 + kBlock;
        const Range all = seeing(tile, b0, b1);
        const int64_t begin = std::max(tile.begin, b0), end = std::min(tile.end, b1);
        const auto page_of = [&](int64_t p) {
            return rows_[tile.row].pages[p / kKvPage] * layer_.page_stride;
        };
        const auto keys = [&](int64_t p) {
            return layer_.k + page_of(p) + kv_head * layer_.key_run();
        };
        // What values are read from.
        const auto values = [&](int64_t p) {
            return layer_.v ? layer_.v + page_of(p) + kv_head * layer_.value_run() : keys(p);
        };
        const int64_t first = begin / kKvPage * kKvPage;
        for (int64_t p = first; p < end; p += kKvPage) {
            const bool last = p + kKvPage >= end;
            const uint8_t* next = last ? values(first) : keys(p + kKvPage);
            const Range some = seeing(tile, p, p + kKvPage);
            if (some.begin < some.end) {
                const int64_t n = std::min(end - p, kKvPage);
                scores(keys(p), n, next, some, mine, mine.scores + p - b0);
            }
        }
        for (int64_t i = all.begin; i < all.end; i++) {
            const AttentionRow& row = row_of(tile, i);
            if (how_.bias) add_bias(tile, kv_head, i, b0, mine.scores + i * kBlock);
            kernels_.softmax[int(DType::F32)](
                mine.scores + i * kBlock, std::max(row.first, b0) - b0, std::min(row.end, b1) - b0,
                how_.softcap, out.top + i, out.sum + i);
        }
        std::fill(out.values + all.begin * v_dim_, out.values + all.end * v_dim_, 0.0f);
        for (int64_t p = first; p < end; p += kKvPage) {
            const uint8_t* run = values(p);
            if (!layer_.v) {
                keys_to_values(layer_.type, dim_, v_dim_, run, mine.values);
                run = mine.values;
            }
            const uint8_t* next = p + kKvPage < end ? values(p + kKvPage)
                                  : b1 < tile.end   ? keys(b1)
                                                    : run;
            const Range some = seeing(tile, p, p + kKvPage);
            const Range whole = seeing_all(tile, p, p + kKvPage);
            const auto weigh = [&](Range queries, int64_t from, int64_t to) {
                if (quantised_) {
                    kernels_.weigh[int(layer_.type)](run, next, v_dim_, from - p, to - p,
                                                     mine.scores + queries.begin * kBlock + p - b0,
                                                     kBlock, queries.end - queries.begin,
                                                     out.values + queries.begin * v_dim_, v_dim_);
                    return;
                }
                const int64_t skipped = (from - p) * layer_.value_bytes();
                kernels_.accumulate[int(layer_.type)](
                    run + skipped, next + skipped, layer_.value_bytes(), to - from, v_dim_,
                    mine.scores + queries.begin * kBlock + from - b0, kBlock,
                    queries.end - queries.begin, out.values + queries.begin * v_dim_, v_dim_);
            };
            const auto seen = [&](int64_t i) {
                const AttentionRow& row = row_of(tile, i);
                return Range{std::max(row.first, p), std::min(row.end, p + kKvPage)};
            };
            const auto partly = [&](int64_t i, int64_t n) {
                while (i < n) {
                    const Range these = seen(i);
                    int64_t same = i + 1;
                    while (same < n && seen(same) == these) same++;
                    weigh({i, same}, these.begin, these.end);
                    i = same;
                }
            };
            if (whole.begin >= whole.end) {
                partly(some.begin, some.end);
                continue;
            }
            partly(some.begin, whole.begin);
            weigh(whole, p, p + kKvPage);
            partly(whole.end, some.end);
        }
        return all;
    }

    // y[i * kBlock + position]: products of queries with the first keys of a page.
    void scores(const uint8_t* keys, int64_t n_keys, const uint8_t* next, Range queries,
                const AttentionScratch::Thread& mine, float* y) const {
        const int64_t i = queries.begin, n = queries.end - i;
        y += i * kBlock;
        if (quantised_) {
            Q8Rows q8 = mine.q8;
            q8.cols = dim_;
            // Bit by bit, because a core has room for only a few outstanding cache lines.
            constexpr int64_t kPart = 4;  // strips
            const int64_t bytes = kPart * kStrip * layer_.key_bytes();
            for (int64_t p = 0; p < n_keys; p += kPart * kStrip, keys += bytes, next += bytes) {
                for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(next + b, 0, 2);
                kernels_.strip[int(layer_.type)](keys, kPart, q8, i, n, y + p, kBlock);
            }
        } else {
            kernels_.scores[int(layer_.type)](keys, next, dim_, n_keys, mine.q + i * dim_, n, y,
                                              kBlock);
        }
    }

    // Adds its biases to the scores [kBlock] of query i, of the positions from b0 on that it sees.
    void add_bias(const AttentionTile& tile, int64_t kv_head, int64_t i, int64_t b0,
                  float* scores) const {
        const AttentionRow& row = row_of(tile, i);
        const int64_t head = number(tile, kv_head, i) % n_head_;
        const int64_t from = std::max(b0, row.first), to = std::min(b0 + kBlock, row.end);
        const float* const of_head = how_.bias + head * (2 * how_.farthest + 1);
        const float* const bias = of_head + how_.farthest + from - row.at;
        for (int64_t p = from; p < to; p++) scores[p - b0] += bias[p - from];
    }

    // The result of the query with this number, from the sums of query i, now that all of its
    // blocks are merged: so the sink of its head counts once.
    void finish(const AttentionSums& sums, int64_t i, int64_t number) const {
        float sum = sums.sum[i], *const values = sums.values + i * v_dim_;
        if (how_.sinks) {
            const float sink = how_.sinks[number % n_head_];
            const float top = std::max(sums.top[i], sink);
            const float shrink = exp_f32(sums.top[i] - top);
            sum = sum * shrink + exp_f32(sink - top);
            for (int64_t c = 0; c < v_dim_; c++) values[c] *= shrink;
        }
        float* const to = out_ + number * v_dim_;
        for (int64_t c = 0; c < v_dim_; c++) to[c] = values[c] / sum;
    }

    // All blocks of a tile in turn.
    void whole_tile(const AttentionTile& tile, int64_t kv_head,
                    const AttentionScratch::Thread& mine) const {
        load(tile, kv_head, mine);
        if (tile.n_blocks() == 1) {
            // With the bits of a merge with nothing: it makes 0 of -0.
            const AttentionSums& sums = mine.block;
            block(tile, kv_head, tile.first_block(), mine, sums);
            for (int64_t i = 0; i < tile.n * v_dim_; i++) sums.values[i] += 0.0f;
            for (int64_t i = 0; i < tile.n; i++) finish(sums, i, number(tile, kv_head, i));
            return;
        }
        clear(mine.all, tile.n, v_dim_);
        for (int64_t b = 0; b < tile.n_blocks(); b++) {
            const Range some = block(tile, kv_head, tile.first_block() + b, mine, mine.block);
            for (int64_t i = some.begin; i < some.end; i++)
                merge(kernels_, mine.all, i, mine.block, i, v_dim_);
        }
        for (int64_t i = 0; i < tile.n; i++) finish(mine.all, i, number(tile, kv_head, i));
    }

    // Every block of every tile as a piece of work; then the sums of each query are merged.
    void blocks_apart() const {
        const auto part = [&](const AttentionTile& tile, int64_t kv_head, int64_t b) {
            return from(scratch_.blocks, kv_head * parts_ + tile.parts + b * tile.n, v_dim_);
        };
        context_.threads.run(items_ * n_kv_, 1, [&](int64_t begin, int64_t end, int thread) {
            const AttentionScratch::Thread& mine = scratch_.threads[thread];
            for (int64_t i = begin; i < end; i++) {
                const int64_t kv_head = i / items_, item = i % items_;
                const AttentionTile* tile = tiles_ + n_tiles_ - 1;
                while (tile->items > item) tile--;
                const int64_t b = item - tile->items;
                load(*tile, kv_head, mine);
                block(*tile, kv_head, tile->first_block() + b, mine, part(*tile, kv_head, b));
            }
        });
        // Merging reads a float where the blocks read kBlock keys and values: not worth more
        // threads until there are many.
        const int64_t n = n_rows_ * n_head_, merged = parts_ * n_kv_ * v_dim_;
        const int64_t grain = merged < kSerial ? n : std::max<int64_t>(1, n / 16);
        context_.threads.run(n, grain, [&](int64_t begin, int64_t end, int thread) {
            const AttentionSums& sums = scratch_.threads[thread].all;
            for (int64_t q = begin; q < end; q++) {
                const int64_t kv_head = q / (n_rows_ * group_);
                int64_t i = q % (n_rows_ * group_);
                const AttentionTile* tile = tiles_;
                for (; i >= tile->n; tile++) i -= tile->n;
                clear(sums, 1, v_dim_);
                const AttentionRow& row = row_of(*tile, i);
                for (int64_t b = 0; b < tile->n_blocks(); b++) {
                    const int64_t b0 = (tile->first_block() + b) * kBlock;
                    if (row.end <= b0 || row.first >= b0 + kBlock) continue;
                    merge(kernels_, sums, 0, part(*tile, kv_head, b), i, v_dim_);
                }
                finish(sums, 0, number(*tile, kv_head, i));
            }
        });
    }

    Context& context_;
    const cpu::Kernels& kernels_;
    const KvLayer& layer_;
    const int64_t n_head_, n_kv_, group_, dim_, v_dim_;
    const AttentionScores how_;
    const bool quantised_ = info(layer_.type).is_quantised();
    const AttentionRow* const rows_;
    const int64_t n_rows_;
    const float* const q_;
    const AttentionScratch& scratch_;
    AttentionTile* const tiles_ = scratch_.tiles;
    int64_t n_tiles_ = 0, items_ = 0, parts_ = 0;  // of one KV head
    float* const out_;
};

}  // namespace

AttentionScratch::AttentionScratch(Carver& carver, int n_threads, int64_t max_rows,
                                   int64_t n_positions, const AttentionSizes& most) {
    const auto sums = [&](AttentionSums& to, int64_t n, int64_t n_values) {
        carver.take(to.top, {n});
        carver.take(to.sum, {n});
        carver.take(to.values, {n_values});
    };
    for (int i = 0; i < n_threads; i++) {
        Thread t{};
        carver.take(t.q, {kQueries, most.head_dim});
        carver.take(t.scores, {kQueries, kBlock});
        t.q8 = Q8Rows::carve(carver, kQueries, most.head_dim);
        sums(t.block, kQueries, kQueries * most.v_head_dim);
        sums(t.all, kQueries, kQueries * most.v_head_dim);
        carver.take(t.values, {most.value_run});
        threads.push_back(t);
    }
    // A tile for each row, and one for every kQueries / 2 queries: those of a row are divided
    // evenly.
    max_tiles = max_rows * (1 + 2 * most.n_head / kQueries);
    carver.take(tiles, {max_tiles});
    // A window may begin and end within a block.
    const int64_t n_blocks = n_positions / kBlock + 2;
    max_sums = kSplitRows * most.n_head * n_blocks;
    max_values = kSplitRows * most.out_dim * n_blocks;
    sums(blocks, max_sums, max_values);
}

void attention(Context& context, const KvLayer& layer, int64_t n_head, AttentionScores scores,
               const AttentionRow* rows, int64_t n_rows, const float* q,
               const AttentionScratch& scratch, float* out) {
    Call(context, layer, n_head, scores, rows, n_rows, q, scratch, out).run();
}

}  // namespace ggml
