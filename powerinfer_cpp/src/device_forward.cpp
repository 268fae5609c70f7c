#include "device_forward.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "ffn.h"

namespace powerinfer {

using ggml::Carver;
using ggml::Code;
using ggml::DeviceExchange;
using ggml::DeviceInput;
using ggml::DeviceNorm;
using ggml::DeviceProduct;
using ggml::DeviceRows;
using ggml::Error;

namespace {

int power_of_two(int64_t n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}

}  // namespace

DeviceForward::DeviceForward(const Model& model, const pi_session_params& params,
                             const RopeTable& rope)
    : model_(model),
      params_(params),
      on_(*model.device),
      device_(*on_.device),
      ops_(device_.ops()),
      first_(on_.share.first_layer),
      head_(on_.share.head && !params.embedding) {
    const Config& c = model.config;
    const std::lock_guard<std::mutex> lock(on_.mutex);
    device_.enter();
    const int64_t n = model.device_layers();
    kv_ = {device_, device_kv_bytes(c, params, n), "the KV cache"};
    memory_ = {device_, ggml::carved_bytes<DeviceScratch>(c, params, n), "scratch"};
    Carver carver(memory_.get(), memory_.size());
    scratch_ = DeviceScratch(carver, c, params, n);
    const uint64_t shared = ggml::carved_bytes<DeviceShared>(c, params, n);
    shared_ = {device_, shared, "flags and halves"};
    Carver shared_carver(shared_.get(), shared);
    const DeviceShared both(shared_carver, c, params, n);
    host_ = both.step;
    step_bytes_ = ggml::carved_bytes<DeviceStep>(c, params, n);
    for (int64_t i = 0; i < n; i++) {
        exchange_.push_back(both.exchange[size_t(i)]);
        exchange_.back().arrived = scratch_.arrived + i;
        exchange_.back().epoch = scratch_.step.epoch;
        exchange_.back().waited = scratch_.waited;
    }
    stream_ = {device_, device_.new_stream()};
    device_.zero(stream_.get(), scratch_.arrived, uint64_t(n) * sizeof(uint32_t));
    counted_.resize(size_t(n) * 3 + 1);
    device_.zero(stream_.get(), scratch_.counts, counted_.size() * sizeof(counted_[0]));
    if (c.n_rot) {
        device_.copy_in(stream_.get(), scratch_.frequency, rope.frequency.data(),
                        rope.frequency.size() * sizeof(double));
    }
    device_.wait(stream_.get());
    rope_magnitude_ = rope.magnitude;
}

void DeviceForward::run(const Pass& p) {
    const std::lock_guard<std::mutex> lock(on_.mutex);
    device_.enter();
    for (int64_t t = 0; t < p.work.batch.n; t++) {
        p.check_stop();
        row(p, t);
    }
    count(p);
}

// Adds the neurons that the device has computed, and how long it has waited for the CPU, since it
// was last asked.
void DeviceForward::count(const Pass& p) {
    const Config& c = model_.config;
    std::vector<unsigned long long> now(counted_.size());
    device_.copy_out(stream_.get(), now.data(), scratch_.counts, now.size() * sizeof(now[0]));
    device_.wait(stream_.get());
    for (int64_t i = first_; i < c.n_layer; i++) {
        const size_t at = size_t(i - first_) * 3;
        const auto did = [&](size_t k) { return int64_t(now[at + k] - counted_[at + k]); };
        const int64_t all = p.work.batch.n * c.n_ff;
        const bool dense = !model_.layers[size_t(i)].ffn.neurons.n;
        for (ggml::NeuronCounts* to :
             {&p.counts.neurons[size_t(i)], &p.counts.on_device[size_t(i)]}) {
            to->proposed += dense ? all : did(0);
            to->computed += dense ? all : did(1);
            to->fired += dense ? all : did(2);
        }
        p.counts.on_device[size_t(i)].rows += p.work.batch.n;
    }
    p.counts.waited_for_cpu += now.back() - counted_.back();
    counted_ = std::move(now);
}

void DeviceForward::row(const Pass& p, int64_t t) {
    const Batch& batch = p.work.batch;
    const Config& c = model_.config;
    fill_step(p, t);
    const int64_t blocks = ggml::device_attention_blocks(batch.position[t] + 1);
    const Kind kind{batch.masked[t], batch.result[t] != nullptr, power_of_two(blocks)};
    try {
        device_.copy_in(stream_.get(), scratch_.step.x, host_.x, step_bytes_);
        if (params_.stepwise) {
            put(kind, &p);
        } else {
            ggml::Owned<ggml::DeviceGraph>& graph = graphs_[kind];
            if (!graph) graph = record(kind);
            device_.launch(graph.get(), stream_.get());
            for (int64_t i = first_; i < c.n_layer; i++) {
                if (on_.share.splits(i)) answer(p, i);
            }
        }
        if (kind.kept && head_) {
            device_.copy_out(stream_.get(), batch.result[t], scratch_.logits,
                             uint64_t(c.n_vocab) * sizeof(float));
        } else if (kind.kept) {
            device_.copy_out(stream_.get(), p.work.x + t * c.n_embd, scratch_.step.x,
                             uint64_t(c.n_embd) * sizeof(float));
        }
        device_.wait(stream_.get());
    } catch (...) {
        release();
        throw;
    }
    p.counts.transferred += step_bytes_;
    if (kind.kept) p.counts.transferred += uint64_t(head_ ? c.n_vocab : c.n_embd) * sizeof(float);
    for (int64_t i = first_; i < c.n_layer; i++) {
        const Layer& l = model_.layers[size_t(i)];
        if (kind.masked && is_predicted(l, l.ffn, params_.sparse)) p.counts.predicted[size_t(i)]++;
        if (!on_.share.splits(i)) p.counts.neurons[size_t(i)].rows++;
    }
}

ggml::Owned<ggml::DeviceGraph> DeviceForward::record(const Kind& kind) {
    device_.begin_capture(stream_.get());
    try {
        put(kind, nullptr);
    } catch (...) {
        // The stream must not stay in this state.
        const ggml::Owned<ggml::DeviceGraph> partial(device_, device_.end_capture(stream_.get()));
        throw;
    }
    return {device_, device_.end_capture(stream_.get())};
}

int DeviceForward::most_nodes() const {
    int most = 0;
    for (const auto& [kind, graph] : graphs_) most = std::max(most, device_.nodes(graph.get()));
    return most;
}

void DeviceForward::fill_step(const Pass& p, int64_t t) {
    const Batch& batch = p.work.batch;
    const Config& c = model_.config;
    std::memcpy(host_.x, p.work.x + t * c.n_embd, size_t(c.n_embd) * sizeof(float));
    do {
        epoch_++;
    } while (epoch_ == 0 || epoch_ == ggml::kReleased);
    *host_.epoch = epoch_;
    *host_.position = batch.position[t];
    *host_.slot = batch.slot[t];
    const int32_t end = batch.position[t] + 1;
    std::memcpy(host_.pages, batch.pages[t], size_t(pages_of(end)) * sizeof(int32_t));
    for (int64_t i = first_; i < c.n_layer; i++) {
        const int64_t window = model_.layers[size_t(i)].window;
        const int64_t first = window ? std::max<int64_t>(0, end - window) : 0;
        host_.rows[i - first_] = {scratch_.step.pages, int32_t(first), end};
    }
}

void DeviceForward::put(const Kind& kind, const Pass* now) {
    const Config& c = model_.config;
    DeviceScratch& s = scratch_;
    added_[0] = added_[1] = nullptr;
    if (c.n_rot) {
        ops_.rope_table(stream_.get(), s.frequency, int(c.n_rot / 2), rope_magnitude_,
                        s.step.position, 1, s.cos_sin);
    }
    for (int64_t i = first_; i < c.n_layer; i++) put_layer(i, kind, now);
    if (!kind.kept) return;
    if (head_) {
        const bool tied = !on_.matrix(&model_.output);
        const DeviceRows w = on_.matrix(tied ? &model_.token_embd : &model_.output);
        put_norm(model_.output_norm, s.normed);
        put_products(s.normed, {{w, s.logits, nullptr}});
        return;
    }
    for (const float* y : added_) {
        if (y) ops_.add(stream_.get(), s.step.x, y, c.n_embd);
    }
}

// x += attention(norm(x)); x += ffn(norm(x)), see forward.cpp. The neurons of the CPU are asked for
// as early as the input of the FFN is known.
void DeviceForward::put_layer(int64_t i, const Kind& kind, const Pass* now) {
    const Config& c = model_.config;
    const Layer& l = model_.layers[size_t(i)];
    DeviceScratch& s = scratch_;
    put_norm(l.attn_norm, s.normed);
    if (!c.parallel_ffn) {
        put_attention(i, kind);
        added_[0] = s.out;
    }
    put_norm(l.ffn_norm, s.ffn_normed);
    const bool by_neuron = l.ffn.neurons.n > 0, split = on_.share.splits(i);
    if (by_neuron) put_selection(i, kind);
    if (split && now) {
        device_.wait(stream_.get());
        answer(*now, i);
    }
    if (c.parallel_ffn) put_attention(i, kind);
    if (by_neuron) {
        put_neurons(i);
    } else {
        put_matrices(i);
    }
    added_[0] = s.ffn_out;
    added_[1] = c.parallel_ffn ? s.out : nullptr;
}

// y = norm(x), after what is still to be added to x.
void DeviceForward::put_norm(const NormWeights& w, const DeviceInput& y) {
    DeviceNorm norm;
    norm.weight = on_.vector(&w.weight);
    norm.bias = on_.vector(&w.bias);
    norm.eps = model_.config.norm_eps;
    norm.x = scratch_.step.x;
    for (int i = 0; i < 2; i++) norm.added[i] = std::exchange(added_[i], nullptr);
    norm.y = y;
    ops_.norm(stream_.get(), norm);
}

DeviceProduct DeviceForward::product(const ggml::Matrix& w, float* y,
                                     const float* const& bias) const {
    return {on_.matrix(&w), y, on_.vector(&bias)};
}

void DeviceForward::put_products(const DeviceInput& x,
                                 std::initializer_list<DeviceProduct> products) {
    ops_.matmul(stream_.get(), x, products.begin(), int(products.size()));
}

// out = Wo . attention(Wq . x, Wk . x, Wv . x)
void DeviceForward::put_attention(int64_t i, const Kind& kind) {
    const Config& c = model_.config;
    const Layer& l = model_.layers[size_t(i)];
    DeviceScratch& s = scratch_;
    put_products(s.normed, {product(l.q, s.q, l.q_bias), product(l.k, s.k, l.k_bias),
                            product(l.v, s.v, l.v_bias)});
    const int n_pairs = l.rotates ? int(c.n_rot / 2) : 0;
    const auto place = [&](float* x, int64_t n_head, const float* const& norm) {
        if (!n_pairs && !norm) return;
        ops_.place_heads(stream_.get(), x, 1, int(n_head), int(c.head_dim), on_.vector(&norm),
                         c.norm_eps, s.cos_sin, n_pairs, c.rope_pairs);
    };
    place(s.q, c.n_head, l.q_norm);
    place(s.k, c.n_head_kv, l.k_norm);
    const ggml::KvLayer kv = kv_layer(i);
    ops_.store_kv(stream_.get(), kv, s.step.slot, 1, s.k, s.v);
    ggml::DeviceAttentionScratch sums = s.attention;
    sums.blocks = kind.blocks;
    ops_.attention(stream_.get(), kv, int(c.n_head), float(1.0 / std::sqrt(double(c.head_dim))),
                   s.step.rows + (i - first_), 1, s.q, sums, s.attended.x);
    ops_.quantise(stream_.get(), s.attended);
    put_products(s.attended, {product(l.o, s.out, l.o_bias)});
}

// score = the predictor's, see predict() in ffn.cpp.
void DeviceForward::put_predictor(const Ffn& f) {
    const Config& c = model_.config;
    DeviceScratch& s = scratch_;
    const DeviceInput& x = c.predict_from_normed ? s.ffn_normed : s.residual;
    if (f.signs) {
        const DeviceRows signs = on_.matrix(&f.signs);
        const ggml::DeviceSketch sketch{signs.rows, int(c.n_embd), signs.data,
                                        on_.vector(&f.sketch_offset)};
        ops_.sketch_scores(stream_.get(), sketch, x.x, 1, s.sketch, s.score);
        return;
    }
    if (!c.predict_from_normed) ops_.quantise(stream_.get(), x);
    DeviceInput hidden = s.hidden;
    hidden.cols = int(f.fc1.rows);
    put_products(x, {{on_.matrix(&f.fc1), hidden.x, nullptr}});
    ops_.activation(stream_.get(), ggml::Activation::relu, hidden, nullptr);
    put_products(hidden, {{on_.matrix(&f.fc2), s.score, nullptr}});
}

// Lists the neurons of the row, and gives the CPU its share of them.
void DeviceForward::put_selection(int64_t i, const Kind& kind) {
    const Config& c = model_.config;
    const Layer& l = model_.layers[size_t(i)];
    DeviceScratch& s = scratch_;
    const bool masked = kind.masked && is_predicted(l, l.ffn, params_.sparse);
    if (masked) put_predictor(l.ffn);
    const bool all = !masked || params_.sparse != PI_SPARSE_AUTO || l.ffn.unpredicted.empty();
    ops_.select(stream_.get(), masked ? s.score : nullptr, score_threshold(l, params_),
                all ? nullptr : on_.unpredicted.get() + (i - first_) * c.n_ff, slots(i),
                int(c.n_ff), s.lists);
    if (!on_.share.splits(i)) return;
    ops_.publish(stream_.get(), s.ffn_normed.x, int(c.n_embd), s.lists, int(c.n_ff),
                 exchange_[size_t(i - first_)]);
}

const int32_t* DeviceForward::slots(int64_t i) const {
    return on_.share.splits(i) ? on_.slots.get() + (i - first_) * model_.config.n_ff : nullptr;
}

// ffn_out = what the listed neurons of both halves send down, and the bias.
void DeviceForward::put_neurons(int64_t i) {
    const Config& c = model_.config;
    const Ffn& f = model_.layers[size_t(i)].ffn;
    DeviceScratch& s = scratch_;
    ggml::DeviceNeurons w;
    w.n = int(c.n_ff);
    w.gate = on_.matrix(&f.neurons.gate);
    w.up = on_.matrix(&f.neurons.up);
    w.down = on_.matrix(&f.neurons.down);
    w.slot = slots(i);
    w.gate_bias = on_.vector(&f.neurons.gate_bias);
    w.up_bias = on_.vector(&f.neurons.up_bias);
    w.act = f.neurons.act;
    w.threshold = activation_threshold(f.neurons, params_.sparse);
    const float* bias = on_.vector(&f.neurons.down_bias);
    if (w.up.rows > 0) {
        ggml::DeviceFfnScratch scratch = s.ffn;
        scratch.counts = s.counts + 3 * (i - first_);
        ops_.partial_ffn(stream_.get(), w, s.ffn_normed, s.lists.hot, s.lists.count, scratch);
    }
    if (on_.share.splits(i)) {
        ops_.merge_answer(stream_.get(), s.ffn.sums, s.lists.count, exchange_[size_t(i - first_)],
                          bias, int(c.n_embd), s.ffn_out);
    } else {
        ops_.merge(stream_.get(), s.ffn.sums, nullptr, bias, int(c.n_embd), s.ffn_out);
    }
}

// The same for FFNs that are matrices.
void DeviceForward::put_matrices(int64_t i) {
    const Config& c = model_.config;
    const Ffn& f = model_.layers[size_t(i)].ffn;
    DeviceScratch& s = scratch_;
    if (f.gate) {
        put_products(s.ffn_normed,
                     {product(f.gate, s.fired.x, f.gate_bias), product(f.up, s.up, f.up_bias)});
    } else {
        put_products(s.ffn_normed, {product(f.up, s.fired.x, f.up_bias)});
    }
    ops_.activation(stream_.get(), c.activation, s.fired, f.gate ? s.up : nullptr);
    put_products(s.fired, {product(f.down, s.ffn_out, f.down_bias)});
}

ggml::KvLayer DeviceForward::kv_layer(int64_t i) const {
    const Config& c = model_.config;
    ggml::KvLayer kv{ggml::DType(params_.type_k), c.n_head_kv, c.head_dim, nullptr, nullptr, 0};
    const int64_t per_kind = c.n_head_kv * kv.head_bytes();
    kv.page_stride = page_bytes();
    kv.k = kv_.get() + (i - first_) * 2 * per_kind;
    kv.v = kv.k + per_kind;
    return kv;
}

int64_t DeviceForward::page_bytes() const {
    return int64_t(kv_.size()) / kv_pages(params_);
}

// ---- The CPU's half -----------------------------------------------------------------------------

// Waits until the device has published. Throws Error(device) if it ends before, and
// Error(cancelled).
void DeviceForward::await(const Pass& p, const DeviceExchange& e) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::microseconds kSpin(100), kAsk(10000);
    const auto published = [&] { return __atomic_load_n(e.published, __ATOMIC_ACQUIRE) == epoch_; };
    const Clock::time_point start = Clock::now();
    Clock::time_point asked = start;
    if (published()) return;
    while (!published()) {
        const Clock::time_point now = Clock::now();
        if (now - start > kSpin) std::this_thread::yield();
        if (now - asked < kAsk) continue;
        asked = now;
        p.check_stop();
        if (device_.idle(stream_.get()) && !published()) {
            throw Error(Code::device, "the device came to rest in the middle of a token");
        }
    }
    const auto waited = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
    p.counts.waited_for_device += uint64_t(waited.count());
}

void DeviceForward::answer(const Pass& p, int64_t i) {
    const Config& c = model_.config;
    Workspace& b = p.work;
    DeviceExchange& e = exchange_[size_t(i - first_)];
    ggml::NeuronCounts& counts = p.counts.neurons[size_t(i)];
    p.check_stop();
    await(p, e);
    if (*e.count == 0) {  // the device does not wait
        counts.rows++;
        return;
    }
    p.counts.answers++;
    ggml::Neurons neurons = on_.cold[size_t(i)];
    neurons.threshold = activation_threshold(neurons, params_.sparse);
    const bool q8 = neurons.gate.wants_q8() || neurons.up.wants_q8();
    const ggml::Input input = b.input.prepare(p.context, e.x, 1, c.n_embd, q8);
    ggml::select_listed(e.ids, *e.count, neurons.n, b.candidates);
    ggml::partial_ffn(p.context, neurons, input, b.candidates, b.neurons, b.sums, &counts, nullptr);
    ggml::merge(p.context, neurons, b.sums, e.sums);
    __atomic_store_n(e.answered, epoch_, __ATOMIC_RELEASE);
    p.counts.transferred +=
        uint64_t(2 * c.n_embd) * sizeof(float) + uint64_t(*e.count) * sizeof(int32_t);
}

void DeviceForward::release() {
    for (const DeviceExchange& e : exchange_) {
        __atomic_store_n(e.answered, ggml::kReleased, __ATOMIC_RELEASE);
    }
    try {
        device_.wait(stream_.get());
        device_.zero(stream_.get(), scratch_.arrived, exchange_.size() * sizeof(uint32_t));
        device_.wait(stream_.get());
    } catch (const Error&) {
        // What made it necessary is reported.
    }
    for (const DeviceExchange& e : exchange_) __atomic_store_n(e.answered, 0u, __ATOMIC_RELEASE);
}

// ---- Pages of keys and values -------------------------------------------------------------------

void DeviceForward::copy_page(int32_t from, int32_t to) {
    std::vector<uint8_t> page(static_cast<size_t>(page_bytes()));
    read_page(from, kKvPage, page.data());
    write_page(to, kKvPage, page.data());
}

void DeviceForward::read_page(int32_t page, int64_t n, uint8_t* out) {
    each_run(page, n, [&](uint8_t* run, int64_t size) {
        device_.copy_out(stream_.get(), out, run, uint64_t(size));
        out += size;
    });
}

void DeviceForward::write_page(int32_t page, int64_t n, const uint8_t* from) {
    each_run(page, n, [&](uint8_t* run, int64_t size) {
        device_.copy_in(stream_.get(), run, from, uint64_t(size));
        from += size;
    });
}

template <typename F>
void DeviceForward::each_run(int32_t page, int64_t n, const F& f) {
    const std::lock_guard<std::mutex> lock(on_.mutex);
    device_.enter();
    const int64_t run = kv_layer(first_).head_bytes();
    uint8_t* const begin = kv_.get() + page * page_bytes();
    for (int64_t at = 0; at < page_bytes(); at += run) f(begin + at, n * run / kKvPage);
    device_.wait(stream_.get());
}

}  // namespace powerinfer
