// Causal attention of a few rows over cached keys and values: blocks of 256 positions by
// themselves, then their sums in order. Blocks are fixed, not as many as there are multiprocessors,
// so that the bits are the same on every card. (Flash decoding; the running softmax is Milakov and
// Gimelshein's, arXiv 1805.02867.)
#include "cuda/ops.h"
#include "cuda/ops/rows.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlock = int(kDeviceAttentionBlock);
constexpr int kPages = kBlock / int(kKvPage);
constexpr int kShare = 8;  // lanes that share a position's key
constexpr int kMostDim = int(kDeviceHeadDim);

// Of a head of keys or values, the `wide` numbers from wide * i on.
template <DType type, int wide>
__device__ inline void load_cached(const uint8_t* head, int i, float (&out)[wide]) {
    if constexpr (type == DType::Q8_0) {
        // Of blocks of 34 bytes no more than two are aligned.
        const auto* block = reinterpret_cast<const BlockQ8_0*>(head) + wide * i / kQ;
        const auto* q = reinterpret_cast<const uint8_t*>(block->qs) + wide * i % kQ;
        const float d = half_to_float(block->d);
        for (int k = 0; k < wide; k += 2) {
            const unsigned two = load<uint16_t>(q + k);
            out[k] = d * float(int8_t(two));
            out[k + 1] = d * float(int8_t(two >> 8));
        }
    } else if constexpr (wide == 8) {
        load8<type>(head, i, out);
    } else if constexpr (type == DType::F32) {
        out[0] = load<float>(head + 4 * i);
    } else {
        out[0] = half_to_float(load<f16_t>(head + 2 * i));
    }
}

// Block (x, y, z): positions [256 x, 256 x + 256) of query head y of row z. Its sums: the weighted
// values, then the largest score and the sum of weights. A thread takes `wide` neighbouring numbers
// of a key or value at a time; of a key, up to `parts` times (0: as often as it takes).
template <DType type, int wide, int parts>
__global__ void attention_kernel(KvLayer layer, int64_t position_bytes, int n_head, float scale,
                                 const DeviceAttentionRow* rows, const float* q, float* sums) {
    GGML_SHARED(int64_t, page, kPages);
    GGML_SHARED(float, query, kMostDim);
    GGML_SHARED(float, weight, kBlock);
    GGML_SHARED(float, of_warp, kWarps);
    GGML_SHARED(float, of_group, wide == 1 ? kMostDim : kThreads * wide);
    const DeviceAttentionRow row = rows[blockIdx.z];
    const int begin = int(blockIdx.x) * kBlock;
    const int from = row.first > begin ? row.first : begin;
    const int to = row.end < begin + kBlock ? row.end : begin + kBlock;
    if (from >= to) return;  // the whole block
    const int thread = int(threadIdx.x), dim = int(layer.head_dim), head = int(blockIdx.y);
    const int chunks = dim / wide, lane = thread % kShare;

    // Where the pages of the block begin; those before `from` and from `to` on are not read.
    for (int i = thread; i < kPages; i += kThreads) {
        const int first = begin + i * int(kKvPage);
        const int known = first < from ? from : first < to ? first : to - 1;
        page[i] = row.pages[known / int(kKvPage)] * layer.page_stride +
                  head / (n_head / int(layer.n_head_kv)) * kKvPage * position_bytes;
    }
    const auto place = [&](int position) {
        return page[(position - begin) / int(kKvPage)] +
               position % int(kKvPage) * int64_t(int(position_bytes));
    };

    q += (int64_t(blockIdx.z) * n_head + head) * dim;
    for (int i = thread; i < dim; i += kThreads) query[i] = q[i] * scale;
    __syncthreads();

    // Scores: eight lanes a position. Past the last one is the last once more, for the same largest
    // score and a weight that is not read.
    float largest = -INFINITY;
    for (int first = from; first < to; first += kThreads / kShare) {
        const int position = first + thread / kShare;
        const uint8_t* key = layer.k + place(position < to ? position : to - 1);
        float score = 0;
        for (int part = 0; part < (parts ? parts : (chunks + kShare - 1) / kShare); part++) {
            const int chunk = part * kShare + lane;
            if (chunk >= chunks) break;
            float some[wide];
            load_cached<type, wide>(key, chunk, some);
            for (int k = 0; k < wide; k++) score = fmaf(query[chunk * wide + k], some[k], score);
        }
        for (int apart = kShare / 2; apart > 0; apart /= 2) {
            score += __shfl_xor_sync(kAll, score, apart);
        }
        if (lane == 0) weight[position - from] = score;
        largest = score > largest ? score : largest;
    }
    largest = warp_max(largest);
    if (thread % kWarp == 0) of_warp[thread / kWarp] = largest;
    __syncthreads();
    for (int w = 0; w < kWarps; w++) largest = of_warp[w] > largest ? of_warp[w] : largest;

    float total = 0;
    for (int i = thread; i < to - from; i += kThreads) {
        weight[i] = exp_f32(weight[i] - largest);
        total += weight[i];
    }
    total = warp_sum(total);
    __syncthreads();  // all have read the largest scores, and the weights are there
    if (thread % kWarp == 0) of_warp[thread / kWarp] = total;

    // Values: a group of threads takes every `groups`th position; then their sums in order.
    const int groups = chunks < kThreads ? kThreads / chunks : 1;
    for (int i = thread; i < chunks * groups; i += kThreads) {
        const int chunk = i % chunks, group = i / chunks;
        float sum[wide];
        for (int k = 0; k < wide; k++) sum[k] = 0;
        for (int position = from + group; position < to; position += groups) {
            float some[wide];
            load_cached<type, wide>(layer.v + place(position), chunk, some);
            for (int k = 0; k < wide; k++) sum[k] = fmaf(weight[position - from], some[k], sum[k]);
        }
        for (int k = 0; k < wide; k++) of_group[(group * wide + k) * chunks + chunk] = sum[k];
    }
    __syncthreads();
    float* out =
        sums + ((int64_t(blockIdx.z) * n_head + head) * gridDim.x + blockIdx.x) * (dim + 2);
    for (int i = thread; i < dim; i += kThreads) {
        float sum = 0;
        for (int group = 0; group < groups; group++) {
            sum += of_group[(group * wide + i % wide) * chunks + i / wide];
        }
        out[i] = sum;
    }
    if (thread == 0) {
        total = 0;
        for (int w = 0; w < kWarps; w++) total += of_warp[w];
        out[dim] = largest;
        out[dim + 1] = total;
    }
}

// Block (x, y): query head x of row y. Adds the blocks' sums, ascending.
__global__ void attention_sum_kernel(int head_dim, const DeviceAttentionRow* rows, int blocks,
                                     const float* sums, float* out) {
    const DeviceAttentionRow row = rows[blockIdx.y];
    const int begin = row.first / kBlock, end = (row.end + kBlock - 1) / kBlock;
    const int64_t head = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
    sums += head * blocks * (head_dim + 2);
    float largest = -INFINITY, total = 0;
    for (int b = begin; b < end; b++) {
        const float other = sums[b * (head_dim + 2) + head_dim];
        largest = other > largest ? other : largest;
    }
    for (int b = begin; b < end; b++) {
        const float* part = sums + b * (head_dim + 2) + head_dim;
        total = fmaf(part[1], exp_f32(part[0] - largest), total);
    }
    for (int i = int(threadIdx.x); i < head_dim; i += kThreads) {
        float sum = 0;
        for (int b = begin; b < end; b++) {
            const float* part = sums + b * (head_dim + 2);
            sum = fmaf(part[i], exp_f32(part[head_dim] - largest), sum);
        }
        out[head * head_dim + i] = sum / total;
    }
}

template <DType type>
void launch_attention(DeviceStream* stream, const KvLayer& layer, int n_head, float scale,
                      const DeviceAttentionRow* rows, int n, const float* q,
                      const DeviceAttentionScratch& scratch) {
    const int64_t dim = layer.head_dim;
    const auto run = [&](auto chosen) {
        const dim3 grid(unsigned(scratch.blocks), unsigned(n_head), unsigned(n));
        launch<decltype(chosen)::value>(stream, grid, kThreads, layer, layer.key_bytes(), n_head,
                                        scale, rows, q, scratch.sums);
    };
    if constexpr (type != DType::Q8_0) {
        if (dim % 8) return run(Kernel<attention_kernel<type, 1, 0>>());
    }
    if (dim <= 64) return run(Kernel<attention_kernel<type, 8, 1>>());
    if (dim <= 128) return run(Kernel<attention_kernel<type, 8, 2>>());
    run(Kernel<attention_kernel<type, 8, 4>>());
}

}  // namespace

void attention(DeviceStream* stream, const KvLayer& layer, int n_head, const AttentionScores& how,
               const DeviceAttentionRow* rows, int n, const float* q,
               const DeviceAttentionScratch& scratch, float* out) {
    if (layer.type == DType::F16) {
        launch_attention<DType::F16>(stream, layer, n_head, how.scale, rows, n, q, scratch);
    } else if (layer.type == DType::F32) {
        launch_attention<DType::F32>(stream, layer, n_head, how.scale, rows, n, q, scratch);
    } else {
        launch_attention<DType::Q8_0>(stream, layer, n_head, how.scale, rows, n, q, scratch);
    }
    launch<attention_sum_kernel>(stream, dim3(unsigned(n_head), unsigned(n)), kThreads,
                                 int(layer.head_dim), rows, scratch.blocks, scratch.sums, out);
}

}  // namespace ggml::GGML_GPU
