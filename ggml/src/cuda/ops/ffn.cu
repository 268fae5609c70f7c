// The neuron-aware feed-forward block of a few rows: who may fire, as lists; what the neurons of a
// list send down, in parts; and the sum of the parts. Float additions have a fixed order: neurons
// of a part ascending by warp, warps in order, parts in order. For experts in neuron rows, which
// move between device and CPU, they have the CPU's order.
//
// Rows are the first dimension of a grid, whose blocks begin first: those that read the same
// neurons run at the same time, and read them from the cache.
#include "cuda/ops.h"
#include "cuda/ops/ffn.h"
#include "cuda/ops/products.h"

namespace ggml::GGML_GPU {

namespace {

// ---- select -------------------------------------------------------------------------------------

constexpr int kSelect = 256;  // neurons of a block, one a thread
constexpr int kSelectWarps = kSelect / kWarp;

struct Choice {
    const float* score;
    float threshold;
    const uint8_t* unpredicted;
    const int32_t* slot;
    int n;

    // 0: not chosen, 1: hot, 2: cold.
    __device__ int of(int i) const {
        if (i >= n) return 0;
        const bool may_fire =
            !score || !(score[i] < threshold) || (unpredicted && unpredicted[i] != 0);
        return !may_fire ? 0 : !slot || slot[i] >= 0 ? 1 : 2;
    }
};

// Block (x, y): neurons [256 x, 256 x + 256) for list y. Each block counts by itself what the
// blocks before it choose: the scores are in the cache, and it saves a kernel.
__global__ void select_kernel(Choice choice, DeviceLists lists) {
    GGML_SHARED(int, before, 2 * kSelectWarps);
    const int64_t row = int64_t(blockIdx.y) * choice.n;
    if (choice.score) choice.score += row;
    lists.hot += row;
    lists.cold += row;
    lists.count += 2 * blockIdx.y;
    const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int first = int(blockIdx.x) * kSelect;
    int hot = 0, cold = 0;  // chosen by this warp's lanes in the blocks before
    for (int i = thread; i < first; i += kSelect) {
        const int chosen = choice.of(i);
        hot += __popc(__ballot_sync(kAll, chosen == 1));
        cold += __popc(__ballot_sync(kAll, chosen == 2));
    }
    const int chosen = choice.of(first + thread);
    const unsigned hots = __ballot_sync(kAll, chosen == 1),
                   colds = __ballot_sync(kAll, chosen == 2);
    if (lane == 0) {
        before[warp] = hot;
        before[kSelectWarps + warp] = cold;
    }
    __syncthreads();
    hot = cold = 0;
    for (int w = 0; w < kSelectWarps; w++) {
        hot += before[w];
        cold += before[kSelectWarps + w];
    }
    __syncthreads();  // all have read what the warps counted before
    if (lane == 0) {
        before[warp] = __popc(hots);
        before[kSelectWarps + warp] = __popc(colds);
    }
    __syncthreads();
    for (int w = 0; w < warp; w++) {
        hot += before[w];
        cold += before[kSelectWarps + w];
    }
    const unsigned lower = (1u << lane) - 1;
    if (chosen == 1) lists.hot[hot + __popc(hots & lower)] = first + thread;
    if (chosen == 2) {
        lists.cold[cold + __popc(colds & lower)] = -1 - choice.slot[first + thread];
    }
    if (blockIdx.x == gridDim.x - 1 && thread == kSelect - 1) {
        lists.count[0] = hot + __popc(hots);
        lists.count[1] = cold + __popc(colds);
    }
}

// ---- what neurons send down ---------------------------------------------------------------------

constexpr int kNeurons = 16;  // of a block

// The list of a block's row.
struct OwnList {
    const int32_t* ids;
    int n;
    __device__ explicit OwnList(const DeviceLists& lists) {
        const int64_t list = lists.rows == 1 ? 0 : blockIdx.x;
        ids = lists.hot + list * lists.n;
        n = lists.count[2 * list];
    }
};

// Neurons [first, first + n) of a list, whose products a block computes. The first n threads have
// one each.
template <DType type>
struct NeuronBlock {
    using Rows = Products<type, 1>;
    struct Shared {
        typename Rows::Shared products;
        int row[kNeurons];
        int n;
    };
    const DeviceNeurons& w;
    const DeviceInput& x;
    int lanes;
    int neuron, row;  // this thread's
    Shared& shared;

    // The product of this thread's neuron, if it wants one, with its row of a matrix. In a warp's
    // first lanes; all threads of the block come here.
    __device__ float product(const DeviceRows& m, const float* bias, bool wants) const {
        const int thread = int(threadIdx.x);
        const unsigned wanting = __ballot_sync(kAll, wants);
        const int place = __popc(wanting & ((1u << thread % kWarp) - 1));
        if (wants) shared.row[place] = row;
        if (thread == 0) shared.n = __popc(wanting);
        __syncthreads();
        const int n = shared.n;
        if (n == 0) return 0;
        Rows::multiply([&](int r) { return m.data + shared.row[r] * m.stride; }, n, kNeurons, x,
                       blockIdx.x, 1, lanes, shared.products);
        if (!wants) return 0;
        return shared.products.sum[place] + (bias ? bias[neuron] : 0.0f);
    }
    // What the gate's value becomes with the neuron's up row.
    __device__ float times_up(float value) const {
        const float up = product(w.up, w.up_bias, value != 0);
        if (value == 0) return value;
        return value * (w.act == Activation::drelu ? activate(w, up) : up);
    }
};

// Adds the number of a warp's lanes that say yes, with one atomic of the first warp, which has all.
__device__ inline void tally(unsigned long long* total, bool yes) {
    const int n = __popc(__ballot_sync(kAll, yes));
    if (total && threadIdx.x == 0 && n > 0) atomicAdd(total, (unsigned long long)n);
}

// Block (x, y): neurons [16 y, 16 y + 16) of the list of row x. h[i] = what neuron i of the list
// multiplies its down row with; up is read only where the gate fires. Gate and up have one type.
// Without a gate: the activated product with up. With `later`, only the second half: for an up of
// another type than the gate's, whose activated values are in h.
template <DType type>
__global__ void __launch_bounds__(kRowThreads)
    fire_kernel(DeviceNeurons w, DeviceInput x, DeviceLists lists, float* h, FfnCounts counts,
                bool later, int lanes) {
    using Block = NeuronBlock<type>;
    GGML_SHARED(typename Block::Shared, shared, 1);
    const OwnList list(lists);
    const int thread = int(threadIdx.x), first = int(blockIdx.y) * kNeurons, i = first + thread;
    if (first >= list.n) return;  // a whole block
    const bool mine = thread < kNeurons && i < list.n;
    const int neuron = mine ? list.ids[i] : 0;
    const Block block{w, x, lanes, neuron, mine ? row_of(w, neuron) : 0, shared[0]};
    h += int64_t(blockIdx.x) * w.n;
    const bool gated = w.gate.data != nullptr;
    float value = 0;
    if (later) {
        if (mine) value = h[i];
    } else {
        const float sum =
            block.product(gated ? w.gate : w.up, gated ? w.gate_bias : w.up_bias, mine);
        if (mine) value = activate(w, sum);
        tally(counts.computed, value != 0);
    }
    if (later || gated) value = block.times_up(value);
    if (mine) h[i] = value;
    tally(counts.fired, value != 0);
    if (counts.proposed && i == 0) atomicAdd(counts.proposed, (unsigned long long)list.n);
}

// ---- down ---------------------------------------------------------------------------------------

constexpr int kColumns = kWarp * kQ;  // of a block: a group of 32 a lane

// Block (x, y, z): columns [1024 y, 1024 y + 1024) of part z of the list of row x, which its warps
// share out.
template <DType type>
__global__ void down_kernel(DeviceNeurons w, DeviceLists lists, const float* h, float* sums) {
    GGML_SHARED(float, shared, kDownWarps* of_warp(kQ));
    const OwnList list(lists);
    const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int cols = w.down.cols, first = int(blockIdx.y) * kColumns, part = int(blockIdx.z);
    const int64_t n = list.n;
    h += int64_t(blockIdx.x) * w.n;
    sums += (int64_t(blockIdx.x) * kDeviceParts + part) * cols;
    const int begin = int(n * part / kDeviceParts), end = int(n * (part + 1) / kDeviceParts);
    const bool inside = first + kQ * lane < cols;
    float sum[kQ];
    for (int c = 0; c < kQ; c++) sum[c] = 0;
    for (int i = begin + warp; i < end; i += kDownWarps) {
        const float value = h[i];
        if (value == 0 || !inside) continue;
        const uint8_t* row = w.down.data + row_of(w, list.ids[i]) * w.down.stride;
        if constexpr (is_float_type(type)) {
            for (int c = 0; c < kQ / 8; c++) {
                float eight[8];
                load8<type>(row, (first + kQ * lane) / 8 + c, eight);
                for (int k = 0; k < 8; k++) sum[8 * c + k] = fmaf(value, eight[k], sum[8 * c + k]);
            }
        } else {
            const PlaneOffsets at(plane_bytes(type), cols);
            const Group g = load_group<type>(row, at, first / kQ + lane);
            for (int c = 0; c < kQ; c++) sum[c] = fmaf(value, group_value<type>(g, c), sum[c]);
        }
    }
    for (int c = 0; c < kQ; c++) shared[warp * of_warp(kQ) + at_bank(kQ, lane, c)] = sum[c];
    __syncthreads();
    for (int c = thread; c < kColumns; c += kDownWarps * kWarp) {
        const int at = at_bank(kQ, c / kQ, c % kQ);
        float total = shared[at];
        for (int other = 1; other < kDownWarps; other++) total += shared[other * of_warp(kQ) + at];
        if (first + c < cols) sums[first + c] = total;
    }
}

// ---- experts in neuron rows ---------------------------------------------------------------------

constexpr int kValues = 256;  // of a block

// The frame of the expert of a pair; -1: it is not here. Without a table there is one for all.
__device__ inline int frame_of(const DeviceChoice& choice, const DeviceFrames& frames, int pair) {
    return !frames.frame ? 0 : frames.frame[choice.expert[pair]];
}

// Block (x, y): neurons [256 x, 256 x + 256) of pair y. w: their activation.
__global__ void expert_values_kernel(DeviceNeurons w, DeviceChoice choice, DeviceFrames frames,
                                     float* h, const float* up, FfnCounts counts) {
    const int pair = int(blockIdx.y), i = int(blockIdx.x) * kValues + int(threadIdx.x);
    if (frame_of(choice, frames, pair) < 0) return;  // a whole block
    bool computed = false, fired = false;
    if (i < w.n) {
        const int64_t at = int64_t(pair) * w.n + i;
        float value = activate(w, h[at]);
        computed = value != 0;
        if (up && computed) value *= w.act == Activation::drelu ? activate(w, up[at]) : up[at];
        fired = value != 0;
        h[at] = value;
    }
    const int n_computed = __popc(__ballot_sync(kAll, computed));
    const int n_fired = __popc(__ballot_sync(kAll, fired));
    if (!counts.proposed || threadIdx.x % kWarp != 0) return;
    if (n_computed) atomicAdd(counts.computed, (unsigned long long)n_computed);
    if (n_fired) atomicAdd(counts.fired, (unsigned long long)n_fired);
    if (i == 0) atomicAdd(counts.proposed, (unsigned long long)w.n);
}

// Have the weights of a type a minimum, or are they NVFP4's? Then the CPU decodes them, and
// multiplies them with h; else it multiplies the scale with h, and the product with what the scale
// belongs to.
constexpr bool are_decoded(DType type) {
    const PlaneBytes bytes = plane_bytes(type);
    return bytes.super == 4 || (bytes.super == 0 && bytes.scale == 4) || type == DType::NVFP4;
}

// sum += h * the group of columns c0 of a row.
template <DType type>
__device__ inline void add_group(const uint8_t* row, int cols, int c0, float h, float (&sum)[kQ]) {
    if constexpr (is_float_type(type)) {
        for (int c = 0; c < kQ && c0 + c < cols; c += 8) {
            float eight[8];
            load8<type>(row, (c0 + c) / 8, eight);
            for (int k = 0; k < 8; k++) sum[c + k] = fmaf(h, eight[k], sum[c + k]);
        }
    } else {
        const Group g = load_group<type>(row, PlaneOffsets(plane_bytes(type), cols), c0 / kQ);
        const float factor[2] = {h * g.d[0], h * g.d[1]};
        for (int c = 0; c < kQ; c++) {
            if constexpr (are_decoded(type)) {
                sum[c] = fmaf(h, group_value<type>(g, c), sum[c]);
            } else {
                const unsigned byte = g.words[c / 4] >> c % 4 * 8 & 255;
                const int q = has_signed_quants(type) ? int(int8_t(byte)) : int(byte);
                sum[c] = fmaf(factor[c / 16], float(q - quant_bias(type)), sum[c]);
            }
        }
    }
}

// A block has a group of columns for each of four threads, of every segment of the neurons. In
// shared memory those of a warp are in different banks.
constexpr int kSumGroups = 4, kSumColumns = kSumGroups * kQ;
constexpr int kSumThreads = int(kSegments) * kSumGroups, kSumRow = kSumGroups * (kQ + 1);
static_assert(kSumThreads == kSumColumns);  // then one column each

// Block (x, y): columns [128 x, 128 x + 128) of the y-th pair by experts, so that those of one read
// its rows from the cache. The CPU's order: neurons of a segment ascending, then a tree of
// neighbours (add_tree).
template <DType type>
__global__ void __launch_bounds__(kSumThreads)
    add_experts_kernel(DeviceRows w, const float* bias, DeviceChoice choice, DeviceFrames frames,
                       const float* h, float* y) {
    GGML_SHARED(float, shared, int(kSegments) * kSumRow);
    const int pair = frames.frame ? choice.pair[blockIdx.y] : int(blockIdx.y);
    const int frame = frame_of(choice, frames, pair);
    if (frame < 0) return;  // a whole block
    const int thread = int(threadIdx.x), first = int(blockIdx.x) * kSumColumns;
    const int segment = thread / kSumGroups, group = thread % kSumGroups, c0 = first + group * kQ;
    const int size = (w.rows + 8 * int(kSegments) - 1) / (8 * int(kSegments)) * 8;  // segment_of()
    const int begin = segment * size, end = begin + size < w.rows ? begin + size : w.rows;
    const uint8_t* const rows = w.data + frame * frames.stride;
    h += int64_t(pair) * w.rows;
    float sum[kQ];
    for (int c = 0; c < kQ; c++) sum[c] = 0;
    for (int i = begin; i < end && c0 < w.cols; i++) {
        const float value = h[i];
        if (value != 0) add_group<type>(rows + i * w.stride, w.cols, c0, value, sum);
    }
    for (int c = 0; c < kQ; c++) shared[segment * kSumRow + group * (kQ + 1) + c] = sum[c];
    __syncthreads();
    if (first + thread >= w.cols) return;
    float tree[kSegments];
    for (int s = 0; s < kSegments; s++) {
        tree[s] = shared[s * kSumRow + thread / kQ * (kQ + 1) + thread % kQ];
    }
    for (int apart = 1; apart < kSegments; apart *= 2) {
        for (int s = 0; s < kSegments; s += 2 * apart) tree[s] += tree[s + apart];
    }
    const float* const own = bias ? bias + frame * (frames.stride / 4) : nullptr;
    y[int64_t(pair) * w.cols + first + thread] = tree[0] + (own ? own[first + thread] : 0.0f);
}

}  // namespace

void expert_values(DeviceStream* stream, Activation act, float threshold,
                   const DeviceChoice& choice, const DeviceFrames& frames, int n, float* h,
                   const float* up, unsigned long long* counts) {
    DeviceNeurons w;
    w.n = n;
    w.act = act;
    w.threshold = threshold;
    launch<expert_values_kernel>(stream, dim3(blocks_for(n, kValues), unsigned(choice.pairs())),
                                 kValues, w, choice, frames, h, up, FfnCounts(counts));
}

void add_experts(DeviceStream* stream, const DeviceRows& w, const float* bias,
                 const DeviceChoice& choice, const DeviceFrames& frames, const float* h, float* y) {
    with_type(w.type, [&](auto tag) {
        launch<add_experts_kernel<decltype(tag)::type>>(
            stream, dim3(blocks_for(w.cols, kSumColumns), unsigned(choice.pairs())), kSumThreads, w,
            bias, choice, frames, h, y);
    });
}

void select(DeviceStream* stream, const float* score, float threshold, const uint8_t* unpredicted,
            const int32_t* slot, const DeviceLists& lists) {
    const Choice choice{score, threshold, unpredicted, slot, lists.n};
    launch<select_kernel>(stream, dim3(blocks_for(lists.n, kSelect), unsigned(lists.rows)), kSelect,
                          choice, lists);
}

void partial_ffn(DeviceStream* stream, const DeviceNeurons& w, const DeviceInput& x,
                 const DeviceLists& lists, const DeviceFfnScratch& scratch) {
    if (device_parts(x.rows, lists.rows) == 1) return every_neuron(stream, w, x, lists, scratch);
    const dim3 grid(unsigned(x.rows), blocks_for(w.up.rows, kNeurons));
    const FfnCounts counts(scratch.counts);
    const auto fire = [&](const DeviceNeurons& of, const FfnCounts& counted, bool later) {
        with_type((of.gate && !later ? of.gate : of.up).type, [&](auto tag) {
            launch<fire_kernel<decltype(tag)::type>>(stream, grid, kRowThreads, of, x, lists,
                                                     scratch.h, counted, later, float_lanes());
        });
    };
    if (!w.gate || w.gate.type == w.up.type) {
        fire(w, counts, false);
    } else {
        // A kernel for every pair of types would be 225 of them.
        DeviceNeurons gate = w;
        gate.up = w.gate;
        gate.up_bias = w.gate_bias;
        gate.gate = {};
        FfnCounts of_gate = counts, of_up = counts;
        of_gate.fired = nullptr;
        of_up.proposed = nullptr;
        fire(gate, of_gate, false);
        fire(w, of_up, true);
    }
    with_type(w.down.type, [&](auto down) {
        const dim3 parts(unsigned(x.rows), blocks_for(w.down.cols, kColumns), kDeviceParts);
        launch<down_kernel<decltype(down)::type>>(stream, parts, kDownWarps * kWarp, w, lists,
                                                  scratch.h, scratch.sums);
    });
}

}  // namespace ggml::GGML_GPU
