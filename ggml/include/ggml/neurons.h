// The neuron-aware feed-forward operator: only neurons that fire are computed.
//
//   g = gate_n . x;  where act(g) is 0, stop;  u = up_n . x;  h = act(g) * u;  y += h * down_n
//
// (without a gate: h = act(up_n . x)). Neurons are taken in ascending order within fixed segments
// of ids; a segment's sum is one thread's, and segments are added by a fixed tree: the bits depend
// neither on the number of threads nor on what other tokens are computed.
#pragma once

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

// Which neurons of which rows may be computed. Row t computes neuron n when it is not masked at
// all, when score[t][n] >= threshold, or when unpredicted[n].
struct NeuronMask {
    const bool* masked = nullptr;  // [rows]; null: no row
    const float* score = nullptr;  // [rows, n], a predictor's
    float threshold = 0;
    // [n], 1 where it fires so often that predicting it saves nothing, or null.
    const uint8_t* unpredicted = nullptr;
};

// How many neurons were proposed (their gate, or up where there is no gate, was computed), how many
// went on from there (up and down, or down), and how many of those fired (what they send down is
// not zero), summed over rows.
struct NeuronCounts {
    int64_t rows = 0, proposed = 0, computed = 0, fired = 0;
};

// Room for up to max_rows rows.
class NeuronScratch {
 public:
    NeuronScratch() = default;
    NeuronScratch(Carver& carver, int64_t max_rows, int64_t n, int64_t cols, int max_threads);

 private:
    friend class SparseFfn;
    struct PerThread {
        // Several rows: a few neurons' values and candidates for each of them, and sums of pieces.
        float *h, *out, *line, *sums;
        int32_t* tokens;
        NeuronCounts counts;
    };
    int32_t* ids_ = nullptr;    // one row: candidates; several: what fired, tile by tile
    float* h_ = nullptr;        // their values
    int32_t* first_ = nullptr;  // [tiles, rows + 1]: where a tile's fired neurons of a row begin
    int32_t* all_tokens_ = nullptr;  // [rows]: 0, 1, ...
    float* partial_ = nullptr;       // [segments, cols]: sums of one row
    Q8Rows folded_;                  // the input in the order of folded rows
    int8_t* grouped_ = nullptr;      // and in that of blocks of 256
    std::vector<PerThread> threads_;
};

// y[t] = the FFN of x[t] over the neurons that the mask admits. x.q8 must be filled where gate or
// up want it. y: [rows, cols]. counts may be null. fired: [rows, n], which neurons did (what they
// send down is not zero), or null.
void sparse_ffn(Context& context, const Neurons& neurons, const Input& x, const NeuronMask& mask,
                NeuronScratch& scratch, float* y, NeuronCounts* counts, bool* fired = nullptr);

}  // namespace ggml
