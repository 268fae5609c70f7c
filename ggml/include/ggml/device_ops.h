// The operators of a forward pass on a device: one table per kind of device, as cpu::Kernels is for
// instruction sets. Each puts kernels into a stream and returns; pointers are the device's, unless
// said otherwise. They throw Error(device) when the device fails.
//
// What changes from token to token (ids, positions, how long a sequence is) is read from device
// memory, not given as an argument, so that a captured graph of these calls serves every token.
//
// Results have the same bits in every run: those of ops.h on a CPU that fuses multiply and add.
// Only the sums of neurons (partial_ffn, merge) are taken in a fixed order of their own.
#pragma once

#include <cstdint>

#include "ggml/attention.h"
#include "ggml/dtype.h"
#include "ggml/gate_limit.h"
#include "ggml/neurons.h"
#include "ggml/recurrence.h"

namespace ggml {

// Work that is done in order on a device.
struct DeviceStream;

// A matrix of weights on a device: rows as pack_device_row() makes them, `stride` bytes apart.
struct DeviceRows {
    DType type = DType::F32;
    const uint8_t* data = nullptr;
    int64_t stride = 0;
    int rows = 0, cols = 0;

    explicit operator bool() const { return data != nullptr; }
};
// Bytes of a row on a device, a multiple of 16.
int64_t device_row_bytes(DType type, int64_t cols);
// A row as in the file to what a device reads: floats as they are, blocks in planes (planes.h).
void pack_device_row(DType type, const uint8_t* row, int64_t cols, uint8_t* out);
// Has a device products and sums with the bits of the CPU for experts in neuron rows of this type
// and width? Blocks of 256 only where a row can be folded.
bool has_neuron_experts(DType type, int64_t cols);
// Can rows of this type and width be multiplied with on a device? Formats in blocks of 32 and 256,
// and floats in whole groups of 8.
bool has_device_rows(DType type, int64_t cols);

// Activations: floats, and the same rows in 8 bits for weights that are quantised. Per 32 values a
// scale, and the sums of both halves for the offsets of weights.
struct alignas(8) DeviceQ8Scale {
    float d;
    int16_t s0, s1;
};
struct DeviceInput {
    float* x = nullptr;          // [rows, cols]
    int8_t* q = nullptr;         // [rows, cols]; null where no weight wants it
    DeviceQ8Scale* s = nullptr;  // [rows, cols / 32]
    int rows = 0, cols = 0;

    // The same room for rows of another width. They have 8 bits if they are whole groups of 32.
    DeviceInput as(int64_t n, int64_t width) const {
        return {x, width % kQ ? nullptr : q, width % kQ ? nullptr : s, int(n), int(width)};
    }
    // n of the rows, from row t on.
    DeviceInput part(int64_t t, int64_t n) const {
        const int64_t at = t * cols;
        return {x + at, q ? q + at : nullptr, q ? s + at / kQ : nullptr, int(n), cols};
    }
};

// y[t][n] = scale * w[n] . x[t] + bias[n]
struct DeviceProduct {
    DeviceRows w;
    float* y = nullptr;            // [x.rows, w.rows]
    const float* bias = nullptr;   // [w.rows]
    const float* scale = nullptr;  // [1], of experts [n_expert]; or null for 1. Not of neurons
    int64_t y_row = 0;             // floats between rows of y; 0: w.rows
    // Of experts in neuron rows or what stands beside them, whose products the CPU adds in an order
    // of their own.
    bool of_neurons = false;
};

// Rows that are added to others: factor * norm(x). norm: weight of an RMS norm; null: none.
struct DeviceAdded {
    float* x = nullptr;           // [rows, cols]; null: nothing is added
    const float* norm = nullptr;  // [cols]
    float eps = 0, factor = 1;
};

// Rows of a layer's norm: x += added[0] + added[1] first, then y = norm(x), and y in 8 bits where
// y.q is there. x and y.x may be the same. A layer norm adds rows without a norm.
struct DeviceNorm {
    const float *weight = nullptr, *bias = nullptr;  // [cols]; bias: of a layer norm
    bool layer = false;                              // layer norm, else RMS norm
    float eps = 0;
    float* x = nullptr;  // [rows, cols]
    DeviceAdded added[2];
    DeviceInput y;
};

// Gates of heads of `dim` values: those of head h of row t begin at x + t * row + h * head. One for
// each value, or one for all of a head.
struct DeviceGates {
    const float* x = nullptr;
    int64_t row = 0, head = 0;  // floats
    int dim = 0;
    bool one_a_head = false;
};

constexpr int64_t kDeviceHeadDim = 576;  // the widest heads of heads() and attention()

// Queries, keys and values as products give them, on their way to attention.
struct DeviceHeads {
    // Head h of row t begins at x + t * row + h * head.
    struct Kind {
        const float* x = nullptr;
        int64_t row = 0, head = 0;    // floats
        int dim = 0;                  // of a head
        const float* norm = nullptr;  // of each head; null: none
        int normed = 0;               // so many of its first values are normed
        int rotates = 0;              // from this value on pairs are rotated
    };
    Kind q, k, v;  // k.x null: another layer has keys and values. v.x may be k.x
    int rows = 0, n_head = 0;
    // RMS norms [normed], of values without a weight; or layer norms of queries and keys, without
    // bias: [heads, dim].
    bool layer_norm = false, norm_last = false, v_norm = false;
    float eps = 0;
    const float* cos_sin = nullptr;  // a row of n_pairs cosines and sines for each row
    int n_pairs = 0;                 // 0: nothing is rotated
    RopePairs pairs = RopePairs::adjacent;
    // Where queries go. The first `apart` values of each go to rows of their own, out_apart
    // [rows * n_head, apart], and the rest to out.
    struct Out {
        float* x = nullptr;
        int64_t row = 0, head = 0;
    } out;
    int apart = 0;
    float* out_apart = nullptr;
};

// Where the rows of a call read keys and values. Everything is on the device.
struct DeviceAttentionRow {
    const int32_t* pages;
    int32_t first, end;
};
// Room for what blocks of positions add up to.
struct DeviceAttentionScratch {
    float* sums = nullptr;  // [rows, n_head, blocks, v_head_dim + 2]
    int blocks = 0;         // enough for the longest sequence: device_attention_blocks(end)
};
constexpr int64_t kDeviceAttentionBlock = 256;  // positions
constexpr int64_t device_attention_blocks(int64_t end) {
    return (end + kDeviceAttentionBlock - 1) / kDeviceAttentionBlock;
}

// Signs of weights (sketch.h), as in the file.
struct DeviceSketch {
    int rows = 0, cols = 0;          // cols: a multiple of 8
    const uint8_t* signs = nullptr;  // [rows, cols / 8], at a multiple of 16 bytes
    const float* offset = nullptr;   // [rows], or null
};
// Room for the bits of n inputs. A plane is a bit per column in words of 32, padded to 16 bytes.
constexpr int device_sketch_words(int cols) {
    return (cols + 127) / 128 * 4;
}
struct DeviceSketchScratch {
    uint32_t* planes = nullptr;  // [n, 4, device_sketch_words(cols)], at a multiple of 16 bytes
    float* unit = nullptr;       // [n]
    int32_t* total = nullptr;    // [n]
};

// Which neurons may fire, as lists: those whose rows are on this device, and the others. A list per
// row of activations, or one for all of them.
struct DeviceLists {
    int32_t* hot = nullptr;    // [rows, n]: neurons, ascending
    int32_t* cold = nullptr;   // [rows, n]: rows where they are, ascending
    int32_t* count = nullptr;  // [rows, 2]: of hot, of cold
    int rows = 1;              // 1: for all
    int n = 0;                 // neurons of the layer
};

// A layer's neurons on a device. slot[n] is the row of neuron n in the matrices here; if it is
// elsewhere, slot[n] is -1 - its row there. slot null: row n. Rows are in the order of the neurons,
// here and there.
struct DeviceNeurons {
    int n = 0;  // neurons of the layer
    DeviceRows gate, up, down;
    const int32_t* slot = nullptr;                         // [n]
    const float *gate_bias = nullptr, *up_bias = nullptr;  // [n], by neuron
    Activation act = Activation::relu;
    float threshold = 0;
};
constexpr int kDeviceParts = 32;  // parts of a list, whose sums are added last
// So many rows pay for tiles of 64. Those with one list add the sums of parts at once.
constexpr int kDeviceTileRows = 16;
constexpr int device_parts(int rows, int lists) {
    return lists == 1 && rows >= kDeviceTileRows ? 1 : kDeviceParts;
}
struct DeviceFfnScratch {
    float *h = nullptr, *up = nullptr;  // [rows, n]: by place in the list; up: for tiles
    float* sums = nullptr;              // [rows, device_parts(), cols]
    // [3]: proposed, computed, fired (NeuronCounts) are added to these; null: not counted.
    unsigned long long* counts = nullptr;
};
// What partial_ffn() leaves in `sums`.
struct DeviceSums {
    const float* sums = nullptr;  // [rows, parts, cols]
    int parts = kDeviceParts, rows = 1, cols = 0;
};

// How the halves of a layer that is split between a device and the CPU meet, in memory that both
// see (SharedArray). An epoch is a number that grows with every token, and is never 0 or kReleased.
// Flags lie on cache lines of their own. The device publishes its input and the neurons that the
// CPU computes; if there are any, the CPU answers with what they send down. After kReleased the
// host lets the stream come to rest, then sets `answered` to 0.
struct DeviceExchange {
    float* x = nullptr;               // [rows, cols]
    int32_t* ids = nullptr;           // [lists, n]; null: not published
    int32_t* count = nullptr;         // [lists]
    uint32_t* published = nullptr;    // the epoch whose x, ids and count are there
    float* sums = nullptr;            // [rows, cols]
    uint32_t* answered = nullptr;     // the epoch whose sums are there; kReleased ends waits
    uint32_t* arrived = nullptr;      // device memory, 0 between calls
    const uint32_t* epoch = nullptr;  // device memory: the current one
    // Device memory: nanoseconds that the device has waited for answers are added to it.
    unsigned long long* waited = nullptr;
    // A wait of more nanoseconds than `limit` (0: none) ends without an answer and sets `late` in
    // device memory to 1. While that is set, nothing waits, and sums are worthless.
    unsigned long long limit = 0;
    unsigned long long* late = nullptr;
};
constexpr uint32_t kReleased = 0xffffffff;

constexpr int kDeviceExperts = 512;  // the most that route() chooses from
// The experts that rows have chosen. A pair is a row with one of its experts: pair n_used * t + k
// is row t with the k-th of its experts, in ascending order.
struct DeviceChoice {
    int32_t* expert = nullptr;  // [rows, n_used], ascending in each row
    float* weight = nullptr;    // [rows, n_used]
    // The pairs of expert e are pair[first[e]] to pair[first[e + 1] - 1], ascending.
    int32_t* first = nullptr;  // [n_expert + 1]
    int32_t* pair = nullptr;   // [rows * n_used]
    int rows = 0, n_used = 0, n_expert = 0;

    int pairs() const { return rows * n_used; }
};
// Which experts of a layer are on the device: each in a frame. Frames have the matrices of an
// expert at the same offsets and lie `stride` bytes apart.
struct DeviceFrames {
    const int32_t* frame = nullptr;  // [n_expert]: of each expert; -1: it is not here
    int64_t stride = 0;
};

// The rows of one sequence, and its slots of states: those of all layers that the device has, as
// the CPU has them (recurrence.h).
struct DeviceSequence {
    int32_t first = 0, n = 0;       // of DeviceSequences::rows
    const float* before = nullptr;  // the state before the first row; null: zeros
    float* after = nullptr;         // the state after the last row; may be `before`
};
// The rows of a call by sequence, for operators with a state. What changes from call to call is in
// device memory.
struct DeviceSequences {
    const DeviceSequence* of = nullptr;  // [*count]
    const int32_t* count = nullptr;
    const int32_t* rows = nullptr;  // [n_rows], those of a sequence in the order of their positions
    int most = 0;                   // sequences that the rows can have
    int n_rows = 0;
    int64_t at = 0;  // floats of a slot before the state of this operator
};
constexpr int64_t kDeviceScanRows = 512, kDeviceDeltaRows = 256;  // of a head's state, at most
// What scan and delta rule compute of their rows first.
struct DeviceDecay {
    float factor, decayed, scale;  // Steps in kernels/recurrence.h; folded: these are not the same
};
// What enters a state: rows [n, width] of some arrays, one behind the other in what is kept.
constexpr int kDeviceColumns = 5;
struct DeviceColumns {
    const float* x[kDeviceColumns] = {};
    int width[kDeviceColumns] = {};
};
struct DeviceStateScratch {
    DeviceDecay* decays = nullptr;  // [rows, heads]
    float* products = nullptr;      // [rows, heads of k]: q . k
    float* row_decays = nullptr;    // [rows, heads, head_dim]: of rows of states (DeltaRule)
};

struct DeviceOps {
#define DEVICE_OP(name, ...) void (*name)(DeviceStream*, __VA_ARGS__);
#include "ggml/device_ops.inc"
#undef DEVICE_OP
};

}  // namespace ggml
