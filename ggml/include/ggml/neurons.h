// The neuron-aware feed-forward block: only neurons that fire are computed.
//
//   g = gate_n . x;  where act(g) is 0, stop;  u = up_n . x;  h = act(g) * u;  y += h * down_n
//
// (without a gate: h = act(up_n . x)). One token: `select` lists who may fire, `partial_ffn` sums
// what they send down, `merge` adds these sums. Several tokens: `rows_ffn`. Neurons are taken in
// ascending order within fixed segments of ids; a segment's sum is one thread's, and segments are
// added by a fixed tree: the bits depend neither on the number of threads nor on what other tokens
// are computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ggml/blocks.h"
#include "ggml/ops.h"

namespace ggml {

// One matrix of neuron rows: row n at data + n * stride bytes. Several may be interleaved (a
// bundle: gate, up and down of a neuron side by side), hence the stride.
struct NeuronRows {
    DType type = DType::F32;
    bool folded = false;  // each row packed as a strip of its own eight eighths (fold_row)
    const uint8_t* data = nullptr;
    int64_t stride = 0;

    explicit operator bool() const { return data != nullptr; }
    // Must the input be given in 8 bits? Blocks of 32 columns in rows that are not folded are
    // decoded; those of 256 are as good as folded, each by itself.
    bool wants_q8() const { return folded || info(type).block == kQK; }
};

// Can rows of `cols` weights of this type be folded: block formats whose blocks divide an eighth?
bool can_fold(DType type, int64_t cols);
// Packs one stored row into its folded form of the same size, and back.
void fold_row(DType type, const uint8_t* row, int64_t cols, uint8_t* folded);
void unfold_row(DType type, const uint8_t* folded, int64_t cols, uint8_t* row);

struct Neurons {
    int64_t n = 0, cols = 0;  // neurons; n_embd
    NeuronRows gate, up, down;
    const float *gate_bias = nullptr, *up_bias = nullptr;  // [n]
    const float* down_bias = nullptr;                      // [cols]
    Activation act = Activation::relu;
    float threshold =
        0;  // relu family: values up to it are 0 (FATReLU); else: |act| below it is 0 (CATS)
};

// Fixed ranges of neurons: the unit of work and of summation.
constexpr int64_t kSegments = 32;
struct Segment {
    int64_t begin, end;
};
// Segment s of n neurons, a multiple of 8 of them: tiles of a list of all neurons are whole.
inline Segment segment_of(int64_t n, int64_t s) {
    const int64_t size = (n + kSegments * 8 - 1) / (kSegments * 8) * 8;
    return {std::min(s * size, n), std::min((s + 1) * size, n)};
}

// Which neurons of which rows may be computed: all of a row that is not masked, otherwise those
// with a score of at least `threshold`, and the unpredicted.
struct NeuronMask {
    const bool* masked = nullptr;  // [rows]; null: no row
    const float* score = nullptr;  // [rows, n], a predictor's
    float threshold = 0;
    // [n], 1 where it fires so often that predicting it saves nothing, or null.
    const uint8_t* unpredicted = nullptr;

    bool masks(int64_t row) const { return masked && masked[row]; }
    bool finds(int64_t row, int64_t n, int64_t neuron) const {
        return score[row * n + neuron] >= threshold || (unpredicted && unpredicted[neuron]);
    }
};

// How many neurons were proposed (their gate, or up where there is no gate, was computed), how many
// went on from there (up and down, or down), and how many of those fired (what they send down is
// not zero), summed over rows.
struct NeuronCounts {
    int64_t rows = 0, proposed = 0, computed = 0, fired = 0;
};

// The neurons that one row computes, ascending: those of a segment stand from ids[its begin] on.
struct Candidates {
    Candidates() = default;
    Candidates(Carver& carver, int64_t n);

    const int32_t* ids = nullptr;
    int32_t count[kSegments] = {};              // per segment
    int32_t *all = nullptr, *chosen = nullptr;  // [n]: 0, 1, ...; room for what a mask lets through
};

// Room for up to max_rows rows.
struct NeuronScratch {
    NeuronScratch() = default;
    NeuronScratch(Carver& carver, int64_t max_rows, int64_t n, int64_t cols, int max_threads);

    Q8Rows folded;              // the input in the order of folded rows
    int8_t* grouped = nullptr;  // and in that of blocks of 256
    // Several rows: what fired, tile by tile of neurons.
    int32_t* fired = nullptr;   // neurons in their tile
    float* h = nullptr;         // their values
    int32_t* first = nullptr;   // [tiles, rows + 1]: where those of a row begin
    int32_t* tokens = nullptr;  // [rows]: 0, 1, ...
    // A tile's values, lists of tokens and products for each row, and sums of pieces of the result.
    struct PerThread {
        float *h, *out, *line, *sums;
        int32_t* tokens;
    };
    std::vector<PerThread> threads;
};

// Lists the neurons of n that the mask, which is of one row, lets through.
void select(Context& context, const NeuronMask& mask, int64_t n, Candidates& candidates);

// The sums of what the candidates send down for x, one row, per segment: [kSegments, cols], in the
// order of the down rows. x.q8 must be filled where gate or up want it. counts may be null. fired:
// [n], which neurons did (what they send down is not zero), or null.
void partial_ffn(Context& context, const Neurons& neurons, const Input& x,
                 const Candidates& candidates, NeuronScratch& scratch, float* sums,
                 NeuronCounts* counts, bool* fired);

// y = the segments' sums, added by the tree, plus the bias: [cols], in the order of columns.
void merge(Context& context, const Neurons& neurons, const float* sums, float* y);

// The same for several rows, of which each neuron is read once: y [rows, cols], fired [rows, n].
void rows_ffn(Context& context, const Neurons& neurons, const Input& x, const NeuronMask& mask,
              NeuronScratch& scratch, float* y, NeuronCounts* counts, bool* fired);

// What one segment of a row fires when it is computed in full, and how much of that the mask finds,
// whether it masks this row or not. No result depends on it.
struct AuditCounts {
    int64_t fired, found;
};
AuditCounts audit_segment(Context& context, const Neurons& neurons, const Input& x, int64_t row,
                          const NeuronMask& mask, int64_t segment, NeuronScratch& scratch);

}  // namespace ggml
