// How rows are computed on a device: their input, graphs, the CPU's part of split layers, results
// and errors. The operators of a layer are in device_layers.cpp.
#include "forward/device_forward.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "forward/parts/experts.h"
#include "forward/parts/neuron_ffn.h"

namespace powerinfer {

using ggml::Carver;
using ggml::Code;
using ggml::DeviceExchange;
using ggml::Error;

namespace {

// Fewer rows of a prompt never pay for the way of an expert.
constexpr int64_t kVisitRows = 16;

int power_of_two(int64_t n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}

}  // namespace

DeviceForward::DeviceForward(const Model& model, const pi_session_params& params,
                             const std::vector<RopeTable>& ropes)
    : model_(model),
      params_(params),
      on_(*model.device),
      device_(*on_.device),
      ops_(device_.ops()),
      first_(on_.split.first_layer),
      head_(on_.split.head && !params.embedding),
      kv_layout_(device_kv_layout(model, params, model.device_layers())) {
    const std::lock_guard<ggml::DeviceCard> lock(on_.card);
    device_.enter();
    const int64_t n = model.device_layers();
    kv_ = {device_, kv_layout_.bytes(), "the KV cache"};
    const StateLayout states = device_state_layout(model, n);
    state_memory_ = {device_, ggml::carved_bytes<StateSlots>(states, params), "states"};
    Carver state_carver(state_memory_.get(), state_memory_.size());
    states_ = StateSlots(state_carver, states, params);
    memory_ = {device_, device_scratch_bytes(model, params, n), "scratch"};
    carve(1);
    const uint64_t shared = ggml::carved_bytes<DeviceShared>(model, params, n);
    shared_ = {device_, shared, "flags and halves"};
    Carver shared_carver(shared_.get(), shared);
    const DeviceShared both(shared_carver, model, params, n);
    host_step_ = both.step;
    exchange_ = both.exchange;
    for (int64_t i = 0; i < n; i++) {
        exchange_[size_t(i)].arrived = scratch_.arrived + i;
        exchange_[size_t(i)].epoch = scratch_.step.epoch;
        exchange_[size_t(i)].waited = scratch_.waited;
        exchange_[size_t(i)].limit = device_.longest_wait_ns();
        exchange_[size_t(i)].late = scratch_.late;
    }
    mark_cold_rows();
    stream_ = {device_, device_.new_stream()};
    device_.zero(stream_.get(), scratch_.arrived, uint64_t(n) * sizeof(uint32_t));
    counted_.resize(model.ffns.size() * 3 + 2);
    device_.zero(stream_.get(), scratch_.counts, counted_.size() * sizeof(counted_[0]));
    // What is between the states of layers is saved with them.
    device_.zero(stream_.get(), state_memory_.get(), state_memory_.size());
    for (size_t i = 0; i < ropes.size(); i++) {
        const std::vector<double>& frequency = ropes[i].frequency;
        device_.copy_in(stream_.get(), scratch_.frequency[i], frequency.data(),
                        frequency.size() * sizeof(double));
        rope_magnitude_.push_back(ropes[i].magnitude);
    }
    device_.wait(stream_.get());
}

// Divides the session's memory into the arrays for n rows.
void DeviceForward::carve(int64_t n) {
    Carver carver(memory_.get(), memory_.size());
    scratch_ = DeviceScratch(carver, model_, params_, model_.device_layers(), n);
}

void DeviceForward::mark_cold_rows() {
    cold_rows_.resize(exchange_.size());
    every_row_ = std::make_unique<bool[]>(size_t(device_rows(params_)));
    std::fill_n(every_row_.get(), device_rows(params_), true);
    for (int64_t i = first_; i < model_.config.n_layer; i++) {
        const std::vector<int32_t>& cold = on_.cold_rows[size_t(i)];
        if (on_.cold[size_t(i)].n == int64_t(cold.size())) continue;
        std::vector<uint8_t>& rows = cold_rows_[size_t(i - first_)];
        rows.resize(size_t(on_.cold[size_t(i)].n));
        for (int32_t row : cold) rows[size_t(row)] = 1;
    }
}

void DeviceForward::run(const Pass& p) {
    const std::lock_guard<ggml::DeviceCard> lock(on_.card);
    device_.enter();
    if (std::exchange(uncounted_, true)) counted_ = counts_now();  // skips what a failed call left
    const Batch& batch = p.work.batch;
    for (int64_t begin = 0, end = 0; begin < batch.n; begin = end) {
        // Rows are computed together if they agree in both flags. Each masked row needs a list of
        // neurons, of which there are kDeviceLists.
        const bool masked = batch.masked[begin], uploads_cold = batch.uploads_cold[begin];
        const int64_t most =
            masked ? std::min(device_rows(params_), kDeviceLists) : device_rows(params_);
        while (end < batch.n && end - begin < most && batch.masked[end] == masked &&
               batch.uploads_cold[end] == uploads_cold) {
            end++;
        }
        p.check_stop();
        rows(p, begin, end);
    }
    count(p);
    uncounted_ = false;
}

std::vector<unsigned long long> DeviceForward::counts_now() {
    std::vector<unsigned long long> now(counted_.size());
    device_.copy_out(stream_.get(), now.data(), scratch_.counts, now.size() * sizeof(now[0]));
    device_.wait(stream_.get());
    return now;
}

// Adds up what the device has done since the last call: neurons, and time in which it waited for
// the CPU. Throws Error(device) if a wait reached its limit, because the device then went on
// without the CPU's sums.
void DeviceForward::count(const Pass& p) {
    const Config& c = model_.config;
    std::vector<unsigned long long> now = counts_now();
    const size_t waited = size_t(scratch_.waited - scratch_.counts), late = waited + 1;
    if (now[late]) {
        release();
        throw Error(
            Code::device,
            ggml::format("%s: the CPU did not send its half of a layer within %.1f s, and "
                         "the device waits no longer",
                         device_.info().id.c_str(), double(device_.longest_wait_ns()) / 1e9));
    }
    for (const FeedForward* part : model_.ffns) {
        if (part->layer < first_ || part->layer >= c.n_layer) continue;
        // Experts that are matrices were counted when they were chosen, of others only their rows.
        const bool routed = part->routed();
        if (routed && !on_.experts->in_rows(part->index)) continue;
        const size_t at = size_t(part->index) * 3;
        const auto did = [&](size_t k) { return int64_t(now[at + k] - counted_[at + k]); };
        const auto to_part = size_t(part->index);
        const int64_t all = p.work.batch.n * part->n_ff;
        const bool dense = !part->blocks[0].neurons.n;
        for (ggml::NeuronCounts* to : {&p.counts.neurons[to_part], &p.counts.on_device[to_part]}) {
            to->proposed += dense ? all : did(0);
            to->computed += dense ? all : did(1);
            to->fired += dense ? all : did(2);
        }
        if (!routed) p.counts.on_device[to_part].rows += p.work.batch.n;
    }
    p.counts.waited_for_cpu += now[waited] - counted_[waited];
    counted_ = std::move(now);
}

void DeviceForward::rows(const Pass& p, int64_t begin, int64_t end) {
    const Batch& batch = p.work.batch;
    const Config& c = model_.config;
    const int64_t n = end - begin;
    if (scratch_.residual.rows != n) carve(n);
    Kind kind{batch.masked[begin], batch.uploads_cold[begin], false, false, int(n), 0, 1};
    // Graphs pay off for kinds that come again: generated rows, and single ones. The kinds of
    // prompts change with every length.
    const bool again =
        !kind.uploads_cold && (n == 1 || (batch.generated[begin] && n <= kDeviceLists));
    kind.visits = !again && n >= kVisitRows && on_.experts && on_.experts->can_visit();
    // A power of two, so that there are few kinds; no more than there is room for.
    const int64_t most_blocks = scratch_.attention.blocks;
    for (int64_t t = begin; t < end; t++) {
        kind.kept += batch.result[t] != nullptr;
        const int64_t blocks = ggml::device_attention_blocks(batch.position[t] + 1);
        const int64_t rounded = std::min<int64_t>(power_of_two(blocks), most_blocks);
        kind.blocks = std::max(kind.blocks, int(rounded));
    }
    fill_step(p, begin, end);
    const RowsBySequence& groups = p.work.state.by_sequence;
    kind.keeps = std::any_of(groups.sequences, groups.sequences + groups.n,
                             [](const SequenceRows& s) { return s.kept >= 0; });
    if (on_.experts) {
        const auto generated = std::count(batch.generated + begin, batch.generated + end, true);
        on_.experts->begin(stream_.get(), n, 2 * generated > n);
    }
    const uint64_t step_bytes =
        ggml::carved_bytes<DeviceStep>(model_, params_, model_.device_layers(), n);
    try {
        device_.copy_in(stream_.get(), scratch_.step.epoch, host_step_, step_bytes);
        if (params_.stepwise || !again) {
            launch_rows(p, kind, params_.stepwise ? LaunchMode::stepwise : LaunchMode::by_layer);
        } else {
            const Graphs& graphs = recorded(p, kind);
            auto next = graphs.begin();
            device_.launch(next++->get(), stream_.get());
            for (int64_t i = first_; i < c.n_layer; i++) {
                if (!cpu_has_part(i, kind)) continue;
                compute_cpu_part(p, i, kind);
                if (next < graphs.end()) device_.launch(next++->get(), stream_.get());
            }
        }
        copy_results(p, begin, kind);
        device_.wait(stream_.get());
    } catch (...) {
        release();
        throw;
    }
    p.counts.transferred += step_bytes;
    for (const FeedForward* part : model_.ffns) {
        const int64_t i = part->layer;
        if (i < first_ || i >= c.n_layer) continue;
        const bool meets = part == &ffn(i) && cpu_has_part(i, kind);
        if (part->routed()) {
            if (!meets) count_experts(p, *part, n * part->n_used);
            continue;
        }
        if (masks(i, kind)) p.counts.predicted[size_t(part->index)] += n;
        if (!meets) p.counts.neurons[size_t(part->index)].rows += n;
    }
    if (on_.experts) move_experts(p);
}

// Copies logits of the kept rows to the CPU, kDeviceResults at a time. If the CPU has the head, it
// gets the residual stream of all rows.
void DeviceForward::copy_results(const Pass& p, int64_t begin, const Kind& kind) {
    const Config& c = model_.config;
    if (!kind.kept) return;
    if (!head_) {
        const uint64_t bytes = uint64_t(kind.rows * c.n_embd) * sizeof(float);
        device_.copy_out(stream_.get(), p.work.x + begin * c.n_embd, scratch_.step.x, bytes);
        p.counts.transferred += bytes;
        return;
    }
    const uint64_t bytes = uint64_t(c.n_vocab) * sizeof(float);
    int64_t k = 0;
    for (int64_t t = begin; t < begin + kind.rows; t++) {
        float* const result = p.work.batch.result[t];
        if (!result) continue;
        if (k > 0 && k % kDeviceResults == 0) {
            launch_head(kind, k, std::min(kDeviceResults, kind.kept - k));
        }
        device_.copy_out(stream_.get(), result,
                         scratch_.result_logits + k % kDeviceResults * c.n_vocab, bytes);
        k++;
    }
    p.counts.transferred += uint64_t(kind.kept) * bytes;
}

const DeviceForward::Graphs& DeviceForward::recorded(const Pass& p, const Kind& kind) {
    auto known = recorded_.find(kind);
    if (known == recorded_.end()) {
        if (recorded_.size() == kMostRecorded) {
            recorded_.erase(std::min_element(
                recorded_.begin(), recorded_.end(),
                [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
        }
        known = recorded_.insert({kind, Recorded{record(p, kind)}}).first;
    }
    known->second.used = ++uses_;
    return known->second.graphs;
}

DeviceForward::Graphs DeviceForward::record(const Pass& p, const Kind& kind) {
    Graphs graphs;
    recording_ = &graphs;
    device_.begin_capture(stream_.get());
    try {
        launch_rows(p, kind, LaunchMode::recorded);
    } catch (...) {
        // The capture must end in any case.
        end_graph(graphs);
        throw;
    }
    end_graph(graphs);
    return graphs;
}

void DeviceForward::end_graph(Graphs& graphs) {
    graphs.emplace_back(device_, device_.end_capture(stream_.get()));
}

int DeviceForward::most_nodes() const {
    int most = 0;
    for (const auto& [kind, recorded] : recorded_) {
        int nodes = 0;
        for (const auto& graph : recorded.graphs) nodes += device_.nodes(graph.get());
        most = std::max(most, nodes);
    }
    return most;
}

void DeviceForward::fill_step(const Pass& p, int64_t begin, int64_t end) {
    const Batch& batch = p.work.batch;
    const Config& c = model_.config;
    const int64_t n = end - begin;
    Carver carver(host_step_,
                  ggml::carved_bytes<DeviceStep>(model_, params_, model_.device_layers(), n));
    const DeviceStep step(carver, model_, params_, model_.device_layers(), n);
    std::memcpy(step.x, p.work.x + begin * c.n_embd, size_t(n * c.n_embd) * sizeof(float));
    do {
        epoch_++;
    } while (epoch_ == 0 || epoch_ == ggml::kReleased);
    *step.epoch = epoch_;
    const int64_t n_kinds = kv_layout_.n_kinds(), per_table = pages_of(params_.n_ctx);
    const int64_t per_kind = std::min<int64_t>(n, params_.n_seq) * per_table;
    std::vector<const int32_t*> tables;  // of pages of the first class, of the sequences so far
    int32_t* kept = step.kept;
    for (int64_t k = 0; k < n; k++) {
        const int64_t t = begin + k;
        step.position[k] = batch.position[t];
        if (batch.result[t]) *kept++ = int32_t(k);
        const auto known = std::find(tables.begin(), tables.end(), batch.pages[t]);
        const int64_t at = (known - tables.begin()) * per_table;
        if (known == tables.end()) tables.push_back(batch.pages[t]);
        // Rows of a sequence share a table of pages for each class; the last row has the most.
        const int32_t last = batch.position[t] + 1;
        for (int64_t kind = 0; kind < n_kinds; kind++) {
            step.slot[kind * n + k] = batch.slots_of(kind)[t];
            std::memcpy(step.pages + kind * per_kind + at, batch.pages_of(kind)[t],
                        size_t(pages_of(last)) * sizeof(int32_t));
        }
        const int64_t width = model_.layer_embd.width;
        for (int64_t i = first_; i < c.n_layer; i++) {
            std::copy_n(p.work.embedding.all + (t * c.n_layer + i) * width, width,
                        step.embedding + ((i - first_) * n + k) * width);
            const Attention* const a = model_.layers[size_t(i)].find<Attention>();
            if (!a) continue;
            const int64_t first = a->window ? std::max<int64_t>(0, last - a->window) : 0;
            const int64_t of = kv_layout_.kind(a->kv_of >= 0 ? a->kv_of : i) * per_kind + at;
            step.rows[(i - first_) * n + k] = {scratch_.step.pages + of, int32_t(first), last};
        }
    }
    fill_states(p, begin, end, step);
}

// ---- The CPU's part -----------------------------------------------------------------------------

// Waits until the device has published the input of a layer's FFN. Throws Error(device) if the
// device comes to rest without that, and Error(cancelled).
void DeviceForward::await(const Pass& p, const DeviceExchange& e) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::microseconds kSpin(100), kAsk(10000);
    const auto published = [&] { return __atomic_load_n(e.published, __ATOMIC_ACQUIRE) == epoch_; };
    const Clock::time_point start = Clock::now();
    Clock::time_point asked = start;
    if (published()) return;
    device_.flush(stream_.get());
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

// The merge waits on the device, where it spins, until the CPU has sent its sums. That is short
// unless the CPU has to wait for the disk. In that case the merge is launched only after the CPU's
// part: here, or in a graph of its own.
void DeviceForward::cpu_part_before_merge(const Pass& p, int64_t i, const Kind& kind,
                                          LaunchMode mode) {
    if (mode == LaunchMode::recorded && cpu_may_read(p)) {
        end_graph(*recording_);
        device_.begin_capture(stream_.get());
    }
    if (mode == LaunchMode::recorded || (mode == LaunchMode::by_layer && !cpu_may_read(p))) return;
    if (mode == LaunchMode::stepwise) device_.wait(stream_.get());
    compute_cpu_part(p, i, kind);
}

void DeviceForward::compute_cpu_part(const Pass& p, int64_t i, const Kind& kind) {
    const Config& c = model_.config;
    const DeviceExchange& e = exchange_[size_t(i - first_)];
    p.check_stop();
    await(p, e);
    if (ffn(i).routed()) return compute_experts(p, i, kind);
    const bool masked = masks(i, kind);
    const int64_t listed = std::accumulate(e.count, e.count + (masked ? kind.rows : 1), int64_t(0));
    if (listed == 0) {  // the CPU has none of the listed neurons, so the device does not wait
        p.counts.neurons[size_t(ffn(i).index)].rows += kind.rows;
        return;
    }
    p.counts.answers++;
    compute_cold(p, i, kind);
    __atomic_store_n(e.answered, epoch_, __ATOMIC_RELEASE);
    p.counts.transferred += uint64_t(2 * kind.rows * c.n_embd) * sizeof(float) +
                            uint64_t(masked ? listed : 0) * sizeof(int32_t);
}

// Computes the sums of the cold neurons that the device has listed.
void DeviceForward::compute_cold(const Pass& p, int64_t i, const Kind& kind) {
    const DeviceExchange& e = exchange_[size_t(i - first_)];
    ggml::Neurons neurons = on_.cold[size_t(i)];
    neurons.threshold = activation_threshold(neurons, params_.sparse);
    const bool masked = masks(i, kind);
    ggml::NeuronMask mask;
    if (const std::vector<uint8_t>& some = cold_rows_[size_t(i - first_)];
        masked || !some.empty()) {
        mask.masked = every_row_.get();
        if (!masked) mask.unpredicted = some.data();
    }
    NeuronBlock block{ffn(i), 0, neurons, e.x, kind.rows, mask};
    if (masked && kind.rows == 1) {
        block.listed = e.ids;
        block.n_listed = *e.count;
    } else if (masked) {
        float* const score = p.work.predictor.score;
        std::fill_n(score, kind.rows * neurons.n, -1.0f);
        for (int64_t t = 0; t < kind.rows; t++) {
            const int32_t* const ids = e.ids + t * ffn(i).n_ff;
            for (int32_t k = 0; k < e.count[t]; k++) score[t * neurons.n + ids[k]] = 1;
        }
        mask.score = score;
    }
    const int32_t next = next_split(i);
    if (next >= 0 && !masks(next, kind)) block.next = first_block(next);
    compute_neurons(p, block, e.sums);
}

// Pairs of rows and experts that the device has computed.
void DeviceForward::count_experts(const Pass& p, const FeedForward& part, int64_t pairs) {
    // Of neurons the device counts those that fire.
    const int64_t n = part.blocks[0].neurons.n > 0 ? 0 : pairs * part.n_ff;
    for (auto* counts : {&p.counts.neurons, &p.counts.on_device}) {
        ggml::NeuronCounts& to = (*counts)[size_t(part.index)];
        to = {to.rows + pairs, to.proposed + n, to.computed + n, to.fired + n};
    }
}

// Computes the chosen experts that the device does not have, and counts those that it has.
void DeviceForward::compute_experts(const Pass& p, int64_t i, const Kind& kind) {
    const FeedForward& part = ffn(i);
    const DeviceExchange& e = exchange_[size_t(i - first_)];
    ExpertFrames& experts = *on_.experts;
    const int64_t pairs = kind.rows * part.n_used;
    int64_t here = 0;
    for (int64_t k = 0; k < pairs; k++) here += experts.here(part.number(e.ids[k]));
    experts.used(part.index, e.ids, pairs);
    count_experts(p, part, here);
    p.counts.transferred += uint64_t(pairs) * sizeof(int32_t);
    if (here == pairs) return;  // the device does not wait
    p.counts.answers++;
    ggml::SharedInput& x = p.work.read;
    x.set(e.x, kind.rows, part.columns(n_embd()));
    answer_experts(
        p, part, e.ids, [&](int64_t expert) { return !experts.here(part.number(expert)); }, x,
        e.sums);
    __atomic_store_n(e.answered, epoch_, __ATOMIC_RELEASE);
    p.counts.transferred +=
        uint64_t((kind.rows + pairs - here) * part.columns(n_embd())) * sizeof(float);
}

// Sends experts that pay to the device, from RAM. They are there for the next rows or the ones
// after them: nobody waits for copies.
void DeviceForward::move_experts(const Pass& p) {
    const auto ready = [&](int32_t block) { return p.source.ready(block); };
    const auto bring = [&](int32_t block, const ExpertFrames::Take& take) {
        const FeedForward& part = *model_.ffns[size_t(on_.experts->part_of(block))];
        const Ffn& f = part.blocks[size_t(block - part.first_block)];
        if (f.neurons.n > 0) {
            take(expert_weights(f));
            return true;
        }
        const NeuronSource::Matrices w = p.source.matrices(p.context, block, f, 0);
        take({w.gate, w.up, w.down, f.gate_bias, f.up_bias, f.down_bias});
        return true;
    };
    p.counts.transferred += p.source.pages_experts() ? on_.experts->move(ready, bring)
                                                     : on_.experts->move(nullptr, bring);
}

void DeviceForward::release() {
    for (const DeviceExchange& e : exchange_) {
        __atomic_store_n(e.answered, ggml::kReleased, __ATOMIC_RELEASE);
    }
    try {
        device_.wait(stream_.get());
        device_.zero(stream_.get(), scratch_.arrived, exchange_.size() * sizeof(uint32_t));
        device_.zero(stream_.get(), scratch_.late, sizeof(*scratch_.late));
        device_.wait(stream_.get());
    } catch (const Error&) {
        // The error that led here is the one to report.
    }
    for (const DeviceExchange& e : exchange_) __atomic_store_n(e.answered, 0u, __ATOMIC_RELEASE);
}

// ---- Pages of keys and values -------------------------------------------------------------------

void DeviceForward::copy_page(int64_t kind, int32_t from, int32_t to) {
    std::vector<uint8_t> page(static_cast<size_t>(kv_layout_.page_bytes(kind)));
    read_page(kind, from, kKvPage, page.data());
    write_page(kind, to, kKvPage, page.data());
}

void DeviceForward::read_page(int64_t kind, int32_t page, int64_t n, uint8_t* out) {
    each_run(kind, page, n, [&](uint8_t* run, int64_t size) {
        device_.copy_out(stream_.get(), out, run, uint64_t(size));
        out += size;
    });
}

void DeviceForward::write_page(int64_t kind, int32_t page, int64_t n, const uint8_t* from) {
    each_run(kind, page, n, [&](uint8_t* run, int64_t size) {
        device_.copy_in(stream_.get(), run, from, uint64_t(size));
        from += size;
    });
}

template <typename F>
void DeviceForward::each_run(int64_t kind, int32_t page, int64_t n, const F& f) {
    const std::lock_guard<ggml::DeviceCard> lock(on_.card);
    device_.enter();
    kv_layout_.each_run(kv_.get(), kind, page,
                        [&](uint8_t* at, const KvRun& run) { f(at, n * run.bytes / kKvPage); });
    device_.wait(stream_.get());
}

}  // namespace powerinfer
