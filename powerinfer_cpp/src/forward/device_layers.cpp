// The operators of a forward pass on a device, layer by layer: what walk.h and parts/ are for
// the CPU.
#include <algorithm>

#include "forward/device_forward.h"
#include "forward/parts/neuron_ffn.h"
#include "forward/parts/predictor.h"
#include "storage/neurons/stored_segments.h"

namespace powerinfer {

using ggml::Code;
using ggml::DeviceExchange;
using ggml::DeviceInput;
using ggml::DeviceNorm;
using ggml::DeviceProduct;
using ggml::DeviceRows;
using ggml::Error;

void DeviceForward::launch_rows(const Pass& p, const Kind& kind, LaunchMode mode) {
    const Config& c = model_.config;
    DeviceScratch& s = scratch_;
    added_[0] = added_[1] = nullptr;
    if (!c.ropes.empty()) {
        ops_.rope_table(stream_.get(), s.frequency, int(c.ropes[0].n_rot / 2), rope_magnitude_,
                        s.step.position, kind.rows, s.cos_sin);
    }
    for (int64_t i = first_; i < c.n_layer; i++) launch_layer(p, i, kind, mode);
    if (!kind.kept) return;
    if (head_ && kind.kept == kind.rows && kind.rows <= kDeviceResults) {
        launch_norm(model_.output_norm, s.step.x, s.normed);
        launch_logits(s.normed);
        return;
    }
    for (const float* y : added_) {
        if (y) ops_.add(stream_.get(), s.step.x, y, kind.rows * c.n_embd);
    }
    added_[0] = added_[1] = nullptr;
    if (head_) launch_head(kind, 0, std::min<int64_t>(kDeviceResults, kind.kept));
}

// The logits of n of the kept rows, from the first-th of them on.
void DeviceForward::launch_head(const Kind& kind, int64_t first, int64_t n) {
    const int64_t cols = model_.config.n_embd;
    DeviceScratch& s = scratch_;
    const DeviceRows x{ggml::DType::F32, reinterpret_cast<uint8_t*>(s.step.x),
                       cols * int64_t(sizeof(float)), kind.rows, int(cols)};
    ops_.embed_rows(stream_.get(), x, s.step.kept + first, 0, int(n), s.results);
    ggml::DeviceInput normed = s.normed;
    normed.rows = int(n);
    launch_norm(model_.output_norm, s.results, normed);
    launch_logits(normed);
}

void DeviceForward::launch_logits(const DeviceInput& normed) {
    const bool tied = !on_.matrix(&model_.output);
    const DeviceRows w = on_.matrix(tied ? &model_.token_embd : &model_.output);
    launch_products(normed, {{w, scratch_.result_logits, nullptr}});
}

// x += attention(norm(x)); x += ffn(norm(x)), see walk.h. The neurons of the CPU are asked for
// as early as the input of the FFN is known.
void DeviceForward::launch_layer(const Pass& p, int64_t i, const Kind& kind, LaunchMode mode) {
    // keeps_to_cpu() has left attention and then a block, each behind a norm of the stream.
    const auto& parts = model_.layers[size_t(i)].parts;
    const bool parallel = parts[0].add == LayerPart::Add::with_next;
    DeviceScratch& s = scratch_;
    launch_norm(*parts[0].norm, s.step.x, s.normed);
    if (!parallel) {
        launch_attention(i, kind);
        added_[0] = s.out;
    }
    launch_norm(*parts[1].norm, s.step.x, s.ffn_normed);
    const bool by_neuron = ffn(i).blocks[0].neurons.n > 0, cpu_part = cpu_has_part(i, kind);
    if (by_neuron) launch_selection(i, kind);
    if (parallel) launch_attention(i, kind);
    if (by_neuron) {
        launch_gpu_neurons(i);
        if (cpu_part) cpu_part_before_merge(p, i, kind, mode);
        launch_merge(p, i, kind);
    } else {
        launch_matrices(i);
    }
    added_[0] = s.ffn_out;
    added_[1] = parallel ? s.out : nullptr;
    if (cpu_part && mode == LaunchMode::by_layer && !p.source.waits()) compute_cpu_part(p, i, kind);
}

// y = norm(x), after what is still to be added to x.
void DeviceForward::launch_norm(const NormWeights& w, float* x, const DeviceInput& y) {
    DeviceNorm norm;
    norm.weight = on_.vector(&w.weight);
    norm.bias = on_.vector(&w.bias);
    norm.eps = w.eps;
    norm.x = x;
    for (int i = 0; i < 2; i++) norm.added[i] = std::exchange(added_[i], nullptr);
    norm.y = y;
    ops_.norm(stream_.get(), norm);
}

DeviceProduct DeviceForward::product(const ggml::Matrix& w, float* y,
                                     const float* const& bias) const {
    return {on_.matrix(&w), y, on_.vector(&bias)};
}

void DeviceForward::launch_products(const DeviceInput& x,
                                    std::initializer_list<DeviceProduct> products) {
    ops_.matmul(stream_.get(), x, products.begin(), int(products.size()));
}

// out = Wo . attention(Wq . x, Wk . x, Wv . x)
void DeviceForward::launch_attention(int64_t i, const Kind& kind) {
    const Config& c = model_.config;
    const Attention& a = *model_.layers[size_t(i)].find<Attention>();
    DeviceScratch& s = scratch_;
    launch_products(s.normed, {product(a.q, s.q, a.q_bias), product(a.k, s.k, a.k_bias),
                               product(a.v, s.v, a.v_bias)});
    const int n_pairs = a.rope < 0 ? 0 : int(c.ropes[size_t(a.rope)].n_rot / 2);
    const ggml::RopePairs pairs = a.rope < 0 ? c.rope_pairs : c.ropes[size_t(a.rope)].pairs;
    const auto norm_and_rope = [&](float* x, int64_t n_head, const float* const& norm) {
        if (!n_pairs && !norm) return;
        ops_.norm_and_rope(stream_.get(), x, kind.rows, int(n_head), int(a.head_dim),
                           on_.vector(&norm), a.norm_eps, s.cos_sin, n_pairs, pairs);
    };
    norm_and_rope(s.q, a.n_head, a.q_norm);
    norm_and_rope(s.k, a.n_head_kv, a.k_norm);
    const ggml::KvLayer kv = kv_layout_.layer(kv_.get(), i);
    const ggml::KvSlot* const slots = s.step.slot + kv_layout_.kind(i) * kind.rows;
    ops_.store_kv(stream_.get(), kv, slots, kind.rows, s.k, s.v);
    ggml::DeviceAttentionScratch sums = s.attention;
    if (kind.blocks > sums.blocks) throw Error(Code::internal, "no room for blocks of attention");
    sums.blocks = kind.blocks;
    DeviceInput attended = s.attended;
    attended.cols = int(a.out_dim());
    for (int64_t t = 0; t < kind.rows; t += s.attention_rows) {
        ops_.attention(stream_.get(), kv, int(a.n_head), {a.scale},
                       s.step.rows + (i - first_) * kind.rows + t,
                       int(std::min(s.attention_rows, kind.rows - t)), s.q + t * a.q_dim(), sums,
                       attended.x + t * a.out_dim());
    }
    ops_.quantise(stream_.get(), attended);
    launch_products(attended, {product(a.o, s.out, a.o_bias)});
}

// score = the predictor's, see predict() in predictor.cpp.
void DeviceForward::launch_predictor(const Ffn& f) {
    const Config& c = model_.config;
    DeviceScratch& s = scratch_;
    const DeviceInput& x = c.predict_from_normed ? s.ffn_normed : s.residual;
    if (f.signs) {
        const DeviceRows signs = on_.matrix(&f.signs);
        const ggml::DeviceSketch sketch{signs.rows, int(c.n_embd), signs.data,
                                        on_.vector(&f.sketch_offset)};
        ops_.sketch_scores(stream_.get(), sketch, x.x, x.rows, s.sketch, s.score);
        return;
    }
    if (!c.predict_from_normed) ops_.quantise(stream_.get(), x);
    DeviceInput hidden = s.hidden;
    hidden.cols = int(f.fc1.rows);
    launch_products(x, {{on_.matrix(&f.fc1), hidden.x, nullptr}});
    ops_.activation(stream_.get(), ggml::Activation::relu, hidden, nullptr);
    launch_products(hidden, {{on_.matrix(&f.fc2), s.score, nullptr}});
}

// Lists the neurons of the rows, and publishes those of the CPU. Unless rows are masked, these are
// all that it has, and need no list.
void DeviceForward::launch_selection(int64_t i, const Kind& kind) {
    const FeedForward& part = ffn(i);
    const Ffn& f = part.blocks[0];
    DeviceScratch& s = scratch_;
    const bool masked = masks(i, kind);
    if (masked) launch_predictor(f);
    const bool all = !masked || params_.sparse != PI_SPARSE_AUTO || f.unpredicted.empty();
    s.lists.rows = masked ? kind.rows : 1;
    s.lists.n = int(part.n_ff);
    ops_.select(stream_.get(), masked ? s.score : nullptr, score_threshold(part, params_),
                all ? nullptr : on_.unpredicted.get() + first_neuron(i), slots(i), s.lists);
    if (!cpu_has_part(i, kind)) return;
    DeviceExchange exchange = exchange_[size_t(i - first_)];
    if (!masked) exchange.ids = nullptr;
    ops_.publish(stream_.get(), s.ffn_normed, s.lists, exchange);
}

bool DeviceForward::masks(int64_t i, const Kind& kind) const {
    return kind.masked && is_predicted(ffn(i), ffn(i).blocks[0], params_.sparse);
}

bool DeviceForward::cpu_has_part(int64_t i, const Kind& kind) const {
    return on_.split.splits(i) && !kind.uploads_cold;
}

int64_t DeviceForward::first_neuron(int64_t i) const {
    return model_.neurons_from(first_) - model_.neurons_from(i);
}

const int32_t* DeviceForward::slots(int64_t i) const {
    return on_.split.splits(i) ? on_.slots.get() + first_neuron(i) : nullptr;
}

int32_t DeviceForward::next_split(int64_t i) const {
    while (++i < model_.config.n_layer) {
        if (on_.split.splits(i)) return int32_t(i);
    }
    return -1;
}

ggml::DeviceNeurons DeviceForward::gpu_neurons(int64_t i) const {
    const Ffn& f = ffn(i).blocks[0];
    ggml::DeviceNeurons w;
    w.n = int(f.neurons.n);
    w.gate = on_.matrix(&f.neurons.gate);
    w.up = on_.matrix(&f.neurons.up);
    w.down = on_.matrix(&f.neurons.down);
    w.slot = slots(i);
    w.gate_bias = on_.vector(&f.neurons.gate_bias);
    w.up_bias = on_.vector(&f.neurons.up_bias);
    w.act = f.neurons.act;
    w.threshold = activation_threshold(f.neurons, params_.sparse);
    return w;
}

ggml::DeviceFfnScratch DeviceForward::ffn_scratch(int64_t i) const {
    ggml::DeviceFfnScratch scratch = scratch_.ffn;
    scratch.counts = scratch_.counts + 3 * (i - first_);
    return scratch;
}

// The sums of the listed neurons that the device has.
void DeviceForward::launch_gpu_neurons(int64_t i) {
    const ggml::DeviceNeurons w = gpu_neurons(i);
    if (w.up.rows == 0) return;
    ops_.partial_ffn(stream_.get(), w, scratch_.ffn_normed, scratch_.lists, ffn_scratch(i));
}

// ffn_out = what the listed neurons of both halves send down, and the bias.
void DeviceForward::launch_merge(const Pass& p, int64_t i, const Kind& kind) {
    const Ffn& f = ffn(i).blocks[0];
    DeviceScratch& s = scratch_;
    const float* bias = on_.vector(&f.neurons.down_bias);
    const ggml::DeviceSums sums{s.ffn.sums, ggml::device_parts(kind.rows, s.lists.rows), kind.rows,
                                int(model_.config.n_embd)};
    if (cpu_has_part(i, kind)) {
        ops_.merge_answer(stream_.get(), sums, s.lists, exchange_[size_t(i - first_)], bias,
                          s.ffn_out);
        return;
    }
    if (!on_.split.splits(i)) {
        ops_.merge(stream_.get(), sums, nullptr, bias, s.ffn_out);
        return;
    }
    const float* so_far = nullptr;
    if (on_.matrix(&f.neurons.up).rows > 0) {
        ops_.merge(stream_.get(), sums, nullptr, nullptr, s.ffn_out);
        so_far = s.ffn_out;
    }
    const auto add_piece = [&](ggml::DeviceNeurons piece, bool last) {
        p.check_stop();
        piece.threshold = activation_threshold(f.neurons, params_.sparse);
        ggml::DeviceLists lists = s.lists;
        lists.n = piece.n;
        ops_.select(stream_.get(), nullptr, 0, nullptr, nullptr, lists);  // all of them
        ops_.partial_ffn(stream_.get(), piece, s.ffn_normed, lists, ffn_scratch(i));
        ops_.merge(stream_.get(), sums, so_far, last ? bias : nullptr, s.ffn_out);
        so_far = s.ffn_out;
    };
    p.counts.transferred += upload_cold(p, i, add_piece);
}

// Sends the CPU's neurons of a layer to the device, from RAM, or as the disk brings them.
uint64_t DeviceForward::upload_cold(const Pass& p, int64_t i, const PromptUpload::Use& use) {
    const ggml::Neurons& cold = on_.cold[size_t(i)];
    const std::vector<int32_t>& rows = on_.cold_rows[size_t(i)];
    if (!p.source.waits()) {
        const auto all = [](const int32_t*, int64_t n) { return n; };
        return on_.prompt_upload->run(p.context, cold, rows, all, stream_.get(), use);
    }
    const int32_t next = next_split(i);
    NeuronStore& store = p.source.store();
    StoredSegments segments(
        p.context.threads, store, first_block(i), next < 0 ? -1 : first_block(next),
        [](int32_t) { return true; }, p.work.neurons.stored.parts);
    const auto bring = [&](const int32_t* first, int64_t n) {
        const int64_t s = *first / ggml::segment_of(cold.n, 0).end;
        segments.bring(s, s + 1);
        return std::min(n, ggml::segment_of(cold.n, s).end - *first);  // rows are 0, 1, ...
    };
    const uint64_t moved =
        on_.prompt_upload->run(p.context, store.rows(cold), rows, bring, stream_.get(), use);
    segments.end();
    return moved;
}

// The same for FFNs that are matrices.
void DeviceForward::launch_matrices(int64_t i) {
    const Ffn& f = ffn(i).blocks[0];
    DeviceScratch& s = scratch_;
    DeviceInput fired = s.fired;
    fired.cols = int(ffn(i).n_ff);
    if (f.gate) {
        launch_products(s.ffn_normed,
                        {product(f.gate, s.fired.x, f.gate_bias), product(f.up, s.up, f.up_bias)});
    } else {
        launch_products(s.ffn_normed, {product(f.up, s.fired.x, f.up_bias)});
    }
    ops_.activation(stream_.get(), ffn(i).activation, fired, f.gate ? s.up : nullptr);
    launch_products(fired, {product(f.down, s.ffn_out, f.down_bias)});
}

}  // namespace powerinfer
