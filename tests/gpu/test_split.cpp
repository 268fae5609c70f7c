// Whole models that a device and the CPU share, against the CPU alone: at several budgets, as one
// graph per row and step by step, from loading to the last logit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "circle.h"
#include "device/device_model.h"
#include "engine/sessions.h"
#include "forward/device_forward.h"
#include "gpu/device_arrays.h"
#include "gpu/splits.h"
#include "memory/device_scratch.h"
#include "session/state.h"

using namespace splits;

namespace {

// For 8-bit inputs: one that is rounded otherwise is off by a step.
constexpr double kQuantised = 2e-2;

// Kernels of a row besides those of its layers: RoPE's table, the last norm, the head.
constexpr int kNodesOfRow = 3;
// Of a layer: 13 without a predictor, 17 at most (test_nodes.cpp has each kind of layer; heads of
// 16 values take one more). Each takes a microsecond or two on a GPU.
constexpr int kNodesOfLayer = 17;

// Tolerance: the device quantises the inputs of rows that the CPU decodes, and adds in another
// order.
void test_shape(const Shape& shape, int32_t sparse, double tolerance) {
    const std::string path = folder / "split.gguf";
    tiny::write(tiny::describe(shape), path);
    pi_session_params params = session_params();
    params.sparse = sparse;
    params.type_k = params.type_v = uint32_t(shape.window ? DType::F16 : DType::F32);
    const Tokens tokens = random_tokens(12, 2);  // a row takes milliseconds here
    const auto whole = load(path);
    Session cpu(whole, params);
    const size_t n_prompt = 6;
    const Floats expected = logits(cpu, tokens, 96, n_prompt);
    const Range range = budgets(path, params);
    // In the quick circle: the least budget or the largest, and one between, other ones each time.
    static int number = 0;
    const int edge = number % 2 * 5, between = 1 + number % 4;
    number++;
    for (int i = 0; i <= 5; i++) {
        if (!full_circle() && i != edge && i != between) continue;
        const uint64_t budget = range.least + (range.most - range.least) * uint64_t(i) / 5;
#ifdef GGML_SHIM
        shim::set_memory(1 << 28);
#endif
        const auto model = load_on(path, budget, params);
        const ggml::Device& device = *model->device->device;
        Floats got;
        {
            // A budget that splits layers is used up.
            const Plan plan = make_plan(*model, params);
            const DeviceSplit& split = model->device->split;
            const auto splits = [](const std::vector<int32_t>& slot) { return !slot.empty(); };
            CHECK(total(plan.parts, Tier::gpu) > 0.95 * double(budget) ||
                  std::none_of(split.slot.begin(), split.slot.end(), splits));
            Session session(model, params);
            // What opening a card takes is part of the plan; the shim takes nothing.
            const uint64_t taken = device.allocated_bytes() + device.context_bytes();
            CHECK(taken == total(plan.parts, Tier::gpu));
            CHECK(taken <= budget);
            got = logits(session, tokens, 96, n_prompt);
            // No neuron is added or left out.
            for (size_t l = 0; l < cpu.counts.neurons.size(); l++) {
                const ggml::NeuronCounts &a = session.counts.neurons[l], &b = cpu.counts.neurons[l];
                CHECK(a.rows == b.rows && a.proposed == b.proposed);
                CHECK(std::abs(a.computed - b.computed) * 50 <= b.computed);
                CHECK(std::abs(a.fired - b.fired) * 50 <= b.fired);
                CHECK(session.counts.predicted[l] == cpu.counts.predicted[l]);
            }
            // A row by itself is a graph.
            session.truncate(0, 11);
            logits(session, {tokens[11]}, 1, 0);
            const int nodes = session.device()->most_nodes();
            CHECK(nodes > 8 && nodes <= kNodesOfRow + kNodesOfLayer * model->device_layers());
            CHECK(device.allocated_bytes() <= budget);
        }
        const double apart = distance(got, expected);
        if (!(apart < tolerance)) std::fprintf(stderr, "budget %d: %g\n", i, apart);
        CHECK(apart < tolerance);
        if (i == 5) {
            CHECK(neurons_on_device(*model) == whole->config.n_layer * whole->ffns[0]->n_ff);
            CHECK(model->device->split.head);
        }

        // The same bits for every number of threads, in other calls, and step by step.
        pi_session_params other = params;
        other.n_threads = other.n_threads_batch = 3;
        other.stepwise = true;
        Session session(model, other);
        CHECK(same(logits(session, tokens, 7, n_prompt), got));
#ifdef GGML_SHIM
        CHECK(shim::most_allocated() <= budget);
#endif
    }
}

// The kinds of layers; each with all that it can have of biases, windows and predictors.
void test_shapes() {
    test_shape(Shape{}, PI_SPARSE_AUTO, 1e-5);
    Shape s;
    s.biases = s.tied = true, s.n_head_kv = 2, s.head_dim = 32, s.type = DType::Q4_0;
    test_shape(s, PI_SPARSE_AUTO, kQuantised);
    s = by_neuron(DType::F32);
    test_shape(s, PI_SPARSE_EXACT, 1e-5);
    test_shape(s, PI_SPARSE_AUTO, 1e-5);
    s = by_neuron(DType::F16);
    s.window = 7;
    test_shape(s, PI_SPARSE_EXACT, 2e-4);
    s = by_neuron(DType::Q8_0);
    s.biases = s.decided = true;
    test_shape(s, PI_SPARSE_PREDICTOR, kQuantised);
    test_shape(by_neuron(DType::Q4_0), PI_SPARSE_EXACT, kQuantised);
    s = by_neuron(DType::F32);
    s.sketch = true, s.predictor_rank = 0;
    test_shape(s, PI_SPARSE_AUTO, 1e-5);
}

// Almost all neurons on the device: it does not wait for rows that need none of the others, and a
// stop or a late answer finds the flags as they should be.
void test_empty_halves() {
    Split split;
    const Range range = budgets(split.path, split.params);
    split.params.sparse = PI_SPARSE_PREDICTOR;
    split.params.sparse_threshold = 1;
    const Tokens tokens = random_tokens(24, 5);
    const Floats expected = logits(load(split.path), tokens, split.params);
    split.model = load_on(split.path, range.most - 2000, split.params);
    const int64_t elsewhere =
        split.model->config.n_layer * split.model->ffns[0]->n_ff - neurons_on_device(*split.model);
    CHECK(elsewhere > 0 && elsewhere < 20);
    static int left;
    left = -1;
    split.params.should_stop = [](void*) { return left-- == 0; };
    Floats got;
    for (bool stepwise : {false, true}) {
        split.params.stepwise = stepwise;
        Session session(split.model, split.params);
        got = logits(session, tokens, 1);
        CHECK(distance(got, expected) < 1e-5);
        int64_t rows = 0;  // of layers that are shared
        for (int64_t i = 0; i < split.model->config.n_layer; i++) {
            CHECK(session.counts.neurons[size_t(i)].rows == int64_t(tokens.size()));
            if (split.model->device->split.splits(i)) rows += int64_t(tokens.size());
        }
        CHECK(session.counts.answers > 0 && session.counts.answers < rows);
        session.truncate(0, 0);
        left = 5;
        CHECK_THROWS(cancelled, logits(session, tokens, 1));
        left = -1;
        session.truncate(0, 0);
        CHECK(same(logits(session, tokens), got));
    }
}

// What went over the bus, and what each tier read and computed, to the byte.
void test_figures() {
    Split split;
    const Model& m = *split.model;
    const Config& c = m.config;
    split.params.sparse = PI_SPARSE_PREDICTOR;
    const Tokens tokens = random_tokens(8, 6);
    const uint64_t step = ggml::carved_bytes<DeviceStep>(m, split.params, m.device_layers(), 1);
    for (bool stepwise : {false, true}) {
        split.params.stepwise = stepwise;
        Session session(split.model, split.params);
        logits(session, tokens, 1);
        const Counts& did = session.counts;
        uint64_t listed = 0, fired = 0;  // by the CPU for the device, on the device
        for (size_t i = 0; i < m.layers.size(); i++) {
            const ggml::NeuronCounts &all = did.neurons[i], &there = did.on_device[i];
            CHECK(there.rows == (m.device->split.has(int64_t(i)) ? all.rows : 0));
            CHECK(there.computed <= all.computed && there.fired <= all.fired);
            if (!m.device->split.has(int64_t(i))) continue;
            listed += uint64_t(all.proposed - there.proposed);
            fired += uint64_t(there.fired);
        }
        CHECK(listed > 0 && fired > 0);
        const uint64_t rows = tokens.size();
        CHECK(did.transferred == rows * (step + uint64_t(c.n_vocab) * 4) +
                                     uint64_t(did.answers) * uint64_t(c.n_embd) * 8 + listed * 4);
        const Traffic sum = traffic(m, did, false), there = device_traffic(m, did, false);
        // Layers are alike; the rest of attention's bytes is the last norm's.
        CHECK(there.attention <= sum.attention && there.attention > 0);
        CHECK(there.kv * uint64_t(c.n_layer) == sum.kv * uint64_t(m.device_layers()));
        CHECK(there.predictor * uint64_t(c.n_layer) == sum.predictor * uint64_t(m.device_layers()));
        CHECK(sum.kv > 0 && sum.predictor > 0);
        CHECK(there.head == (m.device->split.head ? sum.head : 0));
        CHECK(there.ffn > 0 && there.ffn < sum.ffn);
        // Step by step the answer is there before the device asks for it.
        CHECK(did.waited_for_device > 0 || stepwise);
        CHECK(did.waited_for_cpu < 60000000000);
    }

    // 7B with all layers split, a tenth of the neurons active and all of these in RAM: at most 48
    // KB per layer and token, with a context of 4096.
    Model model;
    Config& large = model.config;
    large.n_embd = 4096, large.n_vocab = 32000, large.n_layer = 32;
    model.layers.resize(32);
    pi_session_params params = pi_session_default_params();
    params.n_ctx = 4096;
    const uint64_t per_row = ggml::carved_bytes<DeviceStep>(model, params, large.n_layer, 1) +
                             uint64_t(large.n_vocab) * 4;
    const uint64_t per_layer = uint64_t(large.n_embd) * 8 + 11008 / 10 * 4;
    CHECK(per_layer + per_row / uint64_t(large.n_layer) <= 48 << 10);
}

// More than a page of positions: shared, copied, saved on the device and loaded on the CPU. The
// pool has just enough pages.
void test_pages() {
    Split split;
    const Tokens tokens = random_tokens(75, 2);
    const auto whole = load(split.path);
    const Floats expected = logits(whole, tokens, split.params);
    pi_session_params pool = split.params;
    pool.n_kv = 192;
    Session session(split.model, pool);
    const Floats got = logits(session, tokens);
    CHECK(distance(got, expected) < 1e-5);
    const int64_t vocab = whole->config.n_vocab;
    const Tokens rest(tokens.begin() + 70, tokens.end());
    const Floats end(got.end() - 5 * vocab, got.end());

    // The copy writes into a page that both have.
    CHECK(session.free_positions() == 64);
    session.copy(0, 1, 70);
    CHECK(same(logits(session, rest, 96, SIZE_MAX, 1), end));
    session.truncate(0, 70);
    CHECK(same(logits(session, rest), end));

    std::vector<uint8_t> state(size_t(state_size(session, 0)));
    save_state(session, 0, state.data());
    Session cpu(whole, split.params);
    load_state(cpu, 0, state.data(), state.size());
    cpu.truncate(0, 70);
    CHECK(distance(logits(cpu, rest), end) < 1e-5);
    // And back.
    save_state(cpu, 0, state.data());
    CHECK_THROWS(context, load_state(session, 1, state.data(), state.size()));
    CHECK(session.length(1) == 75);
    session.truncate(0, 0);
    load_state(session, 1, state.data(), state.size());
    session.truncate(1, 70);
    CHECK(distance(logits(session, rest, 96, SIZE_MAX, 1), end) < 1e-5);
}

// A row by itself that begins a page: the device gets the page's number with it, and does not go on
// with the one that stood there before, of the other sequence.
void test_rows_that_begin_a_page() {
    Split split;
    pi_session_params pool = split.params;
    pool.n_kv = 192;
    Session session(split.model, pool);
    const int64_t vocab = split.model->config.n_vocab;
    Floats expected[2];
    std::vector<uint8_t> states[2];
    Tokens last[2];
    for (int32_t seq : {0, 1}) {
        const Tokens tokens = random_tokens(65, uint64_t(20 + seq));
        last[seq] = {tokens.back()};
        const Floats all = logits(session, tokens, 96, SIZE_MAX, seq);
        expected[seq].assign(all.end() - vocab, all.end());
        session.truncate(seq, 64);
        states[seq].resize(size_t(state_size(session, seq)));
        save_state(session, seq, states[seq].data());
        session.truncate(seq, 0);
    }
    int32_t before = -1;
    for (int round = 0; round < 4; round++) {
        const int32_t seq = round % 2;
        if (seq == 0) session.truncate(1, 0);
        session.truncate(seq, 0);
        load_state(session, seq, states[seq].data(), states[seq].size());
        CHECK(same(logits(session, last[seq], 1, SIZE_MAX, seq), expected[seq]));
        const int32_t page = session.sequences().pages(0, seq)[1];
        CHECK(page != before);
        before = page;
        session.truncate(seq, 64);  // the page is free for the other one
    }
}

// Layers with a window on the device, whose pages there hold no more than what it needs: the bits
// are those of a session that keeps all positions, and saved states go to either and to the CPU.
void test_windows() {
    Description d = tiny::describe([] {
        Shape shape = by_neuron(DType::F32);
        shape.window = 50;
        return shape;
    }());
    d.keys["llama.context_length"] = uint32_t(640);
    d.keys["llama.attention.sliding_window_pattern"] = std::vector<int32_t>{1, 0, 1};
    const std::string path = folder / "windows.gguf";
    tiny::write(d, path);
    pi_session_params params = session_params(1, 32);
    params.n_ctx = params.n_batch = 640, params.n_seq = 2;
    const Range range = budgets(path, params);
    const auto model = load_on(path, range.most, params);
    CHECK(model->device_layers() == 3);
    const Tokens tokens = random_tokens(600, 3), rest = random_tokens(30, 4);
    const auto run = [&](int64_t n_kv_old) {
        pi_session_params how = params;
        how.n_kv_old = n_kv_old;
        Session session(model, how);
        const std::vector<KvClass>& classes = session.sequences().kv().classes();
        CHECK(classes.size() == 2 && classes[1].n_pages == (n_kv_old ? 20 : 6));
        Floats out = logits(session, tokens, 100);
        session.copy(0, 1, 590);
        for (const int32_t seq : {1, 0}) {
            const Floats more = logits(session, rest, 7, SIZE_MAX, seq);
            out.insert(out.end(), more.begin(), more.end());
        }
        std::vector<uint8_t> state(size_t(state_size(session, 1)));
        save_state(session, 1, state.data());
        session.truncate(0, 0);
        load_state(session, 0, state.data(), state.size());
        const Floats more = logits(session, {rest[0]}, 1);
        out.insert(out.end(), more.begin(), more.end());
        return out;
    };
    const Floats tight = run(0);
    CHECK(same(tight, run(-1)) && same(tight, run(INT64_MAX)));
}

// Prompts of two sequences in one call, then generated tokens of both: every row has the bits that
// it has by itself.
void test_batches() {
    for (bool head : {true, false}) {
        Split split;
        split.params.sparse = PI_SPARSE_AUTO;
        const Range range = budgets(split.path, split.params);
        const uint64_t budget = head ? (range.least + range.most) / 2 : range.least;
        split.model = load_on(split.path, budget, split.params);
        CHECK(split.model->device->split.head == head);
        const size_t n_prompt = 60, n = n_prompt + 9;  // more than a tile, and than kDeviceResults
        const Tokens tokens = random_tokens(n, 8);
        std::vector<int32_t> seq(n);
        std::vector<char> keep(n), generated(n);
        for (size_t t = 0; t < n; t++) {
            seq[t] = t % 3 == 0;
            keep[t] = t % 5 != 2;
            generated[t] = t >= n_prompt;
        }
        const auto result = [&](std::initializer_list<size_t> calls) {
            Session session(split.model, split.params);
            Floats out;
            size_t begin = 0;
            for (size_t end : calls) {
                const auto flags = [&](const std::vector<char>& v) {
                    return reinterpret_cast<const bool*>(v.data() + begin);
                };
                eval(session,
                     Tokens(tokens.begin() + ptrdiff_t(begin), tokens.begin() + ptrdiff_t(end)),
                     {seq.data() + begin, flags(keep), flags(generated)});
                for (size_t t = begin; t < end; t++) {
                    if (keep[t]) append_logits(session, int32_t(t - begin), out);
                }
                begin = end;
            }
            return out;
        };
        const Floats together = result({n});
        CHECK(same(result({n_prompt, n}), together));
        CHECK(same(result({3, 4, 21, 58, 63, 64, n}), together));
        split.params.stepwise = true;
        CHECK(same(result({17, n}), together));
    }
}

// A context of three blocks of positions, whose scratch memory is the last that the device has:
// exactly as much as is used.
void test_long_context() {
    Shape shape;
    shape.n_layer = 1, shape.n_head = 1, shape.n_head_kv = 1, shape.head_dim = 32;
    const std::string path = folder / "long.gguf";
    tiny::write(tiny::describe(shape), path);
    pi_session_params params = session_params();
    params.n_ctx = params.n_batch = 600;
    const Tokens tokens = random_tokens(530, 9);
    std::vector<char> keep(530);
    keep[529] = 1;
    const auto last = [&](std::shared_ptr<const Model> model) {
        Session session(std::move(model), params);
        eval(session, tokens, {nullptr, reinterpret_cast<const bool*>(keep.data()), nullptr});
        Floats out;
        append_logits(session, int32_t(tokens.size()) - 1, out);
        return out;
    };
    const auto model = load_on(path, 1 << 30, params);
    CHECK(model->device_layers() == 1);
    CHECK(distance(last(model), last(load(path))) < 2e-3);
}

// Neurons that the device has proposed and computed since `before`, over all layers.
std::pair<int64_t, int64_t> done_since(const Session& session,
                                       const std::vector<ggml::NeuronCounts>& before) {
    std::pair<int64_t, int64_t> done{0, 0};
    for (size_t l = 0; l < before.size(); l++) {
        const ggml::NeuronCounts& now = session.counts.on_device[l];
        done.first += now.proposed - before[l].proposed;
        done.second += now.computed - before[l].computed;
    }
    return done;
}

// Stopped by the caller at every check, in both modes: an error, the sequence as before, and then
// the same bits, with counts of that call alone.
void test_stops() {
    Split split;
    int n_split = 0;
    for (int64_t i = 0; i < split.model->config.n_layer; i++) {
        n_split += split.model->device->split.splits(i);
    }
    CHECK(n_split > 1);
    const Tokens tokens = random_tokens(6, 4);
    static int left;
    split.params.should_stop = [](void*) { return left-- == 0; };
    for (bool stepwise : {false, true}) {
        split.params.stepwise = stepwise;
        left = -1;
        Session session(split.model, split.params);
        const Floats expected = logits(session, tokens);
        int stopped = 0;
        std::vector<ggml::NeuronCounts> before;
        for (int n = 0;; n++) {
            session.truncate(0, 3);
            left = n;
            before = session.counts.on_device;
            try {
                eval(session, {tokens[3], tokens[4], tokens[5]});
            } catch (const Error& e) {
                CHECK(e.code() == Code::cancelled);
                CHECK(session.length(0) == 3);
                stopped++;
                continue;
            }
            break;
        }
        CHECK(stopped >= 1 + n_split);
        const auto after_stops = done_since(session, before);
        left = -1;
        session.truncate(0, 3);
        Floats got;
        before = session.counts.on_device;
        eval(session, {tokens[3], tokens[4], tokens[5]});
        CHECK(after_stops.first > 0 && after_stops == done_since(session, before));
        append_logits(session, 2, got);
        CHECK(same(got, Floats(expected.end() - split.model->config.n_vocab, expected.end())));
    }
}

// A budget that is too small for what was asked names what it would take.
void test_refusals() {
    Split split;
    const auto refused = [&](uint64_t budget, int32_t n_gpu_layers, const char* words) {
        std::string said;
        try {
            load_on(split.path, budget, split.params, n_gpu_layers);
        } catch (const Error& e) {
            CHECK(e.code() == Code::memory);
            said = e.what();
        }
        CHECK(said.find(words) != said.npos);
    };
    refused(1000, -1, "1 of 3 layers and a context of 96 positions would take");
    refused(split.budget / 4, 3, " of 3 layers");
    CHECK(load_on(split.path, split.budget, split.params, 0)->device == nullptr);
    CHECK(load_on(split.path, split.budget, split.params, 1)->device_layers() == 1);
    // A second session beside the one that was planned.
    Session session(split.model, split.params);
    CHECK_THROWS(memory, Session(split.model, split.params));
    split.params.record = PI_RECORD_COUNTS;
    split.params.sparse = PI_SPARSE_OFF;
    CHECK_THROWS(unsupported, Session(split.model, split.params));
    pi_model_params params = pi_model_default_params();
    params.device = "cuda77";
    CHECK_THROWS(device, Model::load(split.path, params));
}

// By name, for scripts/gpu.sh.
struct Group {
    const char* name;
    void (*test)();
};
const Group kGroups[] = {
    {"shapes", test_shapes},
    {"empty halves", test_empty_halves},
    {"batches", test_batches},
    {"figures", test_figures},
    {"pages", test_pages},
    {"rows that begin a page", test_rows_that_begin_a_page},
    {"windows", test_windows},
    {"long context", test_long_context},
    {"stops", test_stops},
    {"refusals", test_refusals},
#ifdef GGML_SHIM
    {"loaded", [] { CHECK(shim::unloaded_launches() == 0); }},
#endif
};

}  // namespace

// With the arguments "only NAME": that group.
int main(int argc, char** argv) {
    const char* only = argc > 2 && std::strcmp(argv[1], "only") == 0 ? argv[2] : nullptr;
    bool found = false;
    for (const Group& group : kGroups) {
        if (only && std::strcmp(only, group.name) != 0) continue;
        group.test();
        found = true;
    }
    CHECK(found);
    return check::summary("test_split");
}
