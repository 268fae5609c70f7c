// What the kernels of the neuron-aware feed-forward block share, for lists of neurons (ffn.cu) and
// for all of them (ffn_rows.cu).
#pragma once

#include "cuda/launch.h"
#include "cuda/ops/rows.h"

namespace ggml::GGML_GPU {

constexpr int kDownWarps = 4;  // of a block, which share out the neurons of a part

// Where column c of lane l of a warp stands in shared memory, with `wide` columns a lane: in
// another bank than the same column of other lanes, and than other columns of the same lane.
__device__ constexpr int at_bank(int wide, int l, int c) {
    return c * (kWarp + kWarp / wide) + l;
}
__device__ constexpr int of_warp(int wide) {
    return at_bank(wide, 0, wide);
}

// NaN stays NaN, as on the CPU.
__device__ inline float activate(const DeviceNeurons& w, float v) {
    float a;
    switch (w.act) {
        case Activation::relu:
        case Activation::drelu:
            return v <= w.threshold ? 0.0f : v;
        case Activation::relu2:
            return v <= w.threshold ? 0.0f : v * v;
        case Activation::silu:
            a = silu(v);
            break;
        case Activation::gelu:
            a = gelu(v);
            break;
        default:
            a = gelu_tanh(v);
            break;
    }
    return fabsf(a) < w.threshold ? 0.0f : a;
}

__device__ inline int row_of(const DeviceNeurons& w, int neuron) {
    return w.slot ? w.slot[neuron] : neuron;
}

// Where kernels add numbers of neurons (NeuronCounts); null: this one is not counted.
struct FfnCounts {
    unsigned long long *proposed = nullptr, *computed = nullptr, *fired = nullptr;

    explicit FfnCounts(unsigned long long* counts) {
        if (counts) proposed = counts, computed = counts + 1, fired = counts + 2;
    }
};

// partial_ffn() for many rows that compute every neuron of the list, hence every row of w.
void every_neuron(DeviceStream* stream, const DeviceNeurons& w, const DeviceInput& x,
                  const DeviceLists& lists, const DeviceFfnScratch& scratch);

}  // namespace ggml::GGML_GPU
