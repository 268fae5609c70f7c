#include "counts.h"

#include <algorithm>

namespace powerinfer {

namespace {

// Bytes of one neuron's row and bias; 0 if there is none.
uint64_t row_bytes(const ggml::NeuronRows& rows, int64_t cols, const float* bias) {
    if (!rows) return 0;
    return uint64_t(ggml::info(rows.type).size(cols)) + (bias ? sizeof(float) : 0);
}

uint64_t neuron_bytes(const Ffn& f, const ggml::NeuronCounts& c) {
    const ggml::Neurons& w = f.neurons;
    const uint64_t gate = row_bytes(w.gate, w.cols, w.gate_bias);
    const uint64_t up = row_bytes(w.up, w.cols, w.up_bias);
    const uint64_t down = row_bytes(w.down, w.cols, nullptr);
    return w.gate
               ? uint64_t(c.proposed) * gate + uint64_t(c.computed) * up + uint64_t(c.fired) * down
               : uint64_t(c.proposed) * up + uint64_t(c.fired) * down;
}

uint64_t predictor_bytes(const Ffn& f) {
    const uint64_t offsets = f.sketch_offset ? uint64_t(f.neurons.n) * sizeof(float) : 0;
    return uint64_t(f.fc1.bytes() + f.fc2.bytes() + f.signs.bytes()) + offsets;
}

uint64_t dense_bytes(const Ffn& f, const Config& c) {
    const int64_t biases =
        (f.gate_bias ? c.n_ff : 0) + (f.up_bias ? c.n_ff : 0) + (f.down_bias ? c.n_embd : 0);
    return uint64_t(f.gate.bytes() + f.up.bytes() + f.down.bytes()) +
           uint64_t(biases) * sizeof(float);
}

}  // namespace

void Counts::add(const Model& m, const Batch& batch, int64_t position_bytes) {
    const uint64_t per_layer = uint64_t(position_bytes) / m.layers.size();
    for (int64_t t = 0; t < batch.n; t++) {
        rows++;
        kept += batch.result[t] != nullptr;
        for (const Layer& l : m.layers) {
            const int64_t seen = batch.position[t] + 1;
            kv_bytes += per_layer * uint64_t(l.window ? std::min(seen, l.window) : seen);
        }
    }
}

Traffic traffic(const Model& m, const Counts& did, bool embedding) {
    const Config& c = m.config;
    Traffic sum;
    for (const WeightSpec& w : m.weights) {
        if (w.part == Part::attention || w.part == Part::norms) {
            sum.attention += uint64_t(did.rows) * w.bytes();
        }
        if (w.part == Part::head && !embedding) {
            sum.head += uint64_t(did.kept) * w.bytes();
        }
    }
    for (size_t i = 0; i < m.layers.size(); i++) {
        const Layer& l = m.layers[i];
        // All experts of a layer have the same shapes and types.
        const Ffn& f = l.experts.empty() ? l.ffn : l.experts[0];
        const ggml::NeuronCounts& counts = did.neurons[i];
        sum.ffn += uint64_t(did.rows) * uint64_t(l.router.bytes());
        sum.ffn +=
            f.neurons.n ? neuron_bytes(f, counts) : uint64_t(counts.rows) * dense_bytes(f, c);
        sum.predictor += uint64_t(did.predicted[i]) * predictor_bytes(f);
    }
    sum.kv = did.kv_bytes;
    return sum;
}

}  // namespace powerinfer
