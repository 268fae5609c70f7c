// The operators of a forward pass on a device: the steps of walk.h, as cpu_layer.cpp and parts/ are
// for the CPU.
#include <algorithm>

#include "forward/device_forward.h"
#include "forward/parts/neuron_ffn.h"
#include "forward/parts/predictor.h"
#include "forward/walk.h"
#include "storage/neurons/stored_segments.h"

namespace powerinfer {

using ggml::DeviceExchange;
using ggml::DeviceInput;
using ggml::DeviceNorm;
using ggml::DeviceProduct;
using ggml::DeviceRows;

void DeviceForward::launch_rows(const Pass& p, const Kind& kind, LaunchMode mode) {
    const Config& c = model_.config;
    DeviceScratch& s = scratch_;
    added_[0] = added_[1] = {};
    listed_heads_ = 0;
    for (size_t i = 0; i < c.ropes.size(); i++) {
        ops_.rope_table(stream_.get(), s.frequency[i], int(c.ropes[i].n_rot / 2),
                        rope_magnitude_[i], s.step.position, kind.rows, s.cos_sin[i]);
    }
    for (int64_t i = first_; i < c.n_layer; i++) launch_layer(p, i, kind, mode);
    if (!kind.kept) return;
    if (head_ && kind.kept == kind.rows && kind.rows <= kDeviceResults) {
        launch_norm(model_.output_norm, s.step.x, s.normed);
        launch_logits(s.normed);
        return;
    }
    add_now(kind.rows);
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
    const ggml::Matrix& w = tied ? model_.token_embd : model_.output;
    float* const logits = scratch_.result_logits;
    launch_products(normed, {product(w, logits, model_.output_bias)});
    const Config& c = model_.config;
    const int64_t n = int64_t(normed.rows) * c.n_vocab;
    if (c.logit_scale != 1) ops_.scale(stream_.get(), logits, nullptr, c.logit_scale, n);
    if (c.logit_softcap > 0) ops_.softcap(stream_.get(), logits, c.logit_softcap, n);
}

// The steps of walk.h. What is added to the stream waits for the norm that reads the stream next,
// which adds it by the way. Attention whose result waits for the next part's is launched in the
// midst of that part: the CPU gets its neurons first, and computes them meanwhile.
class DeviceSteps {
 public:
    using Rows = float*;

    DeviceSteps(DeviceForward& on, const Pass& p, int64_t layer, const DeviceForward::Kind& kind,
                DeviceForward::LaunchMode mode)
        : on_(on), s_(on.scratch_), p_(p), layer_(layer), kind_(kind), mode_(mode) {}

    void begin(const LayerPart& part) { waits_ = part.add == LayerPart::Add::with_next; }
    void read(const LayerPart& part) {
        // Attention that has not been launched reads the other rows.
        x_ = !part.norm ? &s_.residual : attention_ ? &s_.ffn_normed : &s_.normed;
        if (part.norm) return on_.launch_norm(*part.norm, s_.step.x, *x_);
        on_.add_now(kind_.rows);
        on_.ops_.quantise(on_.stream_.get(), s_.residual);
    }
    float* stream() const { return s_.step.x; }
    float* room(bool waits) const { return waits ? s_.ffn_out : s_.out; }

    void route(const Router& router, const FeedForward&, size_t) {
        launch_attention();
        on_.launch_route(router, *x_);
    }
    void feed(const FeedForward& f, float* y, const FeedForward* beside, float* y_beside) {
        const bool in_rows = !f.routed() && f.blocks[0].neurons.n > 0;
        const bool by_neuron = in_rows && !on_.model_.beside_experts(f);
        if (by_neuron) on_.launch_selection(layer_, *x_, kind_);
        launch_attention();
        if (f.routed()) {
            on_.launch_mixture(p_, layer_, f, *x_, y, kind_, mode_, [&] {
                if (beside) on_.launch_matrices(*beside, *x_, y_beside);
            });
        } else if (by_neuron) {
            on_.launch_neurons(p_, layer_, *x_, y, kind_, mode_);
            on_.weigh(f, *x_, y);
        } else if (in_rows) {
            on_.launch_whole_rows(f, *x_, y);
        } else {
            on_.launch_matrices(f, *x_, y);
        }
    }
    void compute(const Attention& a, float* y) {
        attention_ = &a;
        attention_x_ = x_;
        attention_y_ = y;
        if (!waits_) launch_attention();
    }
    void compute(const LayerEmbedding& e, float* y) {
        launch_attention();
        on_.launch_embedding(layer_, e, *x_, y);
    }
    void compute(const NGrams&, float*) {}  // keeps to the CPU
    template <typename T>
    void compute(const T& state, float* y) {
        on_.launch_state(layer_, state, *x_, y, kind_);
    }

    // A norm and a factor of what a part gives wait for who adds it to the stream.
    void norm(float* y, const NormWeights& w) {
        launch_attention();
        finish();
        if (w.kind == Norm::layer) return on_.norm_in_place(w, y, kind_);
        added_ = {y, on_.on_.vector(&w.weight), w.eps, 1};
    }
    void scale(float* y, float by) {
        launch_attention();
        if (added_.x != y) finish();
        added_.x = y;
        added_.factor = by;
    }
    void scale_stream(const float* const& by) {
        on_.add_now(kind_.rows);
        on_.ops_.scale(on_.stream_.get(), stream(), on_.on_.vector(&by), 1, values());
    }
    void add(float* to, float* y) {
        launch_attention();
        const bool waits = added_.x == y;
        if (!waits || to != stream()) finish();
        if (to != stream()) return on_.ops_.add(on_.stream_.get(), to, y, values());
        on_.add_to_stream(waits ? added_ : ggml::DeviceAdded{y}, kind_.rows);
        added_ = {};
    }

 private:
    int64_t values() const { return int64_t(kind_.rows) * on_.n_embd(); }
    // What waits for its norm and factor gets them.
    void finish() {
        if (added_.x) on_.finish(added_, kind_.rows);
    }
    void launch_attention() {
        if (!attention_) return;
        on_.launch_attention(layer_, *std::exchange(attention_, nullptr), *attention_x_,
                             attention_y_, kind_);
    }

    DeviceForward& on_;
    const DeviceScratch& s_;
    const Pass& p_;
    const int64_t layer_;
    const DeviceForward::Kind& kind_;
    const DeviceForward::LaunchMode mode_;
    const DeviceInput* x_ = nullptr;        // what parts read
    bool waits_ = false;                    // what the part gives is added with the next one's
    const Attention* attention_ = nullptr;  // that is still to be launched
    const DeviceInput* attention_x_ = nullptr;
    float* attention_y_ = nullptr;
    ggml::DeviceAdded added_;  // what waits for its norm and factor
};

void DeviceForward::launch_layer(const Pass& p, int64_t i, const Kind& kind, LaunchMode mode) {
    DeviceSteps steps(*this, p, i, kind, mode);
    walk(model_.layers[size_t(i)], steps);
    const bool after = mode == LaunchMode::by_layer && !cpu_may_read(p);
    if (after && cpu_has_part(i, kind) && !visits(ffn(i), kind)) compute_cpu_part(p, i, kind);
}

// x += y, with the next norm of the stream if it has room for that.
void DeviceForward::add_to_stream(const ggml::DeviceAdded& y, int rows) {
    if (added_[1].x) add_now(rows);
    added_[added_[0].x ? 1 : 0] = y;
}

// What y adds becomes its norm times its factor.
void DeviceForward::finish(ggml::DeviceAdded& y, int rows) {
    float* const x = y.x;
    const int64_t n = int64_t(rows) * n_embd();
    if (y.norm) {
        DeviceNorm norm;
        norm.weight = y.norm;
        norm.eps = y.eps;
        norm.x = x;
        norm.y = {x, nullptr, nullptr, rows, n_embd()};
        ops_.norm(stream_.get(), norm);
    }
    if (y.factor != 1) ops_.scale(stream_.get(), x, nullptr, y.factor, n);
    y = {};
}

// What is still to be added to the stream.
void DeviceForward::add_now(int rows) {
    for (ggml::DeviceAdded& y : added_) {
        if (!y.x) continue;
        float* const x = y.x;
        finish(y, rows);
        ops_.add(stream_.get(), scratch_.step.x, x, int64_t(rows) * n_embd());
    }
}

// y = norm(x), after what is still to be added to x.
void DeviceForward::launch_norm(const NormWeights& w, float* x, const DeviceInput& y) {
    DeviceNorm norm = norm_of(w);
    norm.x = x;
    norm.y = y;
    if (norm.layer && (added_[0].norm || added_[1].norm)) add_now(y.rows);
    for (int i = 0; i < 2; i++) norm.added[i] = std::exchange(added_[i], {});
    ops_.norm(stream_.get(), norm);
}

DeviceNorm DeviceForward::norm_of(const NormWeights& w) const {
    DeviceNorm norm;
    norm.weight = on_.vector(&w.weight);
    norm.bias = on_.vector(&w.bias);
    norm.layer = w.kind == Norm::layer;
    norm.eps = w.eps;
    return norm;
}

// y = norm(y), rows of n_embd.
void DeviceForward::norm_in_place(const NormWeights& w, float* y, const Kind& kind) {
    DeviceNorm norm = norm_of(w);
    norm.x = norm.y.x = y;
    norm.y.rows = kind.rows;
    norm.y.cols = n_embd();
    ops_.norm(stream_.get(), norm);
}

// x = RMS norm of x, and its 8-bit form where x has one.
void DeviceForward::rms_norm_in_place(const float* const& weight, float eps, const DeviceInput& x) {
    DeviceNorm norm;
    norm.weight = on_.vector(&weight);
    norm.eps = eps;
    norm.x = x.x;
    norm.y = x;
    ops_.norm(stream_.get(), norm);
}

DeviceProduct DeviceForward::product(const ggml::Matrix& w, float* y,
                                     const float* const& bias) const {
    return {on_.matrix(&w), y, on_.vector(&bias), on_.vector(&w.scale)};
}
DeviceProduct DeviceForward::product(const ggml::Matrix& w, float* y) const {
    return {on_.matrix(&w), y, nullptr, on_.vector(&w.scale)};
}

void DeviceForward::launch_products(const DeviceInput& x,
                                    std::initializer_list<DeviceProduct> products) {
    ops_.matmul(stream_.get(), x, products.begin(), int(products.size()));
}

// score = the predictor's, see predict() in predictor.cpp.
void DeviceForward::launch_predictor(const Ffn& f, const DeviceInput& normed) {
    const Config& c = model_.config;
    DeviceScratch& s = scratch_;
    const DeviceInput& x = c.predict_from_normed ? normed : s.residual;
    if (f.signs) {
        const DeviceRows signs = on_.matrix(&f.signs);
        const ggml::DeviceSketch sketch{signs.rows, int(c.n_embd), signs.data,
                                        on_.vector(&f.sketch_offset)};
        ops_.sketch_scores(stream_.get(), sketch, x.x, x.rows, s.sketch, s.score);
        return;
    }
    if (!c.predict_from_normed) ops_.quantise(stream_.get(), x);
    const DeviceInput hidden = s.hidden.as(s.hidden.rows, f.fc1.rows);
    launch_products(x, {{on_.matrix(&f.fc1), hidden.x, nullptr}});
    ops_.activation(stream_.get(), ggml::Activation::relu, {}, hidden, nullptr);
    launch_products(hidden, {{on_.matrix(&f.fc2), s.score, nullptr}});
}

// Lists the neurons of the rows, and publishes those of the CPU. Unless rows are masked, these are
// all that it has, and need no list.
void DeviceForward::launch_selection(int64_t i, const DeviceInput& x, const Kind& kind) {
    const FeedForward& part = ffn(i);
    const Ffn& f = part.blocks[0];
    DeviceScratch& s = scratch_;
    const bool masked = masks(i, kind);
    if (masked) launch_predictor(f, x);
    const bool all = !masked || params_.sparse != PI_SPARSE_AUTO || f.unpredicted.empty();
    s.lists.rows = masked ? kind.rows : 1;
    s.lists.n = int(part.n_ff);
    ops_.select(stream_.get(), masked ? s.score : nullptr, score_threshold(part, params_),
                all ? nullptr : on_.unpredicted.get() + first_neuron(i), slots(i), s.lists);
    if (!cpu_has_part(i, kind)) return;
    DeviceExchange exchange = exchange_[size_t(i - first_)];
    if (!masked) exchange.ids = nullptr;
    ops_.publish(stream_.get(), x, s.lists, exchange);
}

bool DeviceForward::masks(int64_t i, const Kind& kind) const {
    return kind.masked && is_predicted(ffn(i), ffn(i).blocks[0], params_.sparse);
}

bool DeviceForward::cpu_has_part(int64_t i, const Kind& kind) const {
    if (!model_.ffn_of(i)) return false;
    if (ffn(i).routed()) return !on_.experts->all(ffn(i).index);
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
    scratch.counts = counts_of(ffn(i));
    return scratch;
}

// The listed neurons of both halves.
void DeviceForward::launch_neurons(const Pass& p, int64_t i, const DeviceInput& x, float* y,
                                   const Kind& kind, LaunchMode mode) {
    const ggml::DeviceNeurons w = gpu_neurons(i);
    if (w.up.rows > 0) {
        ops_.partial_ffn(stream_.get(), w, x, scratch_.lists, ffn_scratch(i));
    }
    if (cpu_has_part(i, kind)) cpu_part_before_merge(p, i, kind, mode);
    launch_merge(p, i, x, y, kind);
}

// y = what the listed neurons of both halves send down, and the bias.
void DeviceForward::launch_merge(const Pass& p, int64_t i, const DeviceInput& x, float* y,
                                 const Kind& kind) {
    const Ffn& f = ffn(i).blocks[0];
    DeviceScratch& s = scratch_;
    const float* bias = on_.vector(&f.neurons.down_bias);
    const ggml::DeviceSums sums{s.ffn.sums, ggml::device_parts(kind.rows, s.lists.rows), kind.rows,
                                int(model_.config.n_embd)};
    if (cpu_has_part(i, kind)) {
        ops_.merge_answer(stream_.get(), sums, s.lists, exchange_[size_t(i - first_)], bias, y);
        return;
    }
    if (!on_.split.splits(i)) {
        ops_.merge(stream_.get(), sums, nullptr, bias, y);
        return;
    }
    const float* so_far = nullptr;
    if (on_.matrix(&f.neurons.up).rows > 0) {
        ops_.merge(stream_.get(), sums, nullptr, nullptr, y);
        so_far = y;
    }
    const auto add_piece = [&](ggml::DeviceNeurons piece, bool last) {
        p.check_stop();
        piece.threshold = activation_threshold(f.neurons, params_.sparse);
        ggml::DeviceLists lists = s.lists;
        lists.n = piece.n;
        ops_.select(stream_.get(), nullptr, 0, nullptr, nullptr, lists);  // all of them
        ops_.partial_ffn(stream_.get(), piece, x, lists, ffn_scratch(i));
        ops_.merge(stream_.get(), sums, so_far, last ? bias : nullptr, y);
        so_far = y;
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

// Chooses the experts of a layer for every row.
void DeviceForward::launch_route(const Router& router, const DeviceInput& x) {
    DeviceScratch& s = scratch_;
    launch_products(x, {product(router.w, s.scores, router.bias)});
    if (router.scale != 1) {
        ops_.scale(stream_.get(), s.scores, nullptr, router.scale,
                   int64_t(x.rows) * router.how.n_expert);
    }
    ggml::Routing how = router.how;
    how.choice_bias = on_.vector(&router.how.choice_bias);
    how.expert_scale = on_.vector(&router.how.expert_scale);
    s.choice.rows = x.rows;
    s.choice.n_used = int(how.n_used);
    s.choice.n_expert = int(how.n_expert);
    ops_.route(stream_.get(), how, s.scores, s.choice);
}

// y = the sum of what the chosen experts give: those that the device has, and at the same time on
// the CPU the others.
template <typename F>
void DeviceForward::launch_experts(const Pass& p, int64_t i, const FeedForward& part,
                                   const DeviceInput& x, float* y, const Kind& kind,
                                   LaunchMode mode, const F& meanwhile) {
    DeviceScratch& s = scratch_;
    const ExpertFrames& experts = *on_.experts;
    const ggml::DeviceFrames frames = experts.frames(part.index);
    const DeviceExchange& exchange = exchange_[size_t(i - first_)];
    const bool meets = cpu_has_part(i, kind);
    if (meets) ops_.publish_experts(stream_.get(), x, s.choice, frames, exchange);
    if (experts.any(part.index)) launch_frames(part, x, frames, false);
    meanwhile();
    ggml::DeviceFrames merged = frames;
    if (meets && visits(part, kind)) {
        if (visit_experts(p, i, part, x, kind)) merged = experts.everywhere();
    } else if (meets) {
        cpu_part_before_merge(p, i, kind, mode);
    }
    ops_.merge_experts(stream_.get(), s.choice, merged, s.expert_out, exchange, x.cols, y);
}

// What the experts in these frames give for their pairs of the last choice.
void DeviceForward::launch_frames(const FeedForward& part, const DeviceInput& x,
                                  const ggml::DeviceFrames& frames, bool visitors) {
    DeviceScratch& s = scratch_;
    const ExpertFrames& experts = *on_.experts;
    const bool gated = experts.gated(part.index);
    const DeviceInput fired = s.expert_fired.as(s.choice.pairs(), part.n_ff);
    DeviceProduct down = experts.product(part.index, gated ? 2 : 1, s.expert_out, visitors);
    DeviceProduct first[2] = {experts.product(part.index, 0, fired.x, visitors)};
    if (gated) first[1] = experts.product(part.index, 1, s.expert_up, visitors);
    first[0].scale = on_.vector(gated ? &part.gate_scale : &part.up_scale);
    first[1].scale = on_.vector(&part.up_scale);
    down.scale = on_.vector(&part.down_scale);
    float* const up = gated ? s.expert_up : nullptr;
    ops_.matmul_experts(stream_.get(), x, s.choice, frames, first, gated ? 2 : 1);
    if (experts.in_rows(part.index)) {
        return launch_values(part, s.choice, frames, fired.x, up, down);
    }
    // Pairs whose experts are elsewhere have any values here; nobody reads them.
    ops_.activation(stream_.get(), part.activation, part.limit, fired, up);
    ops_.matmul_experts(stream_.get(), fired, s.choice, frames, &down, 1);
}

// May experts that the device lacks come to it for these rows? Then visit_experts() sees to them.
bool DeviceForward::visits(const FeedForward& part, const Kind& kind) const {
    return kind.visits && part.routed() && on_.experts->can_visit(part.index);
}

// For rows of a prompt: if the experts that the device lacks have enough rows to pay for their way,
// they come to the device. Else the CPU computes them. Either way they have the same bits.
bool DeviceForward::visit_experts(const Pass& p, int64_t i, const FeedForward& part,
                                  const DeviceInput& x, const Kind& kind) {
    // An expert of 2.9 MB crosses in 115 us; a CPU that reads 60 GB/s computes it for one row in 50
    // us, and for each further one in some 20.
    constexpr int64_t kRows = 4;
    const DeviceExchange& e = exchange_[size_t(i - first_)];
    p.check_stop();
    await(p, e);
    const int64_t pairs = int64_t(kind.rows) * part.n_used;
    std::vector<int32_t> missing;  // blocks, once for each pair
    for (int64_t k = 0; k < pairs; k++) {
        const int32_t block = part.number(e.ids[k]);
        if (!on_.experts->here(block)) missing.push_back(block);
    }
    const auto n = int64_t(missing.size());
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    if (n < kRows * int64_t(missing.size()) || n == 0) {
        compute_cpu_part(p, i, kind);
        return false;
    }
    on_.experts->used(part.index, e.ids, pairs);
    count_experts(p, part, pairs);
    const auto bring = [&](int32_t block, const ExpertFrames::Take& take) {
        p.check_stop();
        const Ffn& f = part.blocks[size_t(block - part.first_block)];
        take(expert_weights(f));
        return true;
    };
    p.counts.transferred += on_.experts->visit(
        stream_.get(), part.index, missing, bring,
        [&](const ggml::DeviceFrames& frames) { launch_frames(part, x, frames, true); });
    return true;
}

// y = widen . experts(narrow . x), or the experts of x themselves.
template <typename F>
void DeviceForward::launch_mixture(const Pass& p, int64_t i, const FeedForward& part,
                                   const DeviceInput& x, float* y, const Kind& kind,
                                   LaunchMode mode, const F& meanwhile) {
    if (!part.width) return launch_experts(p, i, part, x, y, kind, mode, meanwhile);
    const DeviceInput narrow = scratch_.narrow.as(x.rows, part.width);
    const DeviceInput sum = scratch_.narrow_sum.as(x.rows, part.width);
    launch_products(x, {product(part.narrow, narrow.x)});
    ops_.quantise(stream_.get(), narrow);
    launch_experts(p, i, part, narrow, sum.x, kind, mode, meanwhile);
    ops_.quantise(stream_.get(), sum);
    launch_products(sum, {product(part.widen, y)});
}

// y = down . (act(gate . x) * (up . x)), of matrices.
void DeviceForward::launch_matrices(const FeedForward& part, const DeviceInput& x, float* y) {
    const Ffn& f = part.blocks[0];
    DeviceScratch& s = scratch_;
    const DeviceInput fired = s.fired.as(x.rows, part.n_ff);
    const DeviceProduct up = product(f.up, f.gate ? s.up : fired.x, f.up_bias);
    if (f.gate) {
        launch_products(x, {product(f.gate, fired.x, f.gate_bias), up});
    } else {
        launch_products(x, {up});
    }
    if (part.xielu) {
        ops_.xielu(stream_.get(), *part.xielu, fired);
    } else {
        float* const up_of_gate = f.gate ? s.up : nullptr;
        ops_.activation(stream_.get(), part.activation, part.limit, fired, up_of_gate);
    }
    if (part.norms_values) rms_norm_in_place(f.value_norm, part.norm_eps, fired);
    launch_products(fired, {product(f.down, y, f.down_bias)});
    weigh(part, x, y);
}

// y *= sigmoid(share . x), if a part is weighed so.
void DeviceForward::weigh(const FeedForward& part, const DeviceInput& x, float* y) {
    const DeviceRows share = on_.matrix(&part.share);
    if (!share) return;
    launch_products(x, {{share, scratch_.share}});
    ops_.weigh(stream_.get(), y, scratch_.share, x.rows, n_embd());
}

// y = project . (act(gate . x) * the tokens' embeddings for layer i)
void DeviceForward::launch_embedding(int64_t i, const LayerEmbedding& e, const DeviceInput& x,
                                     float* y) {
    const DeviceInput gate = scratch_.embedding.as(x.rows, e.gate.rows);
    launch_products(x, {product(e.gate, gate.x)});
    const float* const own = scratch_.step.embedding + (i - first_) * x.rows * e.gate.rows;
    ops_.activation(stream_.get(), e.activation, {}, gate, own);
    launch_products(gate, {product(e.project, y)});
}

}  // namespace powerinfer
