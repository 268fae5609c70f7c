#include "memory/device_scratch.h"

#include <algorithm>

#include "ggml/sizes.h"

namespace powerinfer {

using ggml::Carver;

namespace {

// Takes room for rows of values and their 8-bit form, or for that alone if the values are given.
ggml::DeviceInput input(Carver& carver, int64_t rows, int64_t cols, float* values = nullptr) {
    ggml::DeviceInput x{values, nullptr, nullptr, int(rows), int(cols)};
    if (!values) carver.take(x.x, {rows, cols});
    carver.take(x.q, {rows, cols});
    carver.take(x.s, {rows, (cols + ggml::kQ - 1) / ggml::kQ});
    return x;
}

bool has_states(const Model& model, int64_t n_layers) {
    bool found = false;
    const int64_t end = model.config.n_layer;
    for (int64_t i = end - n_layers; i < end; i++) {
        found = found || state_sizes(model.layers[size_t(i)]).state > 0;
    }
    return found;
}

}  // namespace

int64_t device_rows(const pi_session_params& p) {
    return std::min<int64_t>(p.n_ubatch, kDeviceRows);
}

DeviceStep::DeviceStep(Carver& carver, const Model& model, const pi_session_params& p,
                       int64_t n_layers, int64_t n) {
    carver.take(epoch, {1});
    carver.take(x, {n, model.config.n_embd});
    carver.take(position, {n});
    const auto n_kinds = int64_t(kv_classes(model.layers).size());
    carver.take(slot, {n_kinds, n});
    carver.take(rows, {n_layers, n});
    carver.take(kept, {n});
    carver.take(embedding, {n_layers, n, model.layer_embd.width});
    const int64_t n_seq = std::min<int64_t>(n, p.n_seq);
    carver.take(pages, {n_kinds, n_seq, pages_of(p.n_ctx)});
    if (!has_states(model, n_layers)) return;
    carver.take(sequences, {n_seq});
    carver.take(n_sequences, {1});
    carver.take(by_sequence, {n});
    carver.take(entered, {n});
}

DeviceScratch::DeviceScratch(Carver& carver, const Model& model, const pi_session_params& p,
                             int64_t n_layers, int64_t n) {
    const Config& c = model.config;
    const LargestSizes sizes = largest_sizes(model.layers);
    carver.take(arrived, {n_layers});
    const auto n_counts = int64_t(model.ffns.size()) * 3;
    carver.take(counts, {n_counts + 2});
    waited = counts ? counts + n_counts : nullptr;
    late = waited ? waited + 1 : nullptr;
    for (const Rope& rope : c.ropes) carver.take(frequency.emplace_back(), {rope.n_rot / 2});

    step = DeviceStep(carver, model, p, n_layers, n);
    const int64_t n_lists = std::min(n, kDeviceLists), n_results = std::min(n, kDeviceResults);
    // A Carver that counts gives no address, but the room is the same.
    static float counted;
    residual = input(carver, n, c.n_embd, step.x ? step.x : &counted).as(n, c.n_embd);
    normed = input(carver, n, c.n_embd).as(n, c.n_embd);
    ffn_normed = input(carver, n, c.n_embd).as(n, c.n_embd);
    attended = input(carver, n, sizes.attended);
    by_head = input(carver, n, std::max(sizes.by_head, sizes.latent ? sizes.out_dim : 0));
    carver.take(gate, {n, sizes.n_gate});
    if (sizes.latent) {
        carver.take(all_heads.expert, {n, sizes.n_head});
        carver.take(all_heads.pair, {n, sizes.n_head});
        carver.take(all_heads.first, {sizes.n_head + 1});
    }
    embedding = input(carver, n, model.layer_embd.width);
    narrow = input(carver, n, sizes.expert_width);
    narrow_sum = input(carver, n, sizes.expert_width);
    carver.take(share, {n});
    hidden = input(carver, n_lists, c.predictor_rank);
    fired = input(carver, n, sizes.n_ff);
    for (float** to : {&out, &ffn_out}) carver.take(*to, {n, c.n_embd});
    carver.take(q, {n, sizes.q_dim});
    carver.take(k, {n, sizes.k_dim});
    carver.take(v, {n, sizes.v_dim});
    carver.take(up, {n, sizes.n_ff});
    if (c.has_predictors) carver.take(score, {n_lists, sizes.n_ff});
    if (c.sketches) {
        carver.take(sketch.planes, {n_lists, 4, ggml::device_sketch_words(int(c.n_embd))});
        carver.take(sketch.unit, {n_lists});
        carver.take(sketch.total, {n_lists});
    }
    for (const Rope& rope : c.ropes) carver.take(cos_sin.emplace_back(), {n, rope.n_rot});
    carver.take(results, {n_results, c.n_embd});
    carver.take(result_logits, {n_results, c.n_vocab});
    const int64_t blocks = ggml::device_attention_blocks(p.n_ctx);
    int64_t row_floats = 0;  // of the layer whose attention takes most
    for (const Layer& layer : model.layers) {
        const auto* a = layer.find<Attention>();
        if (a) row_floats = std::max(row_floats, a->n_head * blocks * (a->v_head_dim + 2));
    }
    const int64_t row_bytes = std::max<int64_t>(1, row_floats) * int64_t(sizeof(float));
    attention_rows = std::clamp<int64_t>(kDeviceAttentionBytes / row_bytes, 1, n);
    attention.blocks = int(blocks);
    carver.take(attention.sums, {attention_rows, row_floats});
    if (sizes.n_expert) {
        int64_t values = 0;  // of the experts of a row
        for (const FeedForward* part : model.ffns) {
            if (part->routed()) values = std::max(values, part->n_used * part->n_ff);
        }
        carver.take(scores, {n, sizes.n_expert});
        carver.take(choice.expert, {n, sizes.n_used});
        carver.take(choice.weight, {n, sizes.n_used});
        carver.take(choice.pair, {n, sizes.n_used});
        carver.take(choice.first, {sizes.n_expert + 1});
        expert_fired = input(carver, n, values);
        carver.take(expert_up, {n, values});
        carver.take(expert_out, {n * sizes.n_used, c.n_embd});
    }
    if (has_states(model, n_layers)) {
        carver.take(entering, {n, sizes.entering});
        carver.take(beside, {n, sizes.beside});
        folded = input(carver, n, sizes.folded);
        int64_t n_head = 0, n_k_head = 0, n_decays = 0;
        for (const Layer& layer : model.layers) {
            if (const auto* part = layer.find<Mamba2>()) n_head = std::max(n_head, part->n_head);
            if (const auto* part = layer.find<DeltaNet>()) {
                n_head = std::max(n_head, part->n_v_head);
                n_k_head = std::max(n_k_head, part->n_k_head);
                if (part->by_row) n_decays = std::max(n_decays, part->n_alpha());
            }
        }
        carver.take(states.decays, {n, n_head});
        carver.take(states.products, {n, n_k_head});
        carver.take(states.row_decays, {n, n_decays});
    }
    if (!c.neuron_aware) return;
    lists.n = int(sizes.n_ff);
    for (int32_t** to : {&lists.hot, &lists.cold}) carver.take(*to, {n_lists, sizes.n_ff});
    carver.take(lists.count, {n_lists, 2});
    ffn.h = fired.x;  // no layer needs both
    ffn.up = up;
    const int64_t parts = n <= kDeviceLists ? ggml::kDeviceParts : 1;
    carver.take(ffn.sums, {n, parts, c.n_embd});
}

uint64_t device_scratch_bytes(const Model& model, const pi_session_params& p, int64_t n_layers) {
    // Parts of sums make it grow with the rows up to kDeviceLists, and again beyond.
    const int64_t most = device_rows(p);
    uint64_t bytes = 0;
    for (int64_t n : {most, std::min(most, kDeviceLists)}) {
        bytes = std::max(bytes, ggml::carved_bytes<DeviceScratch>(model, p, n_layers, n));
    }
    return bytes;
}

StateLayout device_state_layout(const Model& model, int64_t n_layers) {
    const int64_t end = model.config.n_layer;
    return StateLayout::of(model.layers, end - n_layers, end);
}

KvLayout device_kv_layout(const Model& model, const pi_session_params& p, int64_t n_layers) {
    return {model.layers, kv_classes(model.layers, p), ggml::DType(p.type_k),
            model.config.n_layer - n_layers, int64_t(model.layers.size())};
}

DeviceShared::DeviceShared(Carver& carver, const Model& model, const pi_session_params& p,
                           int64_t n_layers)
    : exchange(size_t(n_layers)) {
    const int64_t n = device_rows(p), n_lists = std::min(n, kDeviceLists);
    carver.take(step, {int64_t(ggml::carved_bytes<DeviceStep>(model, p, n_layers, n))});
    ggml::DeviceExchange all;
    const LargestSizes sizes = largest_sizes(model.layers);
    const int64_t n_embd = model.config.n_embd;
    // Of mixtures the CPU gives the results of single experts.
    const int64_t results = std::max<int64_t>(1, sizes.n_used);
    if (model.config.neuron_aware || sizes.n_expert) {
        carver.take(all.x, {n, n_embd});
        carver.take(all.sums, {n * results, n_embd});
    }
    if (model.config.neuron_aware) carver.take(all.ids, {n_lists, sizes.n_ff});
    int64_t layer = model.config.n_layer - n_layers;
    for (ggml::DeviceExchange& e : exchange) {
        e = all;
        // The CPU reads what was chosen also where the device does not wait for it.
        const FeedForward* const part = model.ffn_of(layer++);
        if (part && part->routed()) carver.take(e.ids, {n, part->n_used});
        carver.take(e.count, {n_lists});
        carver.take(e.published, {1});
        carver.take(e.answered, {1});
    }
}

}  // namespace powerinfer
