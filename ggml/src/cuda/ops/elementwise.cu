// Operators that take every value by itself: embedding, activations, and their 8-bit form.
#include "cuda/ops.h"
#include "cuda/ops/quantise.h"
#include "cuda/ops/rows.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;

template <DType type>
__global__ void embed_rows_kernel(DeviceRows w, const int32_t* ids, int offset, float* y) {
    const uint8_t* row = w.data + (ids[blockIdx.y] + offset) * w.stride;
    y += int64_t(blockIdx.y) * w.cols;
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (i >= w.cols / 8) return;
    float out[8];
    if constexpr (is_float_type(type)) {
        load8<type>(row, i, out);
    } else {
        const Group g = load_group<type>(row, PlaneOffsets(plane_bytes(type), w.cols), i / 4);
        for (int k = 0; k < 8; k++) {
            // A constant index, so that the group stays in registers.
            float value = 0;
            for (int part = 0; part < 4; part++) {
                if (i % 4 == part) value = group_value<type>(g, 8 * part + k);
            }
            out[k] = value;
        }
    }
    for (int k = 0; k < 8; k++) y[8 * i + k] = out[k];
}

__global__ void add_kernel(float* x, const float* y, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < n) x[i] += y[i];
}

__global__ void scale_kernel(float* x, const float* by, float factor, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < n) x[i] *= by ? *by : factor;
}

__global__ void softcap_kernel(float* x, float cap, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < n) x[i] = cap * tanh_f32(x[i] / cap);
}

__global__ void weigh_kernel(float* y, const float* score, int cols) {
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (i < cols) y[int64_t(blockIdx.y) * cols + i] *= sigmoid(score[blockIdx.y]);
}

__global__ void quantise_kernel(DeviceInput x) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    // Whole warps, since rows are whole groups of 32.
    if (i < int64_t(x.rows) * x.cols) quantise_group(x, i, x.x[i]);
}

__device__ inline float relu(float v) {
    return v <= 0 ? 0.0f : v;  // NaN stays NaN
}

__device__ inline float activated(Activation act, float v) {
    switch (act) {
        case Activation::relu:
        case Activation::drelu:
            return relu(v);
        case Activation::relu2:
            return relu(v) * relu(v);
        case Activation::silu:
            return silu(v);
        case Activation::gelu:
            return gelu(v);
        case Activation::swiglu_oai:
            return oai_gate(v);
        default:  // xielu has a kernel of its own
            return gelu_tanh(v);
    }
}

// What multiplies an activated gate.
__device__ inline float factor(Activation act, float up) {
    if (act == Activation::drelu) return relu(up);
    return act == Activation::swiglu_oai ? oai_up(up) : up;
}

__global__ void activation_kernel(Activation act, GateLimit limit, DeviceInput x, const float* up) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= int64_t(x.rows) * x.cols) return;
    const float most = limit.most;
    float v = x.x[i];
    if (most != 0 && limit.before) v = at_most(v, most);
    v = activated(act, v);
    if (most != 0 && !limit.before) v = at_most(v, most);
    if (up) v *= most != 0 ? within(up[i], most) : factor(act, up[i]);
    x.x[i] = v;
    if (x.q) quantise_group(x, i, v);
}

// p and q: the softplus of its parameters (kernels/lanes/elementwise.h).
__global__ void xielu_kernel(Xielu how, float p, float q, DeviceInput x) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= int64_t(x.rows) * x.cols) return;
    float v = x.x[i];
    const float low = v < how.eps ? v : how.eps;
    const float negative = q * (exp_tail(low) + (low - v)), positive = p * v * v;
    v = (v > 0 ? positive : negative) + how.beta * v;
    x.x[i] = v;
    if (x.q) quantise_group(x, i, v);
}

__global__ void gate_by_kernel(GateBy by, DeviceInput x, DeviceGates gates) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= int64_t(x.rows) * x.cols) return;
    const int64_t t = i / x.cols;
    const int c = int(i % x.cols), in_head = gates.one_a_head ? 0 : c % gates.dim;
    const float gate = gates.x[t * gates.row + c / gates.dim * gates.head + in_head];
    const float factor = by == GateBy::sigmoid ? sigmoid(gate) : float(softplus_f64(double(gate)));
    const float v = x.x[i] * factor;
    x.x[i] = v;
    if (x.q) quantise_group(x, i, v);
}

}  // namespace

void embed_rows(DeviceStream* stream, const DeviceRows& w, const int32_t* ids, int offset, int n,
                float* y) {
    const dim3 grid(blocks_for(w.cols / 8, kThreads), unsigned(n));
    with_type(w.type, [&](auto tag) {
        launch<embed_rows_kernel<decltype(tag)::type>>(stream, grid, kThreads, w, ids, offset, y);
    });
}

void add(DeviceStream* stream, float* x, const float* y, int64_t n) {
    launch<add_kernel>(stream, blocks_for(n, kThreads), kThreads, x, y, n);
}

void quantise(DeviceStream* stream, const DeviceInput& x) {
    if (!x.q) return;
    launch<quantise_kernel>(stream, blocks_for(int64_t(x.rows) * x.cols, kThreads), kThreads, x);
}

void activation(DeviceStream* stream, Activation act, const GateLimit& limit, const DeviceInput& x,
                const float* up) {
    launch<activation_kernel>(stream, blocks_for(int64_t(x.rows) * x.cols, kThreads), kThreads, act,
                              limit, x, up);
}

void scale(DeviceStream* stream, float* x, const float* by, float factor, int64_t n) {
    launch<scale_kernel>(stream, blocks_for(n, kThreads), kThreads, x, by, factor, n);
}

void softcap(DeviceStream* stream, float* x, float cap, int64_t n) {
    launch<softcap_kernel>(stream, blocks_for(n, kThreads), kThreads, x, cap, n);
}

void xielu(DeviceStream* stream, const Xielu& how, const DeviceInput& x) {
    const auto p = float(softplus_f64(how.alpha_p));
    const auto q = float(double(how.beta) + softplus_f64(how.alpha_n));
    launch<xielu_kernel>(stream, blocks_for(int64_t(x.rows) * x.cols, kThreads), kThreads, how, p,
                         q, x);
}

void gate_by(DeviceStream* stream, GateBy by, const DeviceInput& x, const DeviceGates& gates) {
    launch<gate_by_kernel>(stream, blocks_for(int64_t(x.rows) * x.cols, kThreads), kThreads, by, x,
                           gates);
}

void weigh(DeviceStream* stream, float* y, const float* score, int rows, int cols) {
    const dim3 grid(blocks_for(cols, kThreads), unsigned(rows));
    launch<weigh_kernel>(stream, grid, kThreads, y, score, cols);
}

}  // namespace ggml::GGML_GPU
