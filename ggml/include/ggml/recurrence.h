// Operators that fold the rows of a sequence into a state, position by position. An operator gets
// all sequences of a pass; work is divided by sequences and heads (or channels).
//
// The bits of a row and of a state depend neither on how a sequence is cut into calls, nor on the
// number of threads, nor on other sequences.
#pragma once

#include <cstdint>

#include "ggml/ops.h"

namespace ggml {

// The rows of one sequence in a pass, in the order of their positions.
struct StateRows {
    const int32_t* rows = nullptr;  // [n], their places in the pass
    int64_t n = 0;
    const float* before = nullptr;  // the state before the first row; null: zeros
    float* after = nullptr;         // the state after the last row; may be `before`
};

// A causal convolution of each channel: y(t) = bias + sum_j weight[j] x(t - (taps - 1 - j)
// dilation), and then silu(y). The state is the last past() columns of x, [past, channels], the
// oldest first.
constexpr int64_t kMostTaps = 16;
struct Convolution {
    int64_t channels = 0, taps = 0;  // taps: 1 to kMostTaps
    const float* weight = nullptr;   // [channels, taps]
    const float* bias = nullptr;     // [channels] or null
    bool silu = false;
    int64_t dilation = 1;  // positions from tap to tap

    int64_t past() const { return (taps - 1) * dilation; }  // kMostTaps at most
    int64_t state() const { return past() * channels; }
};
// Rows t of x and y begin at x + t * x_row and y + t * y_row. y may be x.
void convolve(Context& context, const Convolution& how, const StateRows* sequences,
              int64_t n_sequences, const float* x, int64_t x_row, float* y, int64_t y_row);

// The state of a head is a matrix [rows, cols] times a scale; behind the matrices of all heads are
// their scales. Some adjacent columns form a block: blocks of [rows][kScanColumns] or
// [rows][kDeltaColumns], the last one narrower if need be. So a pass over a block reads memory in
// order.
constexpr int64_t kScanColumns = 16, kDeltaColumns = 32;
// The place of a value, in blocks of so many columns.
inline int64_t state_at(int64_t rows, int64_t cols, int64_t block, int64_t row, int64_t col) {
    const int64_t first = col - col % block, rest = cols - first;
    return first * rows + row * (rest < block ? rest : block) + col - first;
}
inline int64_t matrix_states(int64_t n_head, int64_t rows, int64_t cols) {
    return n_head * rows * cols + n_head;
}

// Mamba-2 (arXiv 2405.21060), for each head with its own dt, a, d, x [head_dim] and state S
// [n_state, head_dim], and B and C [n_state] of its group:
//   dt = softplus(dt + dt_bias);  S = e^(dt a) S + B (x) (dt x);  y = S^T C + d x.
struct Mamba2Scan {
    int64_t n_head = 0, head_dim = 0;
    int64_t n_group = 0;  // of n_head / n_group adjacent heads
    int64_t n_state = 0;
    const float *dt_bias = nullptr, *a = nullptr, *d = nullptr;  // [n_head]; a < 0
    Heads x, b, c;                                               // b, c: a head is a group
    Heads dt;                                                    // one value a head

    int64_t state() const { return matrix_states(n_head, n_state, head_dim); }
};
// y: head_dim values a head; may be x.
void mamba2_scan(Context& context, const Mamba2Scan& how, const StateRows* sequences,
                 int64_t n_sequences, const Heads& y);

// The gated delta rule (arXiv 2412.06464), for each head of v with its own alpha, beta, dt_bias, a,
// v [v_head_dim] and state S [head_dim, v_head_dim], and q and k [head_dim] of a head of k:
//   q = q / sqrt(sum q^2 + eps) / sqrt(head_dim);  k = k / sqrt(sum k^2 + eps);
//   S = e^(a softplus(alpha + dt_bias)) S;  delta = beta_scale sigmoid(beta) (v - S^T k);
//   S = S + k (x) delta;  y = S^T q.
// Or each row of S has a decay of its own (Kimi delta attention, arXiv 2510.26692): then a head has
// head_dim values of alpha and of dt_bias, and one of a, whose sign does not count.
struct DeltaRule {
    int64_t n_k_head = 0, n_v_head = 0;
    int64_t head_dim = 0, v_head_dim = 0;
    // Head h of v reads k's head h mod n_k_head; or else h / (n_v_head / n_k_head).
    bool tiled = false;
    bool by_row = false;  // rows of a state decay on their own
    // by_row, if below 0: decays are e^(lower_bound sigmoid(|a| (alpha + dt_bias))).
    float lower_bound = 0;
    const float* dt_bias = nullptr;  // [n_v_head], or by_row [n_v_head, head_dim]
    const float* a = nullptr;        // [n_v_head]; < 0
    float eps = 0;
    float beta_scale = 1;
    Heads q, k;  // overwritten: as they are after the first line
    Heads v;
    Heads alpha, beta;  // one value a head of v; alpha by_row: head_dim, overwritten by the CPU

    int64_t state() const { return matrix_states(n_v_head, head_dim, v_head_dim); }
};
// y: v_head_dim values a head of v; may be v.
void delta_rule(Context& context, const DeltaRule& how, const StateRows* sequences,
                int64_t n_sequences, const Heads& y);

// What follows the scan: y = RMSNorm(x silu(z)), or RMSNorm(x) silu(z); or with sigmoid for silu.
struct GatedNorm {
    int64_t n_group = 1, group = 0;  // values that are normed together
    const float* weight = nullptr;   // [n_weights, group] or null: no norm
    int64_t n_weights = 1;           // group g has those of g % n_weights
    float eps = 0;
    bool gate_first = true;
    bool sigmoid = false;
};
// The groups of a row are heads. z is overwritten; y may be x.
void gated_norm(Context& context, const GatedNorm& how, int64_t rows, const Heads& x,
                const Heads& z, const Heads& y);

}  // namespace ggml
