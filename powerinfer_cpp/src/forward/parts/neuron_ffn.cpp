#include "forward/parts/neuron_ffn.h"

#include "forward/parts/predictor.h"

namespace powerinfer {

using ggml::Input;

namespace {

// Makes a bias for each row, [n, n_ff], in `room`: the bias of the weights, if there is one, plus
// what adapters add to the products.
void own_bias(const Pass& p, const Input& x, int64_t n_ff, const ggml::NeuronRows& rows,
              const float*& bias, float* room) {
    ggml::zero(p.context, room, x.rows * n_ff);
    for (int64_t t = 0; bias && t < x.rows; t++) {
        ggml::add(p.context, room + t * n_ff, bias, n_ff);
    }
    p.adapters.add(p.context, x, &rows, room);
    bias = room;
}

// Applies adapters to gate and up. What they add becomes a bias of each row, so that the operators
// decide by the adapted gates which neurons fire. Adapters of down need the neurons' values, which
// the operators keep for them.
void adapt(const Pass& p, const BlockRows& in, ggml::Neurons& neurons) {
    Workspace& b = p.work;
    const ggml::Neurons& w = in.w().neurons;
    if (p.adapters.change(&w.gate) || p.adapters.change(&w.up)) {
        const Input x{in.x, in.n, w.cols, {}};
        neurons.bias_stride = w.n;
        if (w.gate) own_bias(p, x, w.n, w.gate, neurons.gate_bias, b.ffn.gate);
        own_bias(p, x, w.n, w.up, neurons.up_bias, b.ffn.up);
    }
    b.neurons.scratch.values = p.adapters.change(&w.down) ? p.adapters.neuron_values()
                               : in.part.norms_values     ? b.neurons.values
                                                          : nullptr;
}

}  // namespace

float activation_threshold(const ggml::Neurons& neurons, int32_t sparse) {
    return relu_family(neurons.act) || sparse == PI_SPARSE_EXACT ? neurons.threshold : 0;
}

void neuron_ffn(const Pass& p, const BlockRows& in, float* y) {
    const Config& c = p.model.config;
    p.record.squares(p.context, PI_INPUT_FFN, in.part.index, in.expert, in.x, in.n);
    ggml::Neurons neurons = in.w().neurons;
    neurons.threshold = activation_threshold(neurons, p.params.sparse);
    const ggml::NeuronMask mask = mask_of(p, in);
    NeuronBlock block = neurons_of(in, neurons, mask);
    block.audited = choose_audits(p, in, mask);
    // The store can begin to read the next block's neurons if the same rows will need all of them.
    // This is not known of experts, nor of a device's layers, which split the rows in their own
    // way.
    const FeedForward* const next = p.model.ffn_after(in.part);
    const bool all_of_next = next && next->blocks[0].neurons.n && !in.part.routed() &&
                             !next->routed() && next->layer < c.n_layer - p.model.device_layers();
    if (all_of_next) block.next = next->number(0);
    adapt(p, in, neurons);
    compute_neurons(p, block, y);
    const float* const values = p.work.neurons.scratch.values;
    if (in.part.norms_values) {
        ggml::divide_by_rms(p.context, values, in.part.norm_eps, in.n, neurons.n, neurons.cols, y);
    }
    if (values) p.adapters.add(p.context, {values, in.n, neurons.n, {}}, &in.w().neurons.down, y);
    p.record.fired(p.context, in.part.index, in.expert, in.rows, in.n, p.flags());
}

}  // namespace powerinfer
