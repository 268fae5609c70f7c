// The neuron-aware feed-forward block: it computes only neurons that fire (PowerInfer, arXiv
// 2312.12456).
//
//   g = gate_n . x;  if act(g) is 0, stop;  u = up_n . x;  h = act(g) * u;  y += h * down_n
//
// Without a gate: h = act(up_n . x). For one token, `select` lists the neurons that may fire,
// `partial_ffn` computes a sum of h * down_n per segment, and `merge` adds these sums. For several
// tokens, `rows_ffn` does all of it. The neurons of a layer are split into fixed segments. One
// thread computes a segment, in ascending order of neurons, and a fixed tree adds the segments. So
// the bits of a result depend neither on the number of threads nor on other tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ggml/blocks.h"
#include "ggml/ops.h"

namespace ggml {

// One matrix of neuron rows. Row n starts at data + n * stride bytes. The stride allows several
// matrices to be interleaved in a bundle: gate, up and down rows of a neuron side by side. With
// `row_at`, row n starts at data + row_at[n] * stride: rows that come from storage lie where there
// was room.
struct NeuronRows {
    // Where all neurons are computed for every token, rows of blocks of 32 or 64 that cannot be
    // folded lie in tiles of kStrip rows, which are read in order: tile t starts at data + t *
    // kStrip * stride. Products have strips (pack_strip). In tiles of blocks, which are for sums,
    // the first blocks of the eight rows lie side by side, then the second ones, and so on. There
    // is no `row_at` then.
    enum class Tiles : uint8_t { none, strips, blocks };

    DType type = DType::F32;
    bool folded = false;  // each row is packed as a strip made of its eight eighths (fold_row)
    const uint8_t* data = nullptr;
    int64_t stride = 0;
    const int32_t* row_at = nullptr;  // [n], or null; -1: nobody needs it, and row 0 can be read
    Tiles tiles = Tiles::none;

    explicit operator bool() const { return data != nullptr; }
    // Do products with these rows need 8-bit inputs?
    bool wants_q8() const { return info(type).is_quantised(); }
};

// Can rows of `cols` weights of this type be folded? True for block formats if an eighth of a row
// is a whole number of blocks.
bool can_fold(DType type, int64_t cols);
// Packs one stored row into its folded form of the same size, and back.
void fold_row(DType type, const uint8_t* row, int64_t cols, uint8_t* folded);
void unfold_row(DType type, const uint8_t* folded, int64_t cols, uint8_t* row);

// Can rows of `cols` weights of this type be tiled?
bool can_tile(DType type, int64_t cols);
// Packs kStrip stored rows into a tile of the same size.
void pack_tile(DType type, NeuronRows::Tiles tiles, const uint8_t* rows, int64_t cols,
               uint8_t* tile);

struct Neurons {
    int64_t n = 0, cols = 0;  // number of neurons; n_embd
    NeuronRows gate, up, down;
    const float *gate_bias = nullptr, *up_bias = nullptr;  // [n], or [rows, n]: see bias_stride
    const float* down_bias = nullptr;                      // [cols]
    // From one row's gate_bias and up_bias to the next one's: 0 if all rows have the same, n if
    // each has its own (what an adapter adds to the products of a row).
    int64_t bias_stride = 0;
    Activation act = Activation::relu;
    // ReLU family: inputs up to it give 0 (FATReLU, arXiv 2402.13516). Otherwise: outputs with
    // |act| below it become 0 (CATS, arXiv 2404.08763).
    float threshold = 0;
};

// Fixed ranges of neurons: the unit of work and of summation.
constexpr int64_t kSegments = 32;
constexpr int64_t kSegmentPairs = kSegments / 2;
// Pairs that a thread computes at a time, at most.
constexpr int64_t kPairsTogether = 2;
struct Segment {
    int64_t begin, end;
};
// Segment s of n neurons. Its size is a multiple of 8 (except at the end), so that kernels work on
// full tiles when all neurons are listed.
inline Segment segment_of(int64_t n, int64_t s) {
    const int64_t size = (n + kSegments * 8 - 1) / (kSegments * 8) * 8;
    return {std::min(s * size, n), std::min((s + 1) * size, n)};
}

// Which neurons may be computed for which rows. Rows that are not masked may compute all neurons.
// Masked rows may compute neurons whose score is not below `threshold`, and those in `unpredicted`.
// A score of NaN, of a damaged predictor, hides no neuron.
struct NeuronMask {
    const bool* masked = nullptr;  // [rows]; null: no row is masked
    const float* score = nullptr;  // [rows, n], from a predictor; or null
    float threshold = 0;
    // [n], 1 for neurons that fire so often that predicting them saves nothing; or null.
    const uint8_t* unpredicted = nullptr;

    bool masks(int64_t row) const { return masked && masked[row]; }
    bool finds(int64_t row, int64_t n, int64_t neuron) const {
        return (score && !(score[row * n + neuron] < threshold)) ||
               (unpredicted && unpredicted[neuron]);
    }
    // Writes which of neurons [begin, end) it finds for a row, and returns their number. ids: room
    // for all.
    int32_t list(int64_t row, int64_t n, int64_t begin, int64_t end, int32_t* ids) const {
        int32_t count = 0;
        for (int64_t i = begin; i < end; i++) {
            ids[count] = int32_t(i);  // kept if count advances: no branch to mispredict
            count += finds(row, n, i);
        }
        return count;
    }
};

// Numbers of neurons, summed over rows. proposed: gate was computed (or up, without a gate).
// computed: continued with up and down (or down). fired: h was not zero.
struct NeuronCounts {
    int64_t rows = 0, proposed = 0, computed = 0, fired = 0;
};

// The neurons that one row computes, in ascending order. Those of a segment are at
// ids[segment.begin] and following.
struct Candidates {
    Candidates() = default;
    Candidates(Carver& carver, int64_t n);

    const int32_t* ids = nullptr;
    int32_t count[kSegments] = {};              // per segment
    int32_t *all = nullptr, *chosen = nullptr;  // [n]: 0, 1, ...; those that the mask allows
};

// Segments that arrive and are computed together, for several rows (rows_ffn_segments). One alone
// has few tiles for several threads (11 in a 7B), and its sums are as much to write as those of
// two.
constexpr int64_t kTogether = 2;

// So many rows may take turns (few_rows_ffn) instead of being computed together.
constexpr int64_t kFewRows = 16;

// Scratch memory for up to max_rows rows.
struct NeuronScratch {
    NeuronScratch() = default;
    // by_segment: several rows go through rows_ffn_segments, which needs less.
    NeuronScratch(Carver& carver, int64_t max_rows, int64_t n, int64_t cols, int max_threads,
                  bool by_segment = false);

    Q8Rows folded;              // the input, in the order of folded rows
    int8_t* grouped = nullptr;  // the input, in the order of blocks of 256
    // For several rows: the neurons that fired, per tile of neurons (by_segment: of kTogether
    // segments).
    bool by_segment = false;
    int32_t* neurons = nullptr;  // [tiles, 1 + 64]: how many of a tile fired for any row, and which
    int32_t* fired = nullptr;    // [tiles, 64 * rows]: indices in this list, row by row
    float* h = nullptr;          // their values h
    int32_t* first = nullptr;    // [tiles, rows + 1]: where the entries of a row begin
    int32_t* tokens = nullptr;   // [rows]: 0, 1, ...
    // For one tile: values, products and lists of tokens; and partial sums of the result.
    struct PerThread {
        float *h, *out, *line, *sums;
        int32_t* tokens;
        int32_t* candidates;  // [kFewRows, neurons of a block]
        float* segments;      // [2 * kPairsTogether, cols]: sums of segments, for one row
        uint8_t* strips;      // rows with blocks of 32 that cannot be folded, as strips; or null
    };
    std::vector<PerThread> threads;
    float* few_sums = nullptr;  // [kFewRows, kSegments, cols]: sums of a few rows
    // [n] or null: where partial_ffn sets those that it computes (their act(g) is not 0).
    bool* computed = nullptr;
    // [rows, n] or null: where partial_ffn, rows_ffn and rows_ffn_segments store the values h, 0
    // for neurons that they do not compute.
    float* values = nullptr;
};

// Lists the neurons (of n) that the mask allows for its row 0.
void select(Context& context, const NeuronMask& mask, int64_t n, Candidates& candidates);

// The same for a list that was made elsewhere: `count` of n neurons, ascending.
void select_listed(const int32_t* ids, int64_t count, int64_t n, Candidates& candidates);

// For one row x: the sums of h * down_n over the candidates of two or more segments each, in the
// order of the down rows. Returns how many sums there are, at most kSegmentPairs; sums: room for
// [kSegmentPairs, cols]. x.q8 must be filled if gate or up want it. counts may be null. fired, [n]
// or null, gets which neurons fired (h is not zero).
int64_t partial_ffn(Context& context, const Neurons& neurons, const Input& x,
                    const Candidates& candidates, NeuronScratch& scratch, float* sums,
                    NeuronCounts* counts, bool* fired);

// y = the sums [n_sums, cols] of all segments, or of a power of two each, added by the tree, plus
// the bias: [cols], in column order.
void merge(Context& context, const Neurons& neurons, const float* sums, int64_t n_sums, float* y);

// For one row: all neurons of n <= kMostWhole FFNs at once, experts of one size that can_be_whole.
// y [n, cols] has the bits of partial_ffn and merge for each, but threads wait for each other once
// for all of them. sums: room for [kSegments, cols]. scratch.computed and scratch.values must be
// null.
constexpr int64_t kMostWhole = 4 * kPairsTogether;
bool can_be_whole(const Neurons& neurons);
void whole_ffns(Context& context, const Neurons* experts, int64_t n, const Input& x,
                NeuronScratch& scratch, float* sums, float* y, NeuronCounts* counts);

// The same for several rows: y [rows, cols], fired [rows, n] or null. Each neuron is read once for
// all rows.
void rows_ffn(Context& context, const Neurons& neurons, const Input& x, const NeuronMask& mask,
              NeuronScratch& scratch, float* y, NeuronCounts* counts, bool* fired);

// The same for 2 to kFewRows rows, which take turns at a block of neurons: each computes its own as
// a single row does, and what they share is in the processor's cache. Gates of rows that are not
// masked are computed together.
void few_rows_ffn(Context& context, const Neurons& neurons, const Input& x, const NeuronMask& mask,
                  NeuronScratch& scratch, float* y, NeuronCounts* counts, bool* fired);

// The same in steps, for rows of neurons that arrive one after the other. Each function needs only
// the rows that it names; the bits are those of the functions above.

// Brings the input into the orders that the steps for one row need.
void prepare_steps(Context& context, const Neurons& neurons, const Input& x,
                   NeuronScratch& scratch);
// h[id] = act(gate . x) of n neurons. Without a gate: their values h.
void first_values(Context& context, const Neurons& neurons, const Input& x,
                  const NeuronScratch& scratch, const int32_t* ids, int64_t n, float* h);
// h[id] = their values, from h[id] and up . x. Only with a gate.
void gated_values(Context& context, const Neurons& neurons, const Input& x,
                  const NeuronScratch& scratch, const int32_t* ids, int64_t n, float* h);
// The sums of single segments [begin, end), [kSegments, cols], whose candidates' values h [n] are
// known.
void sum_values(Context& context, const Neurons& neurons, const Input& x,
                const NeuronScratch& scratch, const Candidates& candidates, const float* h,
                int64_t begin, int64_t end, float* sums);

// rows_ffn in several calls, for s = 0, kTogether, 2 kTogether, ...: each needs only the rows of
// segments [s, s + kTogether). partial [kPartials, rows, cols] holds sums between the calls; the
// last one writes y. fires [n] or null: for how many rows a neuron of these segments fired. counts
// gets `rows` with the last call.
constexpr int64_t kPartials = 4;
static_assert(kTogether << kPartials == kSegments);
void rows_ffn_segments(Context& context, const Neurons& neurons, const Input& x,
                       const NeuronMask& mask, NeuronScratch& scratch, int64_t s, float* partial,
                       float* y, NeuronCounts* counts, bool* fired, int32_t* fires);

// Computes one segment of a row without the mask. Counts the neurons that fire, and those of them
// that the mask finds, whether or not it masks this row. No result depends on it.
struct AuditCounts {
    int64_t fired, found;
};
AuditCounts audit_segment(Context& context, const Neurons& neurons, const Input& x, int64_t row,
                          const NeuronMask& mask, int64_t segment, NeuronScratch& scratch);

}  // namespace ggml
