// Experts in neuron rows, and what stands beside them, on a device: all neurons of a row, with the
// bits of the CPU.
#include <utility>

#include "forward/device_forward.h"
#include "forward/parts/neuron_ffn.h"

namespace powerinfer {

using ggml::DeviceInput;
using ggml::DeviceProduct;

DeviceProduct DeviceForward::product(const ggml::NeuronRows& w, float* y,
                                     const float* const& bias) const {
    DeviceProduct product{on_.matrix(&w), y, on_.vector(&bias)};
    product.of_neurons = true;
    return product;
}

// What becomes of the products h and up (null: no gate) of these pairs: down.y.
void DeviceForward::launch_values(const FeedForward& part, const ggml::DeviceChoice& pairs,
                                  const ggml::DeviceFrames& frames, float* h, const float* up,
                                  const DeviceProduct& down) {
    const ggml::Neurons& w = part.blocks[0].neurons;
    const float threshold = activation_threshold(w, params_.sparse);
    ops_.expert_values(stream_.get(), w.act, threshold, pairs, frames, int(part.n_ff), h, up,
                       counts_of(part));
    ops_.add_experts(stream_.get(), down.w, down.bias, pairs, frames, h, down.y);
}

// y = what a part gives that stands beside experts and is whole on the device.
void DeviceForward::launch_whole_rows(const FeedForward& part, const DeviceInput& x, float* y) {
    const ggml::Neurons& w = part.blocks[0].neurons;
    float *const h = scratch_.fired.x, *const up = w.gate ? scratch_.up : nullptr;
    DeviceProduct first[2] = {product(w.up, up ? up : h, w.up_bias), {}};
    if (up) first[1] = std::exchange(first[0], product(w.gate, h, w.gate_bias));
    ops_.matmul(stream_.get(), x, first, up ? 2 : 1);
    ggml::DeviceChoice all;
    all.rows = x.rows;
    all.n_used = 1;
    launch_values(part, all, {}, h, up, product(w.down, y, w.down_bias));
    weigh(part, x, y);
}

}  // namespace powerinfer
