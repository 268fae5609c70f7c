// What is computed of neurons: gate . x, up . x, their values, and weighted sums of down rows, for
// rows of any format and order.
#pragma once

#include <algorithm>
#include <array>

#include "ggml/math.h"
#include "ggml/neurons.h"
#include "kernels/kernels.h"
#include "ops/ffn_parts.h"

namespace ggml::cpu {

// Where n <= kMostRows rows are: their ids, or what rows.row_at says of these, written to
// `room`. Kernels may read all rows that they are given, also those without use for any token: what
// is nowhere is read at 0.
inline const int32_t* rows_at(const NeuronRows& rows, const int32_t* ids, int64_t n,
                              int32_t* room) {
    if (!rows.row_at) return ids;
    for (int64_t i = 0; i < n; i++) room[i] = std::max(rows.row_at[ids[i]], 0);
    return room;
}

// Rows that are packed as strips at a time.
constexpr int64_t kPacked = 32;
// 0, 1, 2, and so on: all rows that a kernel is given.
inline constexpr auto kEach = [] {
    std::array<int32_t, kMostRows> each{};
    for (int32_t i = 0; i < int32_t(kMostRows); i++) each[size_t(i)] = i;
    return each;
}();

// Neurons that come next, at most kMostRows. Their rows are prefetched.
struct Next {
    const int32_t* ids = nullptr;
    int64_t n = 0;

    Next from(int64_t i) const { return i < n ? Next{ids + i, n - i} : Next{}; }
};

// Some neurons of one token, and the destinations of their sums. A neuron goes from nothing to its
// activated gate (RowProducts::gates), then to its value (values), which its down row is added with
// (add). It leaves the batch where this is 0.
struct NeuronBatch {
    int32_t ids[kMostRows];
    float h[kMostRows];
    float* sums[kMostRows];
    int64_t n = 0;
    int32_t token = 0;

    void push(int32_t id, float value, float* sum) {
        ids[n] = id;
        h[n] = value;
        sums[n++] = sum;
    }
    void drop_zeros() {
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++) {
            ids[m] = ids[i];
            h[m] = h[i];
            sums[m] = sums[i];
            m += h[m] != 0;
        }
        n = m;
    }
};

class RowProducts {
 public:
    // Brings rows [begin, end) of x into the orders that gate and up need: `folded` and `grouped`
    // of the scratch.
    RowProducts(Context& context, const Neurons& w, const Input& x, const NeuronScratch& scratch,
                int64_t begin, int64_t end);

    // out[i * nt + j] = row ids[i] . token tokens[j] + bias, for n <= kMostRows rows. strips: room
    // that makes it faster for several tokens (NeuronScratch), or null.
    void dot(const NeuronRows& rows, const float* bias, const int32_t* ids, int64_t n,
             const int32_t* tokens, int64_t nt, float* out, const Next& next = {},
             uint8_t* strips = nullptr) const;
    // The same for the rows that decide which neurons fire, activated: act(gate . x); without a
    // gate, the neurons' values.
    void gates(const int32_t* ids, int64_t n, const int32_t* tokens, int64_t nt, float* h,
               const Next& next = {}, uint8_t* strips = nullptr) const {
        dot(first_rows(w_), first_bias(w_), ids, n, tokens, nt, h, next, strips);
        activate(h, n * nt);
    }
    // v = act(v). NaN stays NaN, as everywhere: a damaged weight must not pass for a neuron that
    // does not fire.
    void activate(float* v, int64_t n) const {
        kernels_.activate[int(DType::F32)](w_.act, w_.threshold, v, n);
    }
    // h[i] = the values of neurons, which multiply their down rows: from their activated gates and
    // up products, which are overwritten. 0 where the gate is 0, whatever up is.
    void values(const float* gate, float* up, int64_t n, float* h) const {
        if (w_.act == Activation::drelu) activate(up, n);
        if (w_.act == Activation::swiglu_oai) {
            for (int64_t i = 0; i < n; i++) up[i] = oai_up(up[i]);
        }
        for (int64_t i = 0; i < n; i++) {
            const float product = gate[i] * up[i];
            h[i] = gate[i] != 0 ? product : 0.0f;
        }
    }
    // h = the values of n <= kMostRows neurons of a token, from their activated gates.
    void values(const int32_t* ids, int64_t n, int32_t token, float* h,
                const Next& next = {}) const {
        if (!w_.gate || !n) return;
        float up[kMostRows];
        dot(w_.up, w_.up_bias, ids, n, &token, 1, up, next);
        values(h, up, n, h);
    }

    // The products of rows [first, first + n) in tiles with token 0, n <= kMostRows.
    void in_order(const NeuronRows& rows, const float* bias, int64_t first, int64_t n,
                  float* out) const;

    // Begins to bring a row into the cache.
    void fetch(const NeuronRows& rows, int32_t id) const {
        constexpr int64_t kLine = 64;
        const uint8_t* const at = rows.data + id * rows.stride;
        const int64_t bytes = info(rows.type).size(w_.cols);
        for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(at + i, 0, 2);
    }

    // y[t] += the sum of token t's weighted down rows (`weighted`), `cols` columns from c0 on, in
    // the order of these rows.
    void add(const int32_t* ids, int64_t n, int64_t c0, int64_t cols, const WeightedRows& weighted,
             int64_t nt, float* y, int64_t ldy, const Next& next = {}) const;

 private:
    Prefetch prefetch(const NeuronRows& rows, const Next& next, int32_t* room) const {
        return {rows.data, rows.stride, rows_at(rows, next.ids, next.n, room), next.n};
    }
    // The same for rows in tiles; and for rows that are packed as strips for it.
    void dot_tiles(const NeuronRows& rows, const int32_t* ids, int64_t n, const int32_t* tokens,
                   int64_t nt, float* out) const;
    void dot_packed(const NeuronRows& rows, const int32_t* ids, int64_t n, int64_t t0, int64_t nt,
                    uint8_t* strips, float* out) const;
    // out[i * ldo + t] = row ids[i] - first of n_strips <= kMostRows / kStrip strips . token t0 + t
    void dot_strips(DType type, const uint8_t* strips, int64_t n_strips, const int32_t* ids,
                    int64_t first, int64_t n, int64_t t0, int64_t nt, float* out,
                    int64_t ldo) const;
    void fold_span(int64_t b0, int64_t eighth, const Q8Rows& out) const;

    const Kernels& kernels_;
    const Neurons& w_;
    NeuronInput in_;
};

// Columns that one thread adds at a time if there are several tokens: whole blocks.
int64_t column_piece(const Neurons& w);
// Stores n sums, which are in the order of the down rows from c0 on, at their columns of y, plus
// the bias.
void unpermute(const Neurons& w, const float* sum, int64_t c0, int64_t n, float* y);

}  // namespace ggml::cpu
