// Prompts of models that a device and the CPU share: the device computes the neurons of RAM, too,
// which are sent to it in pieces.
#include <cstdio>

#include "circle.h"
#include "forward/device_forward.h"
#include "gpu/splits.h"
#include "session/state.h"

using namespace splits;
using gpu_test::kThreadSanitizer;

namespace {

// For 8-bit inputs, as in test_split.
constexpr double kQuantised = 2e-2;

// More neurons than a piece has, of every kind of format.
Shape shape_of(DType type) {
    Shape s = by_neuron(type);
    s.n_layer = 1, s.n_ff = 320, s.predictor_rank = 0;
    if (ggml::info(type).block == ggml::kQK) s.n_embd = 256, s.head_dim = 64;
    return s;
}

// With part of the neurons' bytes on the device, and all layers.
struct Streamed {
    explicit Streamed(const Shape& shape, double hot = 0.5) {
        tiny::write(tiny::describe(shape), path);
        params.type_k = params.type_v = uint32_t(DType::F32);
        params.sparse = PI_SPARSE_EXACT;
        // More than a tile, and little scratch memory, so that neurons are most of the budget.
        params.n_ubatch = 17;
        range = budgets(path, params);
        const int64_t row = ggml::device_row_bytes(shape.type, shape.n_embd);
        budget = range.most - uint64_t((1 - hot) * double(3 * row * shape.n_ff * shape.n_layer));
        model = load_on(path, budget, params, -1, true);
    }
    const std::string path = folder / "stream.gguf";
    pi_session_params params = session_params();
    Range range;
    uint64_t budget = 0;
    std::shared_ptr<const Model> model;
};

// Prompts against the CPU: no neuron is left out, the CPU computes none, and memory is what the
// plan says. A row has the same bits in every call, with any number of threads, and step by step.
void test_prompts(DType type, bool biases, double hot, double tolerance) {
    Shape shape = shape_of(type);
    shape.biases = biases;
    Streamed s(shape, hot);
    const Model& m = *s.model;
    const uint64_t piece = m.device->split.piece;
    CHECK(piece > 0 && piece % ggml::kDeviceGranule == 0);
    int64_t elsewhere = 0;
    for (int64_t i = 0; i < m.config.n_layer; i++)
        elsewhere += m.ffns[0]->n_ff - m.device_neurons(i);
    CHECK(elsewhere > 0);
    const Tokens tokens = random_tokens(24, 3);
    Session cpu(load(s.path), s.params);
    const Floats expected = logits(cpu, tokens);
    auto session = std::make_unique<Session>(s.model, s.params);
    const Plan plan = make_plan(m, s.params);
    const ggml::Device& device = *m.device->device;
    CHECK(device.allocated_bytes() + device.context_bytes() == total(plan.parts, Tier::gpu));
    CHECK(total(plan.parts, Tier::gpu) <= s.budget);
    const Floats got = logits(*session, tokens);
    const double apart = distance(got, expected);
    if (!(apart < tolerance)) std::fprintf(stderr, "%s: %g\n", ggml::info(type).name, apart);
    CHECK(apart < tolerance);
    for (size_t i = 0; i < m.layers.size(); i++) {
        const ggml::NeuronCounts &all = session->counts.neurons[i], &ours = cpu.counts.neurons[i];
        CHECK(all.rows == ours.rows && all.proposed == ours.proposed);
        CHECK(session->counts.on_device[i].proposed == all.proposed);
        CHECK(std::abs(all.fired - ours.fired) * 50 <= ours.fired);
    }
    CHECK(session->counts.answers == 0);
    // Twice: for 17 rows and 7.
    const int64_t row = 3 * ggml::device_row_bytes(type, m.config.n_embd);
    CHECK(session->counts.transferred > uint64_t(2 * elsewhere * row));
    session.reset();  // the budget is for one

    pi_session_params other = s.params;
    other.n_threads = other.n_threads_batch = 3;
    other.n_ubatch = 7;
    for (size_t at_once : {20, 1}) {
        Session again(s.model, other);
        CHECK(same(logits(again, tokens, at_once), got));
        other.stepwise = true;
    }
}

// Generated rows meet the CPU in every layer, as if there were no stream; what a prompt computes in
// another way is not taken from them.
void test_generated() {
    Streamed s(shape_of(DType::F32));
    const Tokens tokens = random_tokens(16, 5);
    const Floats expected = logits(load(s.path), tokens, s.params);
    auto session = std::make_unique<Session>(s.model, s.params);
    CHECK(distance(logits(*session, tokens, 96, 8), expected) < 1e-5);
    // All eight rows at once, in every layer.
    int64_t n_split = 0;
    for (int64_t i = 0; i < s.model->config.n_layer; i++)
        n_split += s.model->device->split.splits(i);
    CHECK(n_split > 0 && session->counts.answers == n_split);
    std::vector<char> flags(16);
    for (size_t t = 8; t < 16; t++) flags[t] = 1;
    const auto* generated = reinterpret_cast<const bool*>(flags.data());
    CHECK(session->match(0, tokens.data(), generated, 16) == 16);
    CHECK(session->match(0, tokens.data(), nullptr, 16) == 8);
    // In a state as well.
    std::vector<uint8_t> state(size_t(state_size(*session, 0)));
    save_state(*session, 0, state.data());
    session.reset();
    session = std::make_unique<Session>(s.model, s.params);
    load_state(*session, 0, state.data(), state.size());
    CHECK(session->match(0, tokens.data(), nullptr, 16) == 8);
    // Without a stream both kinds are computed alike in exact mode.
    const auto plain = load_on(s.path, s.budget, s.params);
    CHECK(plain->device->split.piece == 0);
    Session alike(plain, s.params);
    logits(alike, tokens, 96, 8);
    CHECK(alike.match(0, tokens.data(), nullptr, 16) == 16);
}

// No room for pieces, or nothing to send.
void test_none() {
    Streamed s(shape_of(DType::F32));
    CHECK(load_on(s.path, s.range.least, s.params, -1, true)->device->split.piece == 0);
    const auto whole = load_on(s.path, s.range.most, s.params, -1, true);
    CHECK(whole->device->split.piece == 0 && !whole->device->prompt_upload);
    CHECK(neurons_on_device(*whole) == whole->config.n_layer * whole->ffns[0]->n_ff);
}

// Stopped at every check, and the run time's call n failing (where it does when it is told to): an
// error, the sequence as before, and then the same bits.
void fail_after([[maybe_unused]] int calls) {
#ifdef GGML_SHIM
    shim::fail_after(calls);
#endif
}
void test_mishaps() {
    Streamed s(shape_of(DType::F32));
    const Tokens tokens = random_tokens(kThreadSanitizer ? 1 : 3, 4);
    static int left;
    left = -1;
    s.params.should_stop = [](void*) { return left-- == 0; };
    s.params.n_threads = s.params.n_threads_batch = kThreadSanitizer ? 3 : 1;
    Session session(s.model, s.params);
    const Floats expected = logits(session, tokens);
    const auto whole = [&] {
        session.truncate(0, 0);
        return logits(session, tokens);
    };
    for (bool failing : {false, true}) {
        if (failing && !gpu_test::kShim) continue;
        int failures = 0;
        for (int n = 0;; n += 1 + (kThreadSanitizer ? 3 * n : n / 10)) {
            session.truncate(0, 0);
            if (failing) {
                fail_after(n);
            } else {
                left = n;
            }
            try {
                eval(session, tokens);
                break;
            } catch (const Error& e) {
                CHECK(e.code() == (failing ? Code::device : Code::cancelled));
                CHECK(session.length(0) == 0);
            }
            failures++;
            fail_after(-1);
        }
        fail_after(-1);
        left = -1;
        CHECK(failures > (kThreadSanitizer ? 0 : failing ? 10 : 4));
        CHECK(same(whole(), expected));
    }
}

}  // namespace

int main() {
    test_mishaps();
    if (!kThreadSanitizer) {
        test_generated();
        for (DType type : {DType::F32, DType::F16}) {
            if (type == DType::F16 && !full_circle()) continue;
            test_prompts(type, type != DType::F16, 0.6, 1e-5);
        }
        for (DType type : {DType::Q4_0, DType::Q8_0, DType::Q4_K}) {
            if (type == DType::Q8_0 && !full_circle()) continue;
            test_prompts(type, type == DType::Q8_0, 0.6, kQuantised);
        }
        test_none();
    }
    return check::summary("test_stream");
}
