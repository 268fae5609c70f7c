// The operators of a forward pass. Each one splits its work over the context's threads and returns
// when it is done; none allocates or throws. Sizes are checked when a model is loaded, not here.
//
// A row of every result has the same bits for any number of threads and whatever the other rows
// are.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "ggml/carver.h"
#include "ggml/context.h"
#include "ggml/tensor.h"

namespace ggml {

// Activations in 8 bits: blocks of 32 along a row, x = d * q, -127 <= q <= 127.
struct Q8Rows {
    int64_t cols = 0;
    int8_t* q = nullptr;  // [rows, cols]
    float* d = nullptr;   // [rows, cols / 32]
    // Sums of a block, for the offsets of weights:
    int32_t* s8 = nullptr;   // [rows, cols / 32], 8 * the sum of q: the -8 of 4-bit weights
    float* ds = nullptr;     // [rows, cols / 32], d * the sum of q: mins of groups of 32
    int16_t* s16 = nullptr;  // [rows, cols / 16], the sums of 16 q: formats with groups of 16

    // Room for rows of at most max_cols.
    static Q8Rows carve(Carver& carver, int64_t rows, int64_t max_cols);
};

// The input of matrix products: floats, and the same rows in 8 bits for weights that want them.
struct Input {
    const float* x = nullptr;  // [rows, cols]
    int64_t rows = 0, cols = 0;
    Q8Rows q8;  // empty unless asked for
};

// Room for the 8-bit form of at most max_rows rows of max_cols.
class InputBuffer {
 public:
    InputBuffer() = default;
    InputBuffer(Carver& carver, int64_t max_rows, int64_t max_cols);
    // The rows x as an Input; `quantise` when a weight they meet is quantised (cols % 32 == 0).
    // x and this buffer must stay until the Input is done with.
    Input prepare(Context& context, const float* x, int64_t rows, int64_t cols, bool quantise);

 private:
    Q8Rows q8_;
};

// Reads n bytes and returns their sum as words, so that nobody can leave the reading out.
uint64_t read_memory(Context& context, const uint8_t* data, int64_t n);

// y[t][n] = sum_k w[n][k] x[t][k] + bias[n], for several weights that share an input in one go.
struct Product {
    const Matrix& w;
    float* y;                     // [x.rows, w.rows]
    const float* bias = nullptr;  // [w.rows]
};
void matmul(Context& context, const Input& x, std::initializer_list<Product> products);

// y = x / sqrt(mean(x^2) + eps) * weight, per row of n.
void rms_norm(Context& context, const float* x, const float* weight, float eps, int64_t rows,
              int64_t n, float* y);

// y = (x - mean) / sqrt(variance + eps) * weight + bias, per row of n.
void layer_norm(Context& context, const float* x, const float* weight, const float* bias, float eps,
                int64_t rows, int64_t n, float* y);

// x += y, n floats.
void add(Context& context, float* x, const float* y, int64_t n);

// What a gate's value passes through, and for drelu the up value as well.
enum class Activation : uint8_t { relu, drelu, relu2, silu, gelu };
// gate = act(gate) * up (drelu: relu(gate) * relu(up)), n floats.
void gated_activation(Context& context, Activation act, float* gate, const float* up, int64_t n);

// The same without a gate: x = act(x).
void activation(Context& context, Activation act, float* x, int64_t n);

// Which values of a head turn together: (2i, 2i + 1), or (i, i + n_pairs) as NeoX has it.
enum class RopePairs : uint8_t { adjacent, halves };
// Cosine and sine of every frequency (radians per position) at n positions, times `magnitude`.
// cos_sin: [n, n_pairs, 2].
void rope_table(Context& context, const double* frequency, int64_t n_pairs, double magnitude,
                const int32_t* position, int64_t n, float* cos_sin);
// Rotary positions on the first 2 * n_pairs values of every head.
// cos_sin: [rows, n_pairs, 2], one row per token.
void rope(Context& context, float* x, int64_t rows, int64_t n_head, int64_t head_dim,
          const float* cos_sin, int64_t n_pairs, RopePairs pairs);

// Keys and values of one layer in pages of kKvPage positions: page p holds [n_head_kv][kKvPage]
// [head_dim] keys at k + p * page_stride, and values at v + p * page_stride.
constexpr int64_t kKvPage = 64;
struct KvLayer {
    DType type;  // F16, F32 or Q8_0
    int64_t n_head_kv, head_dim;
    uint8_t *k, *v;
    int64_t page_stride;  // bytes

    int64_t position_bytes() const { return info(type).size(head_dim); }  // of one head
    int64_t head_bytes() const { return kKvPage * position_bytes(); }     // of one page
};
// Where a row's keys and values go: position `at` of a page.
struct KvSlot {
    int32_t page;
    int32_t at;
};
// Stores the keys and values of n rows, [n, n_head_kv * head_dim] each.
void store_kv(Context& context, const KvLayer& layer, const KvSlot* slots, int64_t n,
              const float* k, const float* v);

// Causal attention of rows of queries over cached keys and values, grouped heads. A row sees the
// positions [first, end) of a sequence whose positions from 64 i on lie in pages[i].
struct AttentionRow {
    const int32_t* pages;
    int64_t first, end;
};
// q, out: [rows, n_head * head_dim].
void attention(Context& context, const KvLayer& layer, int64_t n_head, float scale,
               const AttentionRow* rows, int64_t n_rows, const float* q, float* out);

// y[t] = row ids[t] + offset of a matrix as floats, n rows.
void embed_rows(Context& context, const Matrix& w, const int32_t* ids, int64_t offset, int64_t n,
                float* y);

// x = 0, n floats.
void zero(Context& context, float* x, int64_t n);

// Rows side by side that lie apart in x, and back: out[i] = x[rows[i]]; y[rows[i]] += share[i] *
// x[i]. n rows of `cols`.
void gather_rows(Context& context, const float* x, const int32_t* rows, int64_t n, int64_t cols,
                 float* out);
void scatter_add(Context& context, const float* x, const int32_t* rows, const float* share,
                 int64_t n, int64_t cols, float* y);

// How the scores of a router become shares of the chosen experts.
enum class Gating : uint8_t { softmax, sigmoid };
// The rows that chose each expert: rows[first[e]] to rows[first[e + 1]] of expert e, ascending, and
// what it counts for them.
struct ExpertRows {
    int32_t* first;  // [n_expert + 1]
    int32_t* rows;   // [n * n_used]
    float* share;    // [n * n_used]; the shares of a row sum to 1
};
// Chooses the n_used best experts of each of n rows, the first of equals. score: [n, n_expert],
// overwritten; share: [n, n_expert], room for what each expert counts for each row.
void route(Context& context, Gating gating, float* score, int64_t n, int64_t n_expert,
           int64_t n_used, float* share, const ExpertRows& out);

// flags[i] = x[i] != 0, n values.
void nonzero(Context& context, const float* x, int64_t n, bool* flags);
// counts[i] += the number of rows whose flag i is set. flags: [rows, n].
void count_flags(Context& context, const bool* flags, int64_t rows, int64_t n, uint64_t* counts);

}  // namespace ggml
