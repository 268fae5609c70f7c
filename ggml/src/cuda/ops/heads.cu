// What lies between the products of queries, keys and values and their attention: norms of heads,
// rotary positions, and storing keys and values in pages. All of it in one kernel, a warp a head.
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

// The sum of value(i) over i < n, for the whole warp: sixteen lanes, then these in their order, as
// on the CPU (kernels/lanes/elementwise.h).
template <typename T, typename F>
__device__ inline double lanes_sum(int n, const F& value) {
    T sum = 0;
    const int lane = int(threadIdx.x);
    for (int i = lane; lane < kLanes && i < n; i += kLanes) sum += value(i);
    double total = 0;
    for (int l = 0; l < kLanes; l++) total += double(__shfl_sync(kAll, sum, l));
    return total;
}

// One head in shared memory, which a warp computes.
struct Head {
    float* x;
    int n;

    __device__ void read(const float* from) const {
        for (int i = int(threadIdx.x); i < n; i += kWarp) x[i] = from[i];
        __syncwarp();
    }
    // Of the first `some` values, weight [some] or null.
    __device__ void rms_norm(int some, const float* weight, float eps) const {
        const double squares = lanes_sum<float>(some, [&](int i) { return x[i] * x[i]; });
        const auto scale = float(1.0 / sqrt(squares / double(some) + double(eps)));
        for (int i = int(threadIdx.x); i < some; i += kWarp) {
            const float value = x[i] * scale;
            x[i] = weight ? value * weight[i] : value;
        }
        __syncwarp();
    }
    __device__ void layer_norm(const float* weight, float eps) const {
        const double mean = lanes_sum<double>(n, [&](int i) { return double(x[i]); }) / double(n);
        const double squares = lanes_sum<double>(n, [&](int i) {
            const double v = double(x[i]) - mean;
            return v * v;
        });
        const double scale = 1.0 / sqrt(squares / double(n) + double(eps));
        for (int i = int(threadIdx.x); i < n; i += kWarp) {
            x[i] = float((double(x[i]) - mean) * scale) * weight[i];
        }
        __syncwarp();
    }
    // Rotates pairs from value `at` on by a row of a table.
    __device__ void rotate(int at, const float* table, int n_pairs, RopePairs pairs) const {
        const int step = pairs == RopePairs::adjacent ? 2 : 1;
        const int apart = pairs == RopePairs::adjacent ? 1 : n_pairs;
        for (int i = int(threadIdx.x); i < n_pairs; i += kWarp) {
            float *first = x + at + step * i, *second = first + apart;
            const float c = table[2 * i], s = table[2 * i + 1];
            const float a = *first, b = *second;
            *first = a * c - b * s;
            *second = a * s + b * c;
        }
        __syncwarp();
    }
};

// Head `of` of queries, keys or values in row t.
__device__ inline void read(const DeviceHeads::Kind& kind, int of, int t, const Head& head) {
    head.read(kind.x + t * kind.row + of * kind.head);
}

// The norm and rotation of it, in their order.
__device__ inline void norm_and_rotate(const DeviceHeads& p, const DeviceHeads::Kind& kind, int of,
                                       int t, const Head& head) {
    const float* table = p.cos_sin + int64_t(t) * p.n_pairs * 2;
    if (p.n_pairs && p.norm_last) head.rotate(kind.rotates, table, p.n_pairs, p.pairs);
    if (kind.norm && p.layer_norm) {
        head.layer_norm(kind.norm + int64_t(of) * head.n, p.eps);
    } else if (kind.norm) {
        head.rms_norm(kind.normed, kind.norm, p.eps);
    }
    if (p.n_pairs && !p.norm_last) head.rotate(kind.rotates, table, p.n_pairs, p.pairs);
}

// The bits of encode_q8_0: rounded half away from zero.
__device__ inline void store_q8_0(uint8_t* to, float value) {
    const int lane = int(threadIdx.x);
    const float largest = warp_max(value == value ? fabsf(value) : 0.0f);
    const float d = largest / 127, inverse = d != 0 ? 1 / d : 0.0f;
    const float q = roundf(value * inverse);
    const float clamped = q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q;
    auto* block = reinterpret_cast<BlockQ8_0*>(to);
    block->qs[lane] = fabsf(q) < INFINITY ? int8_t(clamped) : int8_t(0);
    if (lane == 0) block->d = float_to_half(d);
}

// A position of a head of keys or values, `position_bytes` in the cache.
__device__ inline void store(const KvLayer& layer, const KvSlot& slot, uint8_t* pages,
                             int64_t position_bytes, int of, const Head& head) {
    const int lane = int(threadIdx.x);
    uint8_t* to = pages + slot.page * layer.page_stride + (of * kKvPage + slot.at) * position_bytes;
    if (layer.type == DType::F16) {
        auto* out = reinterpret_cast<f16_t*>(to);
        for (int i = lane; i < head.n; i += kWarp) out[i] = float_to_half(head.x[i]);
    } else if (layer.type == DType::F32) {
        auto* out = reinterpret_cast<float*>(to);
        for (int i = lane; i < head.n; i += kWarp) out[i] = head.x[i];
    } else {
        for (int b = 0; b < head.n / kQ; b++) {
            store_q8_0(to + b * int(sizeof(BlockQ8_0)), head.x[b * kQ + lane]);
        }
    }
}

// Block (x, y): a head of row y: of queries, of keys, then of values. Keys and values are not
// changed where they are, since both may be made of the same product.
__global__ void heads_kernel(DeviceHeads p, KvLayer layer, const KvSlot* slots, int64_t key_bytes,
                             int64_t value_bytes) {
    GGML_SHARED(float, values, kDeviceHeadDim);
    const int t = int(blockIdx.y), lane = int(threadIdx.x);
    int of = int(blockIdx.x);
    if (of < p.n_head) {
        const Head head{values, p.q.dim};
        read(p.q, of, t, head);
        norm_and_rotate(p, p.q, of, t, head);
        float* out = p.out.x + t * p.out.row + of * p.out.head - p.apart;
        float* apart = p.out_apart + (int64_t(t) * p.n_head + of) * p.apart;
        for (int i = lane; i < head.n; i += kWarp) (i < p.apart ? apart : out)[i] = values[i];
        return;
    }
    of -= p.n_head;
    const int n_kv = int(layer.n_head_kv);
    const KvSlot slot = slots[t];
    if (of < n_kv) {
        const Head head{values, int(layer.head_dim)};
        read(p.k, of, t, head);
        norm_and_rotate(p, p.k, of, t, head);
        store(layer, slot, layer.k, key_bytes, of, head);
        return;
    }
    of -= n_kv;
    const Head head{values, int(layer.v_head_dim)};
    read(p.v, of, t, head);
    if (p.v_norm) head.rms_norm(head.n, nullptr, p.eps);
    store(layer, slot, layer.v, value_bytes, of, head);
}

__global__ void grow_kernel(float* q, int cols, const int32_t* position, double growth,
                            int64_t period) {
    const int64_t t = blockIdx.y;
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (i >= cols) return;
    const double factor = 1 + growth * log_f64(1 + double(position[t] / period));
    q[t * cols + i] *= float(factor);
}

}  // namespace

void rope_table(DeviceStream* stream, const double* frequency, int n_pairs, double magnitude,
                const int32_t* position, int n, float* cos_sin) {
    const dim3 grid(blocks_for(n_pairs, kThreads), unsigned(n));
    launch<rope_table_kernel>(stream, grid, kThreads, frequency, n_pairs, magnitude, position,
                              cos_sin);
}

void heads(DeviceStream* stream, const DeviceHeads& p, const KvLayer& layer, const KvSlot* slots) {
    const int64_t of_kv = !p.k.x ? 0 : layer.v ? 2 * layer.n_head_kv : layer.n_head_kv;
    const dim3 grid(unsigned(p.n_head + of_kv), unsigned(p.rows));
    launch<heads_kernel>(stream, grid, kWarp, p, layer, slots, layer.key_bytes(),
                         layer.value_bytes());
}

void grow(DeviceStream* stream, float* q, int rows, int cols, const int32_t* position,
          double growth, int64_t period) {
    const dim3 grid(blocks_for(cols, kThreads), unsigned(rows));
    launch<grow_kernel>(stream, grid, kThreads, q, cols, position, growth, period);
}

}  // namespace ggml::GGML_GPU
