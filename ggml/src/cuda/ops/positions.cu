// Rotary positions and head norms of queries and keys, and storing keys and values in pages.
#include "cuda/ops.h"
#include "cuda/ops/rows.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 16;

__global__ void rope_table_kernel(const double* frequency, int n_pairs, double magnitude,
                                  const int32_t* position, float* cos_sin) {
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x), t = int(blockIdx.y);
    if (i >= n_pairs) return;
    const SinCos angle = sincos_f64(double(position[t]) * frequency[i]);
    float* to = cos_sin + (int64_t(t) * n_pairs + i) * 2;
    to[0] = float(angle.cos * magnitude);
    to[1] = float(angle.sin * magnitude);
}

// One warp a head.
__global__ void norm_and_rope_kernel(float* x, int n_head, int head_dim, const float* head_norm,
                                     float eps, const float* cos_sin, int n_pairs,
                                     RopePairs pairs) {
    const int lane = int(threadIdx.x), t = int(blockIdx.y);
    float* head = x + (int64_t(t) * n_head + blockIdx.x) * head_dim;
    if (head_norm) {
        // In the CPU's order: sixteen lanes, then these in theirs (norm.cu).
        float squares = 0;
        for (int i = lane; lane < kLanes && i < head_dim; i += kLanes) squares += head[i] * head[i];
        double total = 0;
        for (int l = 0; l < kLanes; l++) total += double(__shfl_sync(kAll, squares, l));
        const auto scale = float(1.0 / sqrt(total / double(head_dim) + double(eps)));
        for (int i = lane; i < head_dim; i += kWarp) head[i] = head[i] * scale * head_norm[i];
        __syncwarp();  // pairs are of other lanes' values
    }
    const float* table = cos_sin + int64_t(t) * n_pairs * 2;
    const int step = pairs == RopePairs::adjacent ? 2 : 1;
    const int apart = pairs == RopePairs::adjacent ? 1 : n_pairs;
    for (int i = lane; i < n_pairs; i += kWarp) {
        const float c = table[2 * i], s = table[2 * i + 1];
        const float a = head[step * i], b = head[step * i + apart];
        head[step * i] = a * c - b * s;
        head[step * i + apart] = a * s + b * c;
    }
}

// The bits of encode_q8_0: rounded half away from zero.
__device__ inline void store_q8_0(uint8_t* to, int lane, float value) {
    const float largest = warp_max(value == value ? fabsf(value) : 0.0f);
    const float d = largest / 127, inverse = d != 0 ? 1 / d : 0.0f;
    const float q = roundf(value * inverse);
    const float clamped = q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q;
    auto* block = reinterpret_cast<BlockQ8_0*>(to);
    block->qs[lane] = fabsf(q) < INFINITY ? int8_t(clamped) : int8_t(0);
    if (lane == 0) block->d = float_to_half(d);
}

// One warp a head of keys (block z 0) or values (1).
__global__ void store_kv_kernel(KvLayer layer, const KvSlot* slots, const float* k, const float* v,
                                int64_t position_bytes) {
    const int lane = int(threadIdx.x), head = int(blockIdx.x), t = int(blockIdx.y);
    const KvSlot slot = slots[t];
    const int dim = int(layer.head_dim);
    const float* from = (blockIdx.z ? v : k) + (t * layer.n_head_kv + head) * dim;
    uint8_t* to = (blockIdx.z ? layer.v : layer.k) + slot.page * layer.page_stride +
                  (head * kKvPage + slot.at) * position_bytes;
    if (layer.type == DType::F16) {
        auto* out = reinterpret_cast<f16_t*>(to);
        for (int i = lane; i < dim; i += kWarp) out[i] = float_to_half(from[i]);
    } else if (layer.type == DType::F32) {
        auto* out = reinterpret_cast<float*>(to);
        for (int i = lane; i < dim; i += kWarp) out[i] = from[i];
    } else {
        for (int b = 0; b < dim / kQ; b++) {
            store_q8_0(to + b * int(sizeof(BlockQ8_0)), lane, from[b * kQ + lane]);
        }
    }
}

}  // namespace

void rope_table(DeviceStream* stream, const double* frequency, int n_pairs, double magnitude,
                const int32_t* position, int n, float* cos_sin) {
    const dim3 grid(blocks_for(n_pairs, kThreads), unsigned(n));
    launch<rope_table_kernel>(stream, grid, kThreads, frequency, n_pairs, magnitude, position,
                              cos_sin);
}

void norm_and_rope(DeviceStream* stream, float* x, int rows, int n_head, int head_dim,
                   const float* head_norm, float eps, const float* cos_sin, int n_pairs,
                   RopePairs pairs) {
    launch<norm_and_rope_kernel>(stream, dim3(unsigned(n_head), unsigned(rows)), kWarp, x, n_head,
                                 head_dim, head_norm, eps, cos_sin, n_pairs, pairs);
}

void store_kv(DeviceStream* stream, const KvLayer& layer, const KvSlot* slots, int n,
              const float* k, const float* v) {
    launch<store_kv_kernel>(stream, dim3(unsigned(layer.n_head_kv), unsigned(n), 2), kWarp, layer,
                            slots, k, v, layer.key_bytes());
}

}  // namespace ggml::GGML_GPU
