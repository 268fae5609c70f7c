// Mamba-2 and the gated delta rule. Lanes are the columns of a state, sixteen in a word (f32x16,
// see recurrence.cpp here and in avx512), so sums over its rows need no horizontal additions.
//
// Every value of a state has its own operations, and every sum one order, so bits do not depend on
// how many rows are computed together.
#pragma once

#include "kernels/recurrence.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// Not std::min, which kernels of an instruction set would share with other code.
[[gnu::always_inline]] inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// How the rows of a block of columns are read and written: as words, the last of which may have
// fewer columns and zeros beside them; or only whole ones; or these past the caches: a block that
// is not read again soon would first be fetched to be overwritten.
enum class Columns : uint8_t { part, whole, streamed };
constexpr int64_t kWord = 16;

// The word at p of a row, which has `width` columns from there on.
template <Columns kind>
inline f32x16 load_columns(const float* p, int64_t width) {
    if (kind != Columns::part || width >= kWord) return load16(p);
    float values[kWord] = {};
    for (int64_t i = 0; i < width; i++) values[i] = p[i];
    return load16(values);
}
template <Columns kind>
inline void store_columns(float* p, f32x16 v, int64_t width) {
    if (kind == Columns::streamed) return stream(p, v);
    if (kind == Columns::whole || width >= kWord) return store(p, v);
    float values[kWord];
    store(values, v);
    for (int64_t i = 0; i < width; i++) p[i] = values[i];
}

// Is the new state of `n` rows written once, to another place than it is read from?
inline bool streams(const StateRows& sequence, int64_t n, const float* from, const float* to) {
    constexpr int64_t line = 64;
    return sequence.n <= n && from != to && uintptr_t(to) % line == 0;
}

// The state of a head: where its values are read and written, and its scale after the last step.
// Zeros are written where there is no state, and what no row changes is copied.
struct HeadState {
    const float* from;
    float *to, *new_scale;
    float scale = 1;
};
inline HeadState begin_state(const StateRows& sequence, int64_t head, int64_t n_head,
                             int64_t size) {
    HeadState s;
    s.from = s.to = sequence.after + head * size;
    s.new_scale = sequence.after + n_head * size + head;
    if (!sequence.before) {
        for (int64_t i = 0; i < size; i++) s.to[i] = 0;
        return s;
    }
    s.from = sequence.before + head * size;
    s.scale = sequence.before[n_head * size + head];
    if (sequence.n == 0 && s.from != s.to) {
        for (int64_t i = 0; i < size; i++) s.to[i] = s.from[i];
    }
    return s;
}

// ---- Mamba-2 ---------------------------------------------------------------------------------
static_assert(kScanColumns == kWord, "a block of columns is a word");
constexpr int64_t kBlocks = 4;       // of columns that share copies of B and C
constexpr int64_t kCopiedRows = 32;  // of a state, whose B and C are copied together

// What a head's next rows bring, copied, so that rows that lie far apart do not drive each other
// from the cache.
struct Copies {
    float x[kBlocks][kSteps][kScanColumns];  // dt x / scale
    float y[kBlocks][kSteps][kScanColumns];  // sums so far
    float b[kSteps][kCopiedRows], c[kSteps][kCopiedRows];
};
// B and C for some rows of a state, those of a step `apart` from those of the step before.
struct Factors {
    const float *b, *c;
    int64_t apart;
};

// R rows of a block of columns stay in registers for all steps.
template <int R, Columns kind>
inline void scan_tile(const float* from, float* to, int64_t width, int64_t block,
                      const Factors& factors, int64_t row, const Steps& steps, int64_t n,
                      Copies& copies) {
    f32x16 state[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) state[r] = load_columns<kind>(from + r * width, width);
    for (int64_t t = 0; t < n; t++) {
        if (steps.folded[t]) {
            const f32x16 by = spread(steps.decayed[t]);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) state[r] = mul(by, state[r]);
        }
        const f32x16 x = load16(copies.x[block][t]);
        f32x16 sum = load16(copies.y[block][t]);
        const int64_t at = t * factors.apart + row;
        const float *b = factors.b + at, *c = factors.c + at;
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            state[r] = add_product(state[r], spread(b[r]), x);
            sum = add_product(sum, spread(c[r]), state[r]);
        }
        store(copies.y[block][t], sum);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) store_columns<kind>(to + r * width, state[r], width);
}

// `rows` rows of a block of columns.
template <Columns kind>
void scan_block(const float* from, float* to, int64_t rows, int64_t width, int64_t block,
                const Factors& factors, const Steps& steps, int64_t n, Copies& copies) {
    int64_t r = 0;
    const auto tile = [&](auto rows_of_tile) {
        constexpr int R = rows_of_tile;
        scan_tile<R, kind>(from + r * width, to + r * width, width, block, factors, r, steps, n,
                           copies);
        r += R;
    };
    while (r + kTileRows <= rows) tile(Count<kTileRows>());
    while (r < rows) tile(Count<1>());
}

// Columns [first, first + cols) of a head for n rows, up to kBlocks blocks.
void scan_columns(const Mamba2Scan& how, int64_t head, const int32_t* rows, int64_t n,
                  const Steps& steps, int64_t first, int64_t cols, const float* from, float* to,
                  bool streamed, const Heads& y) {
    Copies copies;
    const int64_t n_state = how.n_state, group = served_by(how, head);
    for (int64_t i = 0; i < n; i++) {
        const float* x = values(how.x, rows[i], head) + first;
        const float by = steps.factor[i] / steps.scale[i];
        for (int64_t c = 0; c < kBlocks * kScanColumns; c++) {
            float& value = copies.x[c / kScanColumns][i][c % kScanColumns];
            value = c < cols ? by * x[c] : 0;
            copies.y[c / kScanColumns][i][c % kScanColumns] = 0;
        }
    }
    // A single row needs no copies, and then the state is read in order.
    const int64_t most = n == 1 ? n_state : kCopiedRows;
    for (int64_t row = 0; row < n_state; row += most) {
        const int64_t some = least(most, n_state - row);
        Factors factors = {copies.b[0], copies.c[0], kCopiedRows};
        for (int64_t i = 0; i < n; i++) {
            const float* b = values(how.b, rows[i], group) + row;
            const float* c = values(how.c, rows[i], group) + row;
            if (n == 1) {
                factors = {b, c, 0};
                break;
            }
            for (int64_t r = 0; r < some; r++) {
                copies.b[i][r] = b[r];
                copies.c[i][r] = c[r];
            }
        }
        for (int64_t col = 0; col < cols; col += kScanColumns) {
            const int64_t width = least(kScanColumns, cols - col);
            const int64_t at = (first + col) * n_state + row * width, block = col / kScanColumns;
            const auto compute = width < kScanColumns ? scan_block<Columns::part>
                                 : streamed           ? scan_block<Columns::streamed>
                                                      : scan_block<Columns::whole>;
            compute(from + at, to + at, some, width, block, factors, steps, n, copies);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const float* x = values(how.x, rows[i], head) + first;
        float* const out = values(y, rows[i], head) + first;
        for (int64_t c = 0; c < cols; c++) {
            const float sum = copies.y[c / kScanColumns][i][c % kScanColumns];
            out[c] = steps.scale[i] * sum + how.d[head] * x[c];
        }
    }
}

void scan(const Mamba2Scan& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t cols = how.head_dim, size = cols * how.n_state;
    HeadState state = begin_state(sequence, head, how.n_head, size);
    const float* from = state.from;
    float* const to = state.to;
    const bool streamed = streams(sequence, kSteps, from, to);
    for (int64_t t = 0; t < sequence.n; t += kSteps) {
        const int64_t n = least(kSteps, sequence.n - t);
        const int32_t* rows = sequence.rows + t;
        Steps steps;
        find_steps(how, head, rows, n, steps, state.scale);
        for (int64_t c = 0; c < cols; c += kBlocks * kScanColumns) {
            const int64_t some = least(kBlocks * kScanColumns, cols - c);
            scan_columns(how, head, rows, n, steps, c, some, from, to, streamed, y);
        }
        from = to;
    }
    *state.new_scale = state.scale;
    if (streamed) end_streams();
}

// ---- the gated delta rule --------------------------------------------------------------------
constexpr int kWords = kDeltaColumns / kWord;  // of a row of a block
constexpr int64_t kCopied = 2048;  // values of q, k and decays that are copied at a time, at most

// What the next rows bring: q and k, and their product; and the decays of the state's rows.
struct Keys {
    const float *q[kSteps], *k[kSteps], *decays[kSteps];
    float product[kSteps];
};

// The sum of products, value i in lane i % 16, and the lanes in order.
inline float dot(const float* a, const float* b, int64_t n) {
    float lanes[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int64_t j = 0; j < 16; j++) lanes[j] += a[i + j] * b[i + j];
    }
    for (int64_t j = 0; i + j < n; j++) lanes[j] += a[i + j] * b[i + j];
    float total = 0;
    for (float lane : lanes) total += lane;
    return total;
}

// What a step does to a block of columns: multiplies it, if its scale is folded, or its rows by
// their decays, and adds k (x) delta. And S^T k and S^T q, which the next one needs.
struct Change {
    const float *k, *decays;
    bool folded;
    float decayed;
    alignas(64) float delta[kDeltaColumns];
};
struct Reads {
    alignas(64) float seen[kDeltaColumns], sum[kDeltaColumns];
};

// What a pass does with the change of the last step. Most add only, which takes less.
enum class Last : uint8_t { none, added, folded };

// What the next step reads with: decays of rows, or null.
struct Next {
    const float *q, *k, *decays;
};

// One pass over a block of columns: makes the change of the last step, if any, and reads the new
// state for the next one, if any; by_row, as it decays for that step. Its rows add up in order. Not
// inlined, so that its loop has all registers.
template <Columns kind, Last change, bool read, bool by_row>
[[gnu::noinline]] void pass_as(const float* from, float* to, int64_t rows, int64_t width,
                               const Change& last, const Next& next, Reads& reads) {
    f32x16 seen[kWords], sum[kWords], delta[kWords];
#pragma GCC unroll 2
    for (int w = 0; w < kWords; w++) {
        seen[w] = sum[w] = spread(0);
        delta[w] = load16(last.delta + w * kWord);
    }
    constexpr bool changed = change != Last::none;
    const f32x16 decayed = spread(last.decayed);
    const float *const last_k = last.k, *const last_decays = last.decays;
    const auto [q, k, decays] = next;
    for (int64_t r = 0; r < rows; r++, from += width, to += width) {
        const f32x16 of_last = spread(changed ? last_k[r] : 0);
        const f32x16 of_k = spread(read ? k[r] : 0), of_q = spread(read ? q[r] : 0);
        const f32x16 row_decayed = spread(by_row && changed ? last_decays[r] : 0);
        const f32x16 row_decay = spread(by_row && read ? decays[r] : 0);
#pragma GCC unroll 2
        for (int first = 0; first < kWords; first += kLoaded) {
            f32x16 state[kLoaded];
#pragma GCC unroll 2
            for (int i = 0; i < kLoaded; i++) {
                const int64_t w = first + i, at = w * kWord;
                if (kind == Columns::part && at >= width) break;
                state[i] = load_columns<kind>(from + at, width - at);
                if (change == Last::folded) state[i] = mul(state[i], decayed);
                if (by_row && changed) state[i] = mul(state[i], row_decayed);
                if (changed) state[i] = add_product(state[i], of_last, delta[w]);
            }
#pragma GCC unroll 2
            for (int i = 0; i < kLoaded; i++) {
                const int64_t w = first + i, at = w * kWord;
                if (kind == Columns::part && at >= width) break;
                if (changed) store_columns<kind>(to + at, state[i], width - at);
                if (!read) continue;
                if (by_row) state[i] = mul(state[i], row_decay);
                seen[w] = add_product(seen[w], of_k, state[i]);
                sum[w] = add_product(sum[w], of_q, state[i]);
            }
        }
    }
    if (!read) return;
#pragma GCC unroll 2
    for (int w = 0; w < kWords; w++) {
        store(reads.seen + w * kWord, seen[w]);
        store(reads.sum + w * kWord, sum[w]);
    }
}

template <Columns kind, bool read>
void pass(const float* from, float* to, int64_t rows, int64_t width, const Change& last,
          const Next& next, Reads& reads) {
    const auto compute = last.decays   ? pass_as<kind, Last::added, read, true>
                         : last.folded ? pass_as<kind, Last::folded, read, false>
                                       : pass_as<kind, Last::added, read, false>;
    compute(from, to, rows, width, last, next, reads);
}

// Fetches a block's share of what a later row brings, of q, k, v and y: too short runs for the
// processor's own prefetchers, and too many at once if it were not for each block.
inline void fetch(const DeltaRule& how, int64_t head, int64_t row, int64_t col, const Heads& y) {
    const int64_t of_k = served_by(how, head);
    // An array: a list in braces would be a template outside this file's namespace.
    const float* const rows[] = {values(how.q, row, of_k), values(how.k, row, of_k),
                                 values(how.v, row, head), values(y, row, head)};
    for (const float* p : rows) {
        for (int64_t at = 0; at < kDeltaColumns; at += kWord) __builtin_prefetch(p + col + at);
    }
}

// n steps of the `width` columns from `col` on, a block; `more` rows follow these. With S as it has
// decayed, a step's result is S^T q + (k . q) delta, so one pass reads all that it needs, and the
// next one adds its change.
template <Columns kind>
void delta_block(const DeltaRule& how, int64_t head, const int32_t* rows, int64_t n, int64_t more,
                 const Steps& steps, const Keys& keys, int64_t col, int64_t width,
                 const float* from, float* to, const Heads& y) {
    constexpr Columns kept = kind == Columns::part ? kind : Columns::whole;
    const int64_t n_row = how.head_dim;
    Change change = {};
    Reads reads;
    for (int64_t i = 0; i < n; i++) {
        const Next next = {keys.q[i], keys.k[i], keys.decays[i]};
        if (i < more) fetch(how, head, rows[n + i], col, y);
        if (i > 0) {
            pass<kept, true>(from, to, n_row, width, change, next, reads);
            from = to;
        } else if (next.decays) {
            pass_as<kept, Last::none, true, true>(from, to, n_row, width, change, next, reads);
        } else {
            pass_as<kept, Last::none, true, false>(from, to, n_row, width, change, next, reads);
        }
        const float* v = values(how.v, rows[i], head) + col;
        float* const out = values(y, rows[i], head) + col;
        const f32x16 decayed = spread(steps.decayed[i]), unit = spread(1 / steps.scale[i]);
        change.k = next.k;
        change.decays = next.decays;
        change.folded = steps.folded[i];
        change.decayed = steps.decayed[i];
#pragma GCC unroll 2
        for (int64_t at = 0; at < kDeltaColumns; at += kWord) {
            if (kind == Columns::part && at >= width) break;
            const f32x16 value = load_columns<kept>(v + at, width - at);
            const f32x16 unseen = sub_product(value, decayed, load16(reads.seen + at));
            const f32x16 delta = mul(spread(steps.factor[i]), unseen);
            const f32x16 old = mul(decayed, load16(reads.sum + at));
            store(change.delta + at, mul(unit, delta));
            store_columns<kept>(out + at, add_product(old, spread(keys.product[i]), delta),
                                width - at);
        }
    }
    pass<kind, false>(from, to, n_row, width, change, {}, reads);
}

void delta(const DeltaRule& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t rows = how.head_dim, cols = how.v_head_dim, size = rows * cols;
    const int64_t of_k = served_by(how, head);
    const int64_t row = (how.by_row ? 3 : 2) * rows, most = kCopied / row;  // of a position
    HeadState state = begin_state(sequence, head, how.n_v_head, size);
    const float* from = state.from;
    float* const to = state.to;
    const bool streamed = streams(sequence, 1, from, to);
    float copied[kCopied];
    for (int64_t t = 0, n = 0; t < sequence.n; t += n) {
        n = least(least(most < 1 ? 1 : most, kSteps), sequence.n - t);
        const int32_t* at = sequence.rows + t;
        Steps steps;
        find_steps(how, head, at, n, steps, state.scale);
        Keys keys;
        for (int64_t i = 0; i < n; i++) {
            keys.q[i] = values(how.q, at[i], of_k);
            keys.k[i] = values(how.k, at[i], of_k);
            keys.decays[i] = how.by_row ? values(how.alpha, at[i], head) : nullptr;
            keys.product[i] = dot(keys.q[i], keys.k[i], rows);
            if (most == 0) continue;  // they fit no copies
            const float** const all[] = {&keys.q[i], &keys.k[i], &keys.decays[i]};
            float* copy = copied + i * row;
            for (const float** x : all) {
                if (!*x) continue;
                for (int64_t r = 0; r < rows; r++) copy[r] = (*x)[r];
                *x = copy;
                copy += rows;
            }
        }
        for (int64_t col = 0; col < cols; col += kDeltaColumns) {
            const int64_t width = least(kDeltaColumns, cols - col);
            const auto compute = width < kDeltaColumns ? delta_block<Columns::part>
                                 : streamed            ? delta_block<Columns::streamed>
                                                       : delta_block<Columns::whole>;
            compute(how, head, at, n, sequence.n - t - n, steps, keys, col, width,
                    from + col * rows, to + col * rows, y);
        }
        from = to;
    }
    *state.new_scale = state.scale;
    if (streamed) end_streams();
}

}  // namespace

const scan_fn scan__f32 = scan;
const delta_fn delta__f32 = delta;

}  // namespace ggml::cpu::GGML_ISA
