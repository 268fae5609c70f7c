// Mamba-2 and the gated delta rule. Lanes are the columns of a state, of which a block has sixteen
// (f32x16, see recurrence.cpp here and in avx512), so sums over its rows need no horizontal
// additions.
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

// `width` values, and zeros beside them. `whole`: all sixteen.
template <bool whole>
inline f32x16 load_columns(const float* p, int64_t width) {
    if (whole) return load16(p);
    float values[kStateColumns] = {};
    for (int64_t i = 0; i < width; i++) values[i] = p[i];
    return load16(values);
}
template <bool whole>
inline void store_columns(float* p, f32x16 v, int64_t width) {
    if (whole) return store(p, v);
    float values[kStateColumns];
    store(values, v);
    for (int64_t i = 0; i < width; i++) p[i] = values[i];
}

// Where a state is read: zeros are written if there is none, and so is what no row changes.
inline const float* begin_state(const StateRows& sequence, int64_t at, int64_t size) {
    float* const to = sequence.after + at;
    if (!sequence.before) {
        for (int64_t i = 0; i < size; i++) to[i] = 0;
        return to;
    }
    const float* from = sequence.before + at;
    if (sequence.n == 0 && from != to) {
        for (int64_t i = 0; i < size; i++) to[i] = from[i];
    }
    return from;
}

// ---- Mamba-2 ---------------------------------------------------------------------------------
constexpr int64_t kBlocks = 4;       // of columns that share copies of B and C
constexpr int64_t kCopiedRows = 32;  // of a state, whose B and C are copied together

// What a head's next rows bring, copied, so that rows that lie far apart do not drive each other
// from the cache.
struct Copies {
    float x[kBlocks][kSteps][kStateColumns];  // dt x
    float y[kBlocks][kSteps][kStateColumns];  // sums so far
    float b[kSteps][kCopiedRows], c[kSteps][kCopiedRows];
};

// R rows of a block of columns stay in registers for all steps.
template <int R, bool whole>
inline void scan_tile(const float* from, float* to, int64_t width, int64_t block, int64_t row,
                      const Steps& steps, int64_t n, Copies& copies) {
    f32x16 state[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) state[r] = load_columns<whole>(from + r * width, width);
    for (int64_t t = 0; t < n; t++) {
        const f32x16 decay = spread(steps.decay[t]), x = load16(copies.x[block][t]);
        f32x16 sum = load16(copies.y[block][t]);
        const float *b = copies.b[t] + row, *c = copies.c[t] + row;
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            state[r] = add_product(mul(decay, state[r]), spread(b[r]), x);
            sum = add_product(sum, spread(c[r]), state[r]);
        }
        store(copies.y[block][t], sum);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) store_columns<whole>(to + r * width, state[r], width);
}

// `rows` rows of a block, up to kCopiedRows.
template <bool whole>
void scan_block(const float* from, float* to, int64_t rows, int64_t width, int64_t block,
                const Steps& steps, int64_t n, Copies& copies) {
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
        scan_tile<kTileRows, whole>(from + r * width, to + r * width, width, block, r, steps, n,
                                    copies);
    }
    for (; r < rows; r++) {
        scan_tile<1, whole>(from + r * width, to + r * width, width, block, r, steps, n, copies);
    }
}

// Columns [first, first + cols) of a head for n rows, up to kBlocks blocks.
void scan_columns(const Mamba2Scan& how, int64_t head, const int32_t* rows, int64_t n,
                  const Steps& steps, int64_t first, int64_t cols, const float* from, float* to,
                  const Heads& y) {
    Copies copies;
    const int64_t n_state = how.n_state, group = served_by(how, head);
    for (int64_t i = 0; i < n; i++) {
        const float* x = values(how.x, rows[i], head) + first;
        for (int64_t c = 0; c < kBlocks * kStateColumns; c++) {
            float& value = copies.x[c / kStateColumns][i][c % kStateColumns];
            value = c < cols ? steps.factor[i] * x[c] : 0;
            copies.y[c / kStateColumns][i][c % kStateColumns] = 0;
        }
    }
    for (int64_t row = 0; row < n_state; row += kCopiedRows) {
        const int64_t some = least(kCopiedRows, n_state - row);
        for (int64_t i = 0; i < n; i++) {
            const float* b = values(how.b, rows[i], group) + row;
            const float* c = values(how.c, rows[i], group) + row;
            for (int64_t r = 0; r < some; r++) {
                copies.b[i][r] = b[r];
                copies.c[i][r] = c[r];
            }
        }
        for (int64_t col = 0; col < cols; col += kStateColumns) {
            const int64_t width = least(kStateColumns, cols - col);
            const int64_t at = (first + col) * n_state + row * width, block = col / kStateColumns;
            if (width == kStateColumns) {
                scan_block<true>(from + at, to + at, some, width, block, steps, n, copies);
            } else {
                scan_block<false>(from + at, to + at, some, width, block, steps, n, copies);
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const float* x = values(how.x, rows[i], head) + first;
        float* const out = values(y, rows[i], head) + first;
        for (int64_t c = 0; c < cols; c++) {
            out[c] = copies.y[c / kStateColumns][i][c % kStateColumns] + how.d[head] * x[c];
        }
    }
}

void scan(const Mamba2Scan& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t cols = how.head_dim, size = cols * how.n_state;
    const float* from = begin_state(sequence, head * size, size);
    float* const to = sequence.after + head * size;
    for (int64_t t = 0; t < sequence.n; t += kSteps) {
        const int64_t n = least(kSteps, sequence.n - t);
        const int32_t* rows = sequence.rows + t;
        Steps steps;
        find_steps(how, head, rows, n, steps);
        for (int64_t c = 0; c < cols; c += kBlocks * kStateColumns) {
            const int64_t some = least(kBlocks * kStateColumns, cols - c);
            scan_columns(how, head, rows, n, steps, c, some, from, to, y);
        }
        from = to;
    }
}

// ---- the gated delta rule --------------------------------------------------------------------
constexpr int64_t kCopied = 4096;  // values of q and k that are copied for the next rows, at most

// What the next rows bring: q and k, and their product.
struct Keys {
    const float *q[kSteps], *k[kSteps];
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

// One row and one block of columns. S^T k and S^T q are one pass over the state before the row:
// with it the result is decay S^T q + (k . q) delta. Even and odd rows have sums of their own.
template <bool whole>
inline void delta_step(const float* from, float* to, int64_t rows, int64_t width, const float* q,
                       const float* k, float product, float decay, float beta, const float* v,
                       float* y) {
    f32x16 seen[2], sum[2];
    for (int i = 0; i < 2; i++) seen[i] = sum[i] = spread(0);
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const f32x16 state = load_columns<whole>(from + (r + i) * width, width);
            seen[i] = add_product(seen[i], spread(k[r + i]), state);
            sum[i] = add_product(sum[i], spread(q[r + i]), state);
        }
    }
    if (r < rows) {
        const f32x16 state = load_columns<whole>(from + r * width, width);
        seen[0] = add_product(seen[0], spread(k[r]), state);
        sum[0] = add_product(sum[0], spread(q[r]), state);
    }
    const f32x16 one = spread(1), by = spread(decay);
    const f32x16 known = add_product(seen[0], one, seen[1]);
    const f32x16 delta = mul(spread(beta), sub_product(load_columns<whole>(v, width), by, known));
    for (r = 0; r < rows; r++) {
        const f32x16 state = load_columns<whole>(from + r * width, width);
        store_columns<whole>(to + r * width, add_product(mul(by, state), spread(k[r]), delta),
                             width);
    }
    const f32x16 old = mul(by, add_product(sum[0], one, sum[1]));
    store_columns<whole>(y, add_product(old, spread(product), delta), width);
}

void delta(const DeltaRule& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t rows = how.head_dim, cols = how.v_head_dim, size = rows * cols;
    const int64_t of_k = served_by(how, head), most = kCopied / 2 / rows;
    const float* from = begin_state(sequence, head * size, size);
    float* const to = sequence.after + head * size;
    float copied[kCopied];
    for (int64_t t = 0, n = 0; t < sequence.n; t += n) {
        n = least(least(most < 1 ? 1 : most, kSteps), sequence.n - t);
        const int32_t* at = sequence.rows + t;
        Steps steps;
        find_steps(how, head, at, n, steps);
        Keys keys;
        for (int64_t i = 0; i < n; i++) {
            keys.q[i] = values(how.q, at[i], of_k);
            keys.k[i] = values(how.k, at[i], of_k);
            keys.product[i] = dot(keys.q[i], keys.k[i], rows);
            if (most == 0) continue;  // they fit no copies
            float *const q = copied + 2 * i * rows, *const k = q + rows;
            for (int64_t r = 0; r < rows; r++) {
                q[r] = keys.q[i][r];
                k[r] = keys.k[i][r];
            }
            keys.q[i] = q;
            keys.k[i] = k;
        }
        for (int64_t col = 0; col < cols; col += kStateColumns) {
            const int64_t width = least(kStateColumns, cols - col);
            for (int64_t i = 0; i < n; i++) {
                const float* state = (i ? to : from) + col * rows;
                const auto step = width == kStateColumns ? delta_step<true> : delta_step<false>;
                step(state, to + col * rows, rows, width, keys.q[i], keys.k[i], keys.product[i],
                     steps.decay[i], steps.factor[i], values(how.v, at[i], head) + col,
                     values(y, at[i], head) + col);
            }
        }
        from = to;
    }
}

}  // namespace

const scan_fn scan__f32 = scan;
const delta_fn delta__f32 = delta;

}  // namespace ggml::cpu::GGML_ISA
