// Kernel signatures, and the table through which operators call kernels. kernels.inc lists every
// kernel.
#pragma once

#include <cstdint>

#include "ggml/attention.h"
#include "ggml/dtype.h"
#include "ggml/ops.h"
#include "ggml/recurrence.h"
#include "ggml/tensor.h"

namespace ggml::cpu {

// An integer as a type. Not std::integral_constant, because its conversion must be always_inline;
// see the comment above bits_to_float in blocks.h.
template <int n>
struct Count {
    [[gnu::always_inline]] constexpr operator int() const { return n; }
};

// y[t * ldy + r] = w[r] . x[t] over k columns, for n_rows rows (row_bytes apart) and nt tokens (ldx
// floats apart).
using matmul_fn = void (*)(const uint8_t* w, int64_t row_bytes, int64_t n_rows, int64_t k,
                           const float* x, int64_t ldx, int64_t nt, float* y, int64_t ldy);

// The same for the rows of n consecutive strips and nt 8-bit tokens from t0 on.
using strip_fn = void (*)(const uint8_t* strips, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt,
                          float* y, int64_t ldy);

// y[t * ldy + c] += sum_r a[t * lda + r] * w[r][c], rows in ascending order, for c in [0, cols).
// For block formats cols is a multiple of the block. Prefetches as many bytes at `next` as it reads
// at w: runs of keys and values are too short for the processor's own prefetchers.
using accumulate_fn = void (*)(const uint8_t* w, const uint8_t* next, int64_t row_bytes,
                               int64_t n_rows, int64_t cols, const float* a, int64_t lda,
                               int64_t nt, float* y, int64_t ldy);

// y[t * ldy + p] = q[t] . key p over head_dim columns, in ascending order, for nt queries
// [head_dim] and the first n keys of a run of floats [head_dim][kKvPage]. May write all kKvPage
// scores. Prefetches the run at `next`.
using scores_fn = void (*)(const uint8_t* keys, const uint8_t* next, int64_t head_dim, int64_t n,
                           const float* q, int64_t nt, float* y, int64_t ldy);
// y[t * ldy + c] += sum_p a[t * lda + p] * value p, for positions [from, to) of a run of values in
// blocks (value_blocks.h), nt queries and head_dim columns. Weights are not negative; NaN counts as
// 0. They are multiplied with the scales of a block of columns and rounded to integers of up to
// kMostWeight, which stands for the largest weight times the largest scale. A scale that is not
// finite makes all sums of its columns NaN. Prefetches the run at `next`.
using weigh_fn = void (*)(const uint8_t* run, const uint8_t* next, int64_t head_dim, int64_t from,
                          int64_t to, const float* a, int64_t lda, int64_t nt, float* y,
                          int64_t ldy);
// The softmax of scores [begin, end) of a block, which is at `score` (kAttentionBlock floats),
// after s = softcap * tanh(s) if softcap is not 0: top = the largest, score[i] = e^(score[i] -
// top), sum = their sum. Adds in sixteen lanes, score i in lane i % 16, and these by halves: lanes
// 8 to 15 to the first eight, and so on. Scores beside the range are overwritten. NaN: top is the
// largest of the others, sum is NaN.
using softmax_fn = void (*)(float* score, int64_t begin, int64_t end, float softcap, float* top,
                            float* sum);

// Rows that a kernel prefetches for the next call while it computes for one token. A core has room
// for only a few outstanding cache lines, so they are requested little by little.
struct Prefetch {
    const uint8_t* w = nullptr;
    int64_t stride = 0;
    const int32_t* ids = nullptr;
    int64_t n = 0;

    // The row to prefetch while the kernel computes its row i. If there is none: `now`, which is
    // being read anyway.
    [[gnu::always_inline]] const uint8_t* row(int64_t i, const uint8_t* now) const {
        return i < n ? w + ids[i] * stride : now;
    }
    // Those that remain after the first `done` rows of a kernel.
    [[gnu::always_inline]] Prefetch from(int64_t done) const {
        return done < n ? Prefetch{w, stride, ids + done, n - done} : Prefetch{};
    }
};

// The eight lanes of a neuron-row kernel are the eighths of a span of columns. The span is the
// whole row if it is folded (neurons.h), or 256 columns of a row as stored (then the lanes are the
// groups of 32 in a block). In that order, column r * span / 8 + 32 b + 4 v + j of a span is at ((8
// b + v) * 4 + j) * 8 + r. column_at is the inverse.
inline int64_t column_at(int64_t place, int64_t span) {
    const int64_t p = place % span, r = p % 8, j = p / 8 % 4, group = p / 32;
    return place - p + r * (span / 8) + 4 * group + j;
}

// The input of neuron products: tokens' activations as floats (x), in 8 bits (q8), and in 8 bits in
// the order of folded rows and of spans of 256 columns: q [cols / 256][8 groups][8 lanes][4]; the
// other arrays [cols / 256][8 lanes] per 32 columns (s16: two values each).
struct NeuronInput {
    const float* x;
    Q8Rows q8, folded, grouped;
    Prefetch prefetch = {};
};

// y[i * nt + j] = row ids[i] . token tokens[j], for n rows at w + id * stride and nt tokens. Rows
// of block formats are folded.
using dot_fn = void (*)(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                        int64_t cols, const NeuronInput& x, const int32_t* tokens, int64_t nt,
                        float* y);
// The same for blocks as stored, of 256 (grouped) or of 32 (q8, with the bits of strips).
using stored_dot_fn = dot_fn;

// Weighted rows per token: token t adds h[k] times row row[k], for k from first[t] to first[t + 1]
// - 1, rows ascending.
struct WeightedRows {
    const int32_t *first, *row;
    const float* h;
    Prefetch prefetch = {};
};
constexpr int64_t kMostRows = 64;  // of WeightedRows: a tile of neurons

// y[t * ldy + c] += sum_k h[k] * row ids[row[k]][c] over `cols` columns, for nt tokens and n <=
// kMostRows rows at w + id * stride. Rows of block formats are folded, and y has their order
// (column_at).
using add_fn = void (*)(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                        int64_t cols, const WeightedRows& weighted, int64_t nt, float* y,
                        int64_t ldy);
// The same for blocks as stored; y has the order of spans of 256, or with blocks of 32 plain order.
using stored_add_fn = add_fn;
// The same for tiles of rows with blocks of 32 (NeuronRows::Tiles::blocks), with the bits of
// stored_add. The input tells no rows to prefetch: where tiles are used, rows are read in order.
using tiled_add_fn = add_fn;

// Where row id of such tiles begins, and the distance of its blocks, which have `size` bytes.
[[gnu::always_inline]] inline const uint8_t* tiled_row(const uint8_t* w, int64_t stride, int32_t id,
                                                       int64_t size) {
    return w + id / kStrip * kStrip * stride + id % kStrip * size;
}

// Quantises rows [t0, t0 + nt) of x [.., cols] into out.
using quantize_fn = void (*)(const float* x, int64_t t0, int64_t nt, const Q8Rows& out);

// What lies between products. Values keep their bits in every instruction set, and norms add in the
// same sixteen lanes: value i in lane i % 16, and the lanes in order.
//
// x = act(x), n values. Results below the threshold are 0, NaN stays NaN.
using activate_fn = void (*)(Activation act, float threshold, float* x, int64_t n);
// x = act(x) * up (drelu: relu(x) * relu(up); swiglu_oai: times oai_up(up)).
using gate_fn = void (*)(Activation act, float* x, const float* up, int64_t n);
// x *= sigmoid(gate), which becomes that.
using sigmoid_gate_fn = void (*)(float* x, float* gate, int64_t n);
// x = cap * tanh(x / cap).
using softcap_fn = void (*)(float* x, float cap, int64_t n);
using xielu_fn = void (*)(const Xielu& how, float* x, int64_t n);
// x += scale * y.
using add_scaled_fn = void (*)(float* x, float scale, const float* y, int64_t n);
// x = a * x + b * y.
using mix_fn = void (*)(float* x, float a, const float* y, float b, int64_t n);
// One row of rms_norm, layer_norm and rope in ops.h.
using rms_norm_fn = void (*)(const float* x, const float* weight, float eps, int64_t n, float* y);
using layer_norm_fn = void (*)(const float* x, const float* weight, const float* bias, float eps,
                               int64_t n, float* y);
using rope_fn = void (*)(float* x, int64_t n_head, int64_t head_dim, const float* cos_sin,
                         int64_t n_pairs, RopePairs pairs);

// Channels [first, first + n) of a sequence of convolve() in recurrence.h, n <= kConvolved.
constexpr int64_t kConvolved = 128;
using convolve_fn = void (*)(const Convolution& how, int64_t first, int64_t n,
                             const StateRows& sequence, const float* x, int64_t x_row, float* y,
                             int64_t y_row);
// One head of a sequence of mamba2_scan(), and of delta_rule() with q and k as they are after its
// first line. A value's sum over the rows of the state has a fixed order.
using scan_fn = void (*)(const Mamba2Scan& how, int64_t head, const StateRows& sequence,
                         const Heads& y);
using delta_fn = void (*)(const DeltaRule& how, int64_t head, const StateRows& sequence,
                          const Heads& y);

// How much rows of signs (ggml/sketch.h) disagree with one input: out[r] = sum of the levels of the
// columns where signs differ. planes: [4, plane_bytes(bytes)]: the signs of the input, then bits 0,
// 1 and 2 of its levels; 0 beyond the end.
using sketch_fn = void (*)(const uint8_t* signs, int64_t n_rows, int64_t bytes,
                           const uint8_t* planes, int32_t* out);

// A plane is padded to whole 64-byte registers.
[[gnu::always_inline]] constexpr int64_t plane_bytes(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

// Do kernels that read memory in order prefetch it themselves? Not on AMD's cores, whose own
// prefetchers do better alone. 1B, decoding with 2 threads, tokens/s with and without: Zen 4, Q4_0
// 56 and 69, Q8_0 33 and 37; Sapphire Rapids reads 28 and 21 GB/s.
extern const bool fetches_ahead;
// Bytes of a core's L1 data cache; 32 KB where the processor does not tell.
extern const int64_t l1_bytes;

constexpr int kTypes = 48;  // ids of weight types are smaller

struct Kernels {
    const char* isa;
    int float_lanes;  // sums side by side of matmul
    matmul_fn matmul[kTypes];
    strip_fn strip[kTypes];
    accumulate_fn accumulate[kTypes];
    weigh_fn weigh[kTypes];      // by the values' type: Q8_0
    scores_fn scores[kTypes];    // by the keys' type: F32, F16
    softmax_fn softmax[kTypes];  // F32
    dot_fn dot[kTypes];
    add_fn add[kTypes];
    stored_dot_fn stored_dot[kTypes];
    stored_add_fn stored_add[kTypes];
    tiled_add_fn tiled_add[kTypes];
    quantize_fn quantize[kTypes];  // by input type: F32
    activate_fn activate[kTypes];  // this and the next: F32
    gate_fn gate[kTypes];
    sigmoid_gate_fn sigmoid_gate[kTypes];
    softcap_fn softcap[kTypes];
    xielu_fn xielu[kTypes];
    add_scaled_fn add_scaled[kTypes];
    mix_fn mix[kTypes];
    rms_norm_fn rms_norm[kTypes];
    layer_norm_fn layer_norm[kTypes];
    rope_fn rope[kTypes];
    convolve_fn convolve[kTypes];
    scan_fn scan[kTypes];
    delta_fn delta[kTypes];
    sketch_fn sketch[kTypes];  // by tensor type: I8
};

// The complete table of one instruction set; kernels that it lacks come from lesser ones. Null if
// the name is unknown, this build is without it, or this processor or operating system cannot run
// it.
const Kernels* kernels_for(const char* isa);
// Names of the instruction sets of this kind of processor, best first.
const char* const* isa_names(int* n);

}  // namespace ggml::cpu

// Declares every kernel of the list: a constant that is an instance of some template.
#define KERNEL(op, type_, isa, fn) \
    namespace ggml::cpu::isa {     \
    extern const op##_fn fn;       \
    }
#include "kernels/kernels.inc"
#undef KERNEL
