// The neuron-aware feed-forward block of a few rows: who may fire, as lists; what the neurons of a
// list send down, in parts; and the sum of the parts. Float additions have a fixed order: neurons
// of a part ascending by warp, warps in order, parts in order.
//
// Rows are the first dimension of a grid, whose blocks begin first: those that read the same
// neurons run at the same time, and read them from the cache.
#include "cuda/ops.h"
#include "cuda/ops/ffn.h"

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

constexpr int kNeurons = 4;  // of a block, one a warp

// The product of a warp's neuron with its row of one matrix, the same in every lane.
template <DType type>
__device__ inline float product(const uint8_t* row, const float* bias, const DeviceInput& x,
                                int neuron, int lane) {
    float sum[1];
    row_dot<type, 1>(row, x, int(blockIdx.x), 1, lane, sum);
    return lanes_sum(sum[0]) + (bias ? bias[neuron] : 0.0f);
}

// What the gate's value becomes with the neuron's up row.
template <DType type>
__device__ inline float times_up(const DeviceNeurons& w, float value, const DeviceInput& x,
                                 int neuron, int row, int lane) {
    const float up = product<type>(w.up.data + row * w.up.stride, w.up_bias, x, neuron, lane);
    return value * (w.act == Activation::drelu ? activate(w, up) : up);
}

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

// Adds the number of a block's warps that say yes, with one atomic. Warps beyond the end of the
// list may have ended; if the first one has, all have.
__device__ inline void tally(unsigned long long* total, bool yes) {
    if (!total) return;
    const int n = __syncthreads_count(yes && threadIdx.x % kWarp == 0);
    if (threadIdx.x == 0 && n > 0) atomicAdd(total, (unsigned long long)n);
}

// Block (x, y): neurons [4 y, 4 y + 4) of the list of row x. h[i] = what neuron i of the list
// multiplies its down row with; up is read only where the gate fires. Gate and up have one type.
// Without a gate: the activated product with up.
template <DType type>
__global__ void fire_kernel(DeviceNeurons w, DeviceInput x, DeviceLists lists, float* h,
                            FfnCounts counts) {
    const OwnList list(lists);
    const int lane = int(threadIdx.x) % kWarp;
    const int i = int(blockIdx.y) * kNeurons + int(threadIdx.x) / kWarp;
    if (i >= list.n) return;  // a whole warp
    const int neuron = list.ids[i], row = row_of(w, neuron);
    const bool gated = w.gate.data != nullptr;
    const uint8_t* first =
        gated ? w.gate.data + row * w.gate.stride : w.up.data + row * w.up.stride;
    float value =
        activate(w, product<type>(first, gated ? w.gate_bias : w.up_bias, x, neuron, lane));
    const bool computed = value != 0;
    if (gated && computed) value = times_up<type>(w, value, x, neuron, row, lane);
    if (lane == 0) h[int64_t(blockIdx.x) * w.n + i] = value;
    if (counts.proposed && i == 0 && lane == 0) {
        atomicAdd(counts.proposed, (unsigned long long)list.n);
    }
    tally(counts.computed, computed);
    tally(counts.fired, value != 0);
}

// The second half of fire_kernel, for an up of another type than the gate's, whose activated values
// are in h.
template <DType type>
__global__ void up_kernel(DeviceNeurons w, DeviceInput x, DeviceLists lists, float* h,
                          FfnCounts counts) {
    const OwnList list(lists);
    const int lane = int(threadIdx.x) % kWarp;
    const int i = int(blockIdx.y) * kNeurons + int(threadIdx.x) / kWarp;
    if (i >= list.n) return;  // a whole warp
    h += int64_t(blockIdx.x) * w.n;
    float value = h[i];
    if (value != 0) {
        const int neuron = list.ids[i];
        value = times_up<type>(w, value, x, neuron, row_of(w, neuron), lane);
        if (lane == 0) h[i] = value;
    }
    tally(counts.fired, value != 0);
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

}  // namespace

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
    if (!w.gate || w.gate.type == w.up.type) {
        with_type(w.up.type, [&](auto both) {
            launch<fire_kernel<decltype(both)::type>>(stream, grid, kNeurons * kWarp, w, x, lists,
                                                      scratch.h, counts);
        });
    } else {
        // A kernel for every pair of types would be 225 of them.
        DeviceNeurons gate = w;
        gate.up = w.gate;
        gate.up_bias = w.gate_bias;
        gate.gate = {};
        FfnCounts not_fired = counts;
        not_fired.fired = nullptr;
        with_type(w.gate.type, [&](auto first) {
            launch<fire_kernel<decltype(first)::type>>(stream, grid, kNeurons * kWarp, gate, x,
                                                       lists, scratch.h, not_fired);
        });
        with_type(w.up.type, [&](auto second) {
            launch<up_kernel<decltype(second)::type>>(stream, grid, kNeurons * kWarp, w, x, lists,
                                                      scratch.h, counts);
        });
    }
    with_type(w.down.type, [&](auto down) {
        const dim3 parts(unsigned(x.rows), blocks_for(w.down.cols, kColumns), kDeviceParts);
        launch<down_kernel<decltype(down)::type>>(stream, parts, kDownWarps * kWarp, w, lists,
                                                  scratch.h, scratch.sums);
    });
}

}  // namespace ggml::GGML_GPU
