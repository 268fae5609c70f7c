#include "observe/counts.h"

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

uint64_t dense_bytes(const Ffn& f, int64_t n_ff, int64_t n_embd) {
    const int64_t biases =
        (f.gate_bias ? n_ff : 0) + (f.up_bias ? n_ff : 0) + (f.down_bias ? n_embd : 0);
    return uint64_t(f.gate.bytes() + f.up.bytes() + f.down.bytes()) +
           uint64_t(biases) * sizeof(float);
}

// Traffic of the layers that `here` says (-1: what is outside of them), and perhaps of the head.
template <typename F>
Traffic traffic_of(const Model& m, const Counts& did, const F& here, bool head,
                   const std::vector<ggml::NeuronCounts>& neurons) {
    Traffic sum;
    for (const WeightSpec& w : m.weights) {
        if (layer_of(w.name) >= m.config.n_layer) continue;  // that guesses, in few of the rows
        const bool of_attention = w.part == Part::attention || w.part == Part::norms;
        if (of_attention && here(layer_of(w.name))) {
            sum.attention += uint64_t(did.rows) * w.bytes();
        }
        if (head && w.part == Part::head) sum.head += uint64_t(did.kept) * w.bytes();
    }
    for (size_t i = 0; i < m.layers.size(); i++) {
        const auto* router = m.layers[i].find<Router>();
        if (router && here(int64_t(i))) sum.ffn += uint64_t(did.rows) * uint64_t(router->w.bytes());
    }
    for (const FeedForward* part : m.ffns) {
        if (!here(part->layer)) continue;
        const auto i = size_t(part->index);
        const Ffn& f = part->blocks[0];  // all experts have the same shapes and types
        const ggml::NeuronCounts& counts = neurons[i];
        sum.ffn += f.neurons.n
                       ? neuron_bytes(f, counts)
                       : uint64_t(counts.rows) * dense_bytes(f, part->n_ff, m.config.n_embd);
        sum.predictor += uint64_t(did.predicted[i]) * predictor_bytes(f);
    }
    return sum;
}

}  // namespace

void Counts::add(const Model& m, const Batch& batch, const KvPages& kv) {
    for (int64_t t = 0; t < batch.n; t++) {
        rows++;
        kept += batch.result[t] != nullptr;
    }
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        const bool on_device = m.device && m.device->split.has(i);
        const auto read = [&](uint64_t bytes) {
            kv_bytes += bytes;
            if (on_device) device_kv_bytes += bytes;
        };
        const int64_t state = state_sizes(m.layers[size_t(i)]).state;
        read(uint64_t(batch.n * state) * sizeof(float));
        const auto* attention = m.layers[size_t(i)].find<Attention>();
        if (!attention) continue;
        const int64_t window = attention->window;
        uint64_t seen = 0;  // positions
        for (int64_t t = 0; t < batch.n; t++) {
            const int64_t all = batch.position[t] + 1;
            seen += uint64_t(window ? std::min(all, window) : all);
        }
        const int64_t of = attention->kv_of >= 0 ? attention->kv_of : i;
        read(seen * uint64_t(kv.layer_bytes(of)));
    }
}

Traffic traffic(const Model& m, const Counts& did, bool embedding) {
    const auto all = [](int64_t) { return true; };
    Traffic sum = traffic_of(m, did, all, !embedding, did.neurons);
    sum.kv = did.kv_bytes;
    return sum;
}

Traffic device_traffic(const Model& m, const Counts& did, bool embedding) {
    if (!m.device) return {};
    const DeviceSplit& split = m.device->split;
    const bool head = split.head && !embedding;
    const auto here = [&](int64_t layer) { return layer < 0 ? head : split.has(layer); };
    Traffic sum = traffic_of(m, did, here, head, did.on_device);
    sum.kv = did.device_kv_bytes;
    return sum;
}

}  // namespace powerinfer
