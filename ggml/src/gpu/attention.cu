// Causal attention of a few rows over cached keys and values: blocks of 256 positions by
// themselves, then their sums in order. Blocks are fixed, not as many as there are multiprocessors,
// so that the bits are the same on every card. (Flash decoding; the running softmax is Milakov and
// Gimelshein's, arXiv 1805.02867.)
#include "gpu/ops.h"
#include "gpu/rows.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlock = int(kDeviceAttentionBlock);
constexpr int kShare = 8;  // lanes that share a position's key
constexpr int kMostDim = 256;

// Value i of a head of keys or values.
template <DType type>
__device__ inline float cached(const uint8_t* head, int i) {
    if constexpr (type == DType::F32) {
        return reinterpret_cast<const float*>(head)[i];
    } else if constexpr (type == DType::F16) {
        return half_to_float(reinterpret_cast<const f16_t*>(head)[i]);
    } else {
        const auto* block = reinterpret_cast<const BlockQ8_0*>(head) + i / kQ;
        return half_to_float(block->d) * float(block->qs[i % kQ]);
    }
}

// Block (x, y, z): positions [256 x, 256 x + 256) of query head y of row z. Its sums: the weighted
// values, then the largest score and the sum of weights.
template <DType type>
__global__ void attention_kernel(KvLayer layer, int64_t position_bytes, int n_head, float scale,
                                 const DeviceAttentionRow* rows, const float* q, float* sums) {
    GGML_SHARED(float, query, kMostDim);
    GGML_SHARED(float, weight, kBlock);
    GGML_SHARED(float, parts, kWarps);
    const DeviceAttentionRow row = rows[blockIdx.z];
    const int begin = int(blockIdx.x) * kBlock;
    const int from = row.first > begin ? row.first : begin;
    const int to = row.end < begin + kBlock ? row.end : begin + kBlock;
    if (from >= to) return;  // the whole block
    const int thread = int(threadIdx.x), dim = int(layer.head_dim), head = int(blockIdx.y);
    const int64_t at_head = head / (n_head / int(layer.n_head_kv)) * kKvPage * position_bytes;
    const auto place = [&](int position) {
        return row.pages[position / int(kKvPage)] * layer.page_stride + at_head +
               position % int(kKvPage) * position_bytes;
    };

    q += (int64_t(blockIdx.z) * n_head + head) * dim;
    for (int i = thread; i < dim; i += kThreads) query[i] = q[i] * scale;
    __syncthreads();

    // Scores: eight lanes a position.
    float largest = -INFINITY;
    for (int first = from; first < to; first += kThreads / kShare) {
        const int position = first + thread / kShare;
        float score = 0;
        if (position < to) {
            const uint8_t* key = layer.k + place(position);
            for (int i = thread % kShare; i < dim; i += kShare) {
                score = fmaf(query[i], cached<type>(key, i), score);
            }
        }
        for (int apart = kShare / 2; apart > 0; apart /= 2) {
            score += __shfl_xor_sync(kAll, score, apart);
        }
        if (position < to) {
            if (thread % kShare == 0) weight[position - from] = score;
            largest = score > largest ? score : largest;
        }
    }
    largest = warp_max(largest);
    if (thread % kWarp == 0) parts[thread / kWarp] = largest;
    __syncthreads();
    for (int w = 0; w < kWarps; w++) largest = parts[w] > largest ? parts[w] : largest;

    float total = 0;
    for (int i = thread; i < to - from; i += kThreads) {
        weight[i] = exp_f32(weight[i] - largest);
        total += weight[i];
    }
    total = warp_sum(total);
    __syncthreads();  // all have read the largest parts, and the weights are there
    if (thread % kWarp == 0) parts[thread / kWarp] = total;
    __syncthreads();
    total = 0;
    for (int w = 0; w < kWarps; w++) total += parts[w];

    float* out =
        sums + ((int64_t(blockIdx.z) * n_head + head) * gridDim.x + blockIdx.x) * (dim + 2);
    for (int i = thread; i < dim; i += kThreads) {
        float sum = 0;
        for (int position = from; position < to; position++) {
            sum = fmaf(weight[position - from], cached<type>(layer.v + place(position), i), sum);
        }
        out[i] = sum;
    }
    if (thread == 0) {
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
    launch(stream, attention_kernel<type>,
           dim3(unsigned(scratch.blocks), unsigned(n_head), unsigned(n)), kThreads, layer,
           layer.position_bytes(), n_head, scale, rows, q, scratch.sums);
}

}  // namespace

void attention(DeviceStream* stream, const KvLayer& layer, int n_head, float scale,
               const DeviceAttentionRow* rows, int n, const float* q,
               const DeviceAttentionScratch& scratch, float* out) {
    if (layer.type == DType::F16) {
        launch_attention<DType::F16>(stream, layer, n_head, scale, rows, n, q, scratch);
    } else if (layer.type == DType::F32) {
        launch_attention<DType::F32>(stream, layer, n_head, scale, rows, n, q, scratch);
    } else {
        launch_attention<DType::Q8_0>(stream, layer, n_head, scale, rows, n, q, scratch);
    }
    launch(stream, attention_sum_kernel, dim3(unsigned(n_head), unsigned(n)), kThreads,
           int(layer.head_dim), rows, scratch.blocks, scratch.sums, out);
}

}  // namespace ggml::GGML_GPU
