// The operators of a forward pass. Each one splits its work over the context's threads and returns
// when all of it is done. No operator allocates, and none throws but for stale inputs; sizes are
// checked when a model is loaded.
//
// The bits of a result row depend neither on the number of threads nor on the other rows.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "ggml/carver.h"
#include "ggml/context.h"
#include "ggml/tensor.h"

namespace ggml {

// Activations in 8 bits, in blocks of 32 along a row: x = d * q with -127 <= q <= 127.
struct Q8Rows {
    int64_t cols = 0;
    int8_t* q = nullptr;  // [rows, cols]
    float* d = nullptr;   // [rows, cols / 32]
    // Sums over blocks, for formats with offsets or mins:
    int32_t* s8 = nullptr;   // [rows, cols / 32], 8 * sum of q: for offsets of 8, 16 and 128
    float* ds = nullptr;     // [rows, cols / 32], d * sum of q: for mins of groups of 32
    int16_t* s16 = nullptr;  // [rows, cols / 16], sums of 16 q: for groups of 16

    // Room for `rows` rows of at most max_cols columns.
    static Q8Rows carve(Carver& carver, int64_t rows, int64_t max_cols);
};

// The input of matrix products: floats, and the same rows in 8 bits for quantised weights.
struct Input {
    const float* x = nullptr;  // [rows, cols]
    int64_t rows = 0, cols = 0;
    Q8Rows q8;  // empty unless an InputBuffer quantised
    // How often that buffer has been filled, now and when this was made.
    const uint64_t* fillings = nullptr;
    uint64_t filling = 0;

    // Does the buffer hold other rows by now? Products of such an input throw Error(internal).
    bool stale() const { return fillings && *fillings != filling; }
    // Its values from the first on as `rows` rows of `cols`. Of an input in 8 bits `first` and
    // `cols` are multiples of 32.
    Input part(int64_t first, int64_t n_rows, int64_t n_cols) const;
};

// Room for the 8-bit form of at most max_rows rows of max_cols columns.
class InputBuffer {
 public:
    InputBuffer() = default;
    InputBuffer(Carver& carver, int64_t max_rows, int64_t max_cols);
    // Makes an Input of the rows x [rows, cols]. Set `quantise` if they will meet quantised
    // weights; then cols % 32 == 0. x must outlive the use of the Input, and this buffer must not
    // be filled before its end.
    Input prepare(Context& context, const float* x, int64_t rows, int64_t cols, bool quantise);
    // Makes an Input of n rows of one in 8 bits, which is in another buffer. It has no floats.
    Input gather(Context& context, const Input& from, const int32_t* rows, int64_t n);

 private:
    Input filled(const float* x, int64_t rows, int64_t cols);

    Q8Rows q8_;
    uint64_t fillings_ = 0;
};

// Rows that several steps read. The first one that wants them in 8 bits has them quantised.
class SharedInput {
 public:
    SharedInput() = default;
    SharedInput(Carver& carver, int64_t max_rows, int64_t max_cols)
        : buffer_(carver, max_rows, max_cols) {}

    // From now on the rows are x [rows, cols], which do not change until the next call.
    void set(const float* x, int64_t rows, int64_t cols) { input_ = {x, rows, cols, {}}; }
    const float* x() const { return input_.x; }
    int64_t rows() const { return input_.rows; }
    int64_t cols() const { return input_.cols; }
    // quantise: see InputBuffer::prepare().
    const Input& get(Context& context, bool quantise) {
        if (quantise && !input_.q8.q) {
            input_ = buffer_.prepare(context, input_.x, input_.rows, input_.cols, true);
        }
        return input_;
    }

 private:
    InputBuffer buffer_;
    Input input_;
};

// Reads n bytes (rounded down to a multiple of 64) and returns their sum as 64-bit words. The sum
// keeps the compiler from removing the reads.
uint64_t read_memory(Context& context, const uint8_t* data, int64_t n);

// The activation of the gate, and with drelu (arXiv 2406.05955) also of up. relu2 is relu(x)^2.
// gelu_tanh approximates gelu, see math.h. swiglu_oai is that of gpt-oss, which also clamps up and
// adds 1. xielu has parameters, and operators of its own.
enum class Activation : uint8_t { relu, drelu, relu2, silu, gelu, gelu_tanh, swiglu_oai, xielu };

// y[t][n] = scale * sum_k w[n][k] x[t][k] + bias[n], for several weights with the same input in one
// call.
// Weights: F32, F16, BF16 and (of adapters) Q8_0 as rows; every block format as strips, which need
// x.q8.
struct Product {
    const Matrix& w;
    float* y;                     // [x.rows, w.rows]
    const float* bias = nullptr;  // [w.rows] or null
};
void matmul(Context& context, const Input& x, std::initializer_list<Product> products);
// The same for n products, each with an input of its own, and with act(y) for y where there is one.
struct OwnProduct {
    const Matrix* w;
    Input x;
    float* y;           // [x.rows, w->rows]
    const float* bias;  // [w->rows] or null
    std::optional<Activation> act = {};
};
void matmul_each(Context& context, const OwnProduct* products, int64_t n);

// Heads of rows: the values of head h of row t begin at x + t * row + h * head.
struct Heads {
    float* x;
    int64_t row, head;
};
// A product for each head, with a matrix of its own: y of head h = w[h] . x of head h, for n_head
// matrices of the same sizes and type. x has all rows of a head, then those of the next one.
void matmul_heads(Context& context, const Input& x, const Matrix* w, int64_t n_head,
                  const Heads& y);
// Copies the first `width` values of each head of n rows.
void copy_heads(Context& context, const Heads& from, int64_t n, int64_t n_head, int64_t width,
                const Heads& to);

// RMSNorm (arXiv 1910.07467): y = x / sqrt(mean(x^2) + eps) * weight. x, y: [rows, n], with rows
// that begin `stride` values apart; 0: n. weight: [n_weights, n], row t has those of t % n_weights;
// null: 1.
void rms_norm(Context& context, const float* x, const float* weight, float eps, int64_t rows,
              int64_t n, float* y, int64_t stride = 0, int64_t n_weights = 1);

// y /= sqrt(mean(x^2) + eps), row by row. x: [rows, n]; y: [rows, width].
void divide_by_rms(Context& context, const float* x, float eps, int64_t rows, int64_t n,
                   int64_t width, float* y);

// LayerNorm (arXiv 1607.06450): y = (x - mean) / sqrt(variance + eps) * weight + bias. x, y: [rows,
// n]. weight, bias: [n_weights, n], row t has those of t % n_weights. bias null: none.
void layer_norm(Context& context, const float* x, const float* weight, const float* bias, float eps,
                int64_t rows, int64_t n, float* y, int64_t n_weights = 1);

// x *= factor, n floats.
void scale(Context& context, float* x, float factor, int64_t n);

// x *= y, n floats.
void multiply(Context& context, float* x, const float* y, int64_t n);

// x = cap * tanh(x / cap), n floats; cap > 0.
void softcap(Context& context, float* x, float cap, int64_t n);

// x += y, n floats.
void add(Context& context, float* x, const float* y, int64_t n);
// x += scale * y, n floats.
void add_scaled(Context& context, float* x, float scale, const float* y, int64_t n);

// gate = act(gate) * up (drelu: relu(gate) * relu(up); swiglu_oai: times oai_up(up)), n floats.
void gated_activation(Context& context, Activation act, float* gate, const float* up, int64_t n);

// What a gate multiplies by: sigmoid(gate), or softplus(gate) = log(1 + e^gate).
enum class GateBy : uint8_t { sigmoid, softplus };
// Each of n gates multiplies `width` floats of x [n, width]. gate may be overwritten.
void gate_by(Context& context, GateBy by, float* x, float* gate, int64_t n, int64_t width = 1);

// An activation without a gate: x = act(x).
void activation(Context& context, Activation act, float* x, int64_t n);

// xIELU (arXiv 2411.13010): positive x become p x^2 + beta x, others n (e^min(x, eps) - 1 - x) +
// beta x, with p = softplus(alpha_p) and n = beta + softplus(alpha_n).
struct Xielu {
    float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};
// x = xielu(x), n floats.
void xielu(Context& context, const Xielu& how, float* x, int64_t n);

// Which values of a head form a pair: (2i, 2i + 1), or (i, i + n_pairs) as in GPT-NeoX.
enum class RopePairs : uint8_t { adjacent, halves };
// RoPE (arXiv 2104.09864): cosine and sine of position * frequency (radians per position), times
// `magnitude`, at n positions. frequency: [n_pairs]; cos_sin: [n, n_pairs, 2].
void rope_table(Context& context, const double* frequency, int64_t n_pairs, double magnitude,
                const int32_t* position, int64_t n, float* cos_sin);
// Rotates the first 2 * n_pairs values of every head of x [rows, n_head, head_dim] in place.
// cos_sin: [rows, n_pairs, 2].
void rope(Context& context, float* x, int64_t rows, int64_t n_head, int64_t head_dim,
          const float* cos_sin, int64_t n_pairs, RopePairs pairs);

// y[t] = row ids[t] + offset of w, as floats. y: [n, w.cols].
void embed_rows(Context& context, const Matrix& w, const int32_t* ids, int64_t offset, int64_t n,
                float* y);

// x = 0, n floats.
void zero(Context& context, float* x, int64_t n);

// Copies n rows of `cols` values that are not adjacent in x, and adds rows back, one after the
// other: out[i] = x[rows[i]]; y[rows[i]] += expert_weights[i] * x[i].
void gather_rows(Context& context, const float* x, const int32_t* rows, int64_t n, int64_t cols,
                 float* out);
void scatter_add(Context& context, const float* x, const int32_t* rows, const float* expert_weights,
                 int64_t n, int64_t cols, float* y);

// What makes weights p of a router's scores r.
enum class Gating : uint8_t {
    softmax,       // over all experts
    sigmoid,       // of each
    of_chosen,     // softmax over the chosen experts, which the scores themselves choose
    sqrt_softplus  // sqrt(log(1 + e^r)) of each
};
// How the scores of a row choose experts and weigh what they give.
struct Routing {
    Gating gating = Gating::softmax;
    int64_t n_expert = 0, n_used = 0;       // experts, and those that a row chooses
    const float* choice_bias = nullptr;     // [n_expert] or null: added to p for the choice alone
    int64_t n_group = 1, n_group_used = 1;  // only experts of the best groups are chosen;
    bool by_two = true;     // a group's score is the sum of its two best, or the best alone
    bool normalise = true;  // the weights of a row sum to 1
    float scale = 1;        // of the weights
    const float* expert_scale = nullptr;  // [n_expert] or null: of each expert's weight
    // The sparse mixer (arXiv 2409.12136): the weight of a chosen expert is its share in a softmax
    // over the experts left whose scores are within this part of the best one's. 0: no such thing.
    float mixer = 0;
};
// The rows that chose each expert: those of expert e are rows[first[e]] to rows[first[e + 1] - 1],
// ascending; expert_weights has the weight of the expert's output for each of them.
struct ExpertRows {
    int32_t* first;         // [n_expert + 1]
    int32_t* rows;          // [n * n_used]
    float* expert_weights;  // [n * n_used]
};
// Room to route up to max_rows rows.
struct RouteScratch {
    RouteScratch() = default;
    RouteScratch(Carver& carver, int64_t max_rows, int64_t n_expert, int64_t n_used);

    float* choice = nullptr;    // [rows, n_expert]: what experts are chosen by
    int32_t* chosen = nullptr;  // [rows, n_used]
    float* weights = nullptr;   // [rows, n_used]: theirs
};
// Chooses experts for each of n rows, the largest first, of equal ones the one with the lower
// index. score: [n, n_expert], overwritten. A row with a score that is no number gets weights that
// are none.
void route(Context& context, const Routing& routing, float* score, int64_t n,
           const RouteScratch& scratch, const ExpertRows& out);
// The same for one row, whose experts are left in scratch.chosen, the best first.
void choose_experts(const Routing& routing, float* score, const RouteScratch& scratch);

// flags[i] = x[i] != 0, n values.
void nonzero(Context& context, const float* x, int64_t n, bool* flags);
// counts[i] += the number of rows whose flag i is set. flags: [rows, n].
void count_flags(Context& context, const bool* flags, int64_t rows, int64_t n, uint64_t* counts);
// sums[i] += the squares of column i, row by row. x: [rows, n].
void add_squares(Context& context, const float* x, int64_t rows, int64_t n, double* sums);

}  // namespace ggml
