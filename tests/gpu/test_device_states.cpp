// Layers with a state on a device, whole models of each kind: the CPU's bits, however a text is cut
// into calls, passes and sequences, and wherever it is continued from. Texts move between the CPU
// and the device.
#include <functional>
#include <set>

#include "circle.h"
#include "gpu/splits.h"
#include "gpu/state_models.h"
#include "session/state.h"

using namespace splits;

namespace {

constexpr int64_t kAll = 90;  // positions: more than a page

Tokens part(const Tokens& tokens, int64_t begin, int64_t end) {
    return {tokens.begin() + begin, tokens.begin() + end};
}
Floats part(const Floats& logits, int64_t begin, int64_t end) {
    return {logits.begin() + begin * tiny::kVocab, logits.begin() + end * tiny::kVocab};
}

pi_session_params params_of(int32_t n_seq = 3, int32_t n_ubatch = 64) {
    pi_session_params params = session_params(1, n_ubatch);
    params.n_ctx = params.n_batch = 96;
    params.n_seq = n_seq;
    params.type_k = params.type_v = uint32_t(DType::F32);
    return params;
}

int64_t matching(const Session& session, const Tokens& tokens, int32_t seq = 0) {
    return session.match(seq, tokens.data(), nullptr, int64_t(tokens.size()));
}

void eval_with(Session& session, const Tokens& tokens, const std::set<int64_t>& before) {
    std::vector<char> flags(tokens.size());
    for (size_t i = 0; i < flags.size(); i++) flags[i] = before.count(int64_t(i)) > 0;
    pi_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.n = int32_t(tokens.size());
    batch.token = tokens.data();
    batch.checkpoint = reinterpret_cast<const bool*>(flags.data());
    session.eval(batch);
}

std::vector<uint8_t> saved(const Session& session, int32_t seq) {
    std::vector<uint8_t> bytes(size_t(state_size(session, seq)));
    save_state(session, seq, bytes.data());
    return bytes;
}

// A model on the CPU, and on the device with its last layers.
struct Models {
    explicit Models(const Description& d, int32_t n_gpu_layers = -1) {
        const pi_session_params params = params_of();
        tiny::write(d, path);
        cpu = load(path);
        device = load_on(path, 1 << 30, params, n_gpu_layers);
        const int64_t all = cpu->config.n_layer;
        const int64_t n = n_gpu_layers < 0 ? all : std::min<int64_t>(n_gpu_layers, all);
        CHECK(device->device && device->device_layers() == n);
    }
    Floats expected(const Tokens& tokens) const { return logits(cpu, tokens, params_of()); }

    const std::string path = folder / "states.gguf";
    std::shared_ptr<const Model> cpu, device;
};

// A sequence goes on with the bits that it has when it is computed at once on the CPU.
bool goes_on(Session& session, const Tokens& tokens, const Floats& expected, int32_t seq = 0,
             size_t at_once = 5) {
    const int64_t n = session.length(seq), all = int64_t(tokens.size());
    const Floats got = logits(session, part(tokens, n, all), at_once, SIZE_MAX, seq);
    return same(got, part(expected, n, all));
}

// Any cut of a text into calls and passes; rows of prompts, and generated ones by graphs.
void test_cuts(const Models& models) {
    const Tokens tokens = random_tokens(kAll, 1);
    const Floats expected = models.expected(tokens);
    for (const int32_t ubatch : {1, 7, 64}) {
        for (const size_t at_once : {1, 3, 20, 96}) {
            if (ubatch == 1 && at_once < 20) continue;
            if (!full_circle() && (ubatch != 7 || (at_once > 1 && at_once < 96))) continue;
            Session session(models.device, params_of(3, ubatch));
            CHECK(same(logits(session, tokens, at_once, 40, 1), expected));
            if (at_once == 1) CHECK(session.device()->n_recorded() > 0);
        }
    }
    pi_session_params params = params_of();
    params.stepwise = true;
    Session session(models.device, params);
    CHECK(same(logits(session, tokens, 17), expected));
    // What was read of states and pages is where the layers are.
    const bool all = models.device->device_layers() == models.cpu->config.n_layer;
    const uint64_t here = device_traffic(*models.device, session.counts, false).kv;
    CHECK(here > 0 && (here == traffic(*models.device, session.counts, false).kv) == all);
}

// Rows of three texts in one call, in any order.
void test_interleaved(const Models& models) {
    std::vector<Tokens> texts;
    std::vector<Floats> expected;
    for (uint32_t s = 0; s < 3; s++) {
        texts.push_back(random_tokens(50, 10 + s));
        expected.push_back(models.expected(texts.back()));
    }
    std::mt19937 rng(3);
    for (const int32_t ubatch : {5, 64}) {
        for (const bool generated : {false, true}) {
            if (!full_circle() && generated != (ubatch == 64)) continue;
            Session session(models.device, params_of(3, ubatch));
            std::vector<Floats> got(3);
            std::vector<size_t> at(3);
            while (at != std::vector<size_t>(3, 50)) {
                Tokens rows;
                std::vector<int32_t> seqs;
                for (size_t n = 1 + rng() % 30; n; n--) {
                    const size_t s = rng() % 3;
                    if (at[s] == 50) continue;
                    rows.push_back(texts[s][at[s]++]);
                    seqs.push_back(int32_t(s));
                }
                if (rows.empty()) continue;
                const std::vector<char> keep(rows.size(), 1), flags(rows.size(), generated);
                eval(session, rows,
                     {seqs.data(), reinterpret_cast<const bool*>(keep.data()),
                      reinterpret_cast<const bool*>(flags.data())});
                for (size_t i = 0; i < rows.size(); i++) {
                    append_logits(session, int32_t(i), got[size_t(seqs[i])]);
                }
            }
            for (size_t s = 0; s < 3; s++) CHECK(same(got[s], expected[s]));
        }
    }
}

// Drafts: rows of the last call are rejected, so that the accepted ones are folded once more, on
// both sides.
void test_drafts(const Models& models) {
    const Tokens tokens = random_tokens(kAll, 4);
    const Floats expected = models.expected(tokens);
    for (const int32_t ubatch : {1, 3, 64}) {
        for (const int64_t begin : {0, 30}) {
            if (!full_circle() && (ubatch != 3 || begin)) continue;
            Session session(models.device, params_of(3, ubatch)), cpu(models.cpu, params_of());
            if (begin) eval(session, part(tokens, 0, begin));
            std::mt19937 rng(6);
            while (session.length(0) < 70) {
                const int64_t at = session.length(0);
                const int64_t drafted = 1 + int64_t(rng() % kReplayedRows);
                const int64_t right = int64_t(rng() % uint32_t(drafted + 1));
                Tokens draft = part(tokens, at, at + drafted);
                for (size_t i = size_t(right); i < draft.size(); i++) {
                    draft[i] = (tokens[size_t(at) + i] + 1) % tiny::kVocab;
                }
                const std::vector<char> yes(draft.size(), 1);
                eval(session, draft, {nullptr, nullptr, reinterpret_cast<const bool*>(yes.data())});
                CHECK(session.match(0, tokens.data(), reinterpret_cast<const bool*>(&yes[0]), at) ==
                      at);
                session.copy(0, 1, at + right);
                session.truncate(0, at + right);
                CHECK(saved(session, 0) == saved(session, 1));
                if (right > 1) {  // and once more, to an earlier row
                    session.truncate(0, at + right - 1);
                    eval(session, {tokens[size_t(at + right - 1)]});
                }
                if (!right) eval(session, {tokens[size_t(at)]});
            }
            CHECK(goes_on(session, tokens, expected));
        }
    }
}

// Checkpoints within a call, where passes meet, and in copies.
void test_checkpoints(const Models& models) {
    const Tokens tokens = random_tokens(kAll, 7), other = random_tokens(kAll, 8);
    const Floats expected = models.expected(tokens);
    for (const int32_t ubatch : {7, 64}) {
        if (!full_circle() && ubatch == 64) continue;
        Session session(models.device, params_of(3, ubatch));
        const std::set<int64_t> at = {0, 1, 14, 64};
        eval(session, part(tokens, 0, 10));
        eval_with(session, part(tokens, 10, 85), at);
        for (const int64_t n : at) CHECK(matching(session, part(tokens, 0, 10 + n)) == 10 + n);
        Tokens joined = part(tokens, 0, 74);
        joined.insert(joined.end(), other.begin() + 74, other.end());
        session.copy(0, 1, 74);
        CHECK(goes_on(session, joined, models.expected(joined), 1));
        CHECK(goes_on(session, tokens, expected));
        session.truncate(0, 24);
        CHECK(goes_on(session, tokens, expected, 0, 66));
        session.truncate(1, 11);
        CHECK(goes_on(session, tokens, expected, 1, 1));
    }
}

// A call that stops anywhere leaves the sequences as they were.
void test_stops(const Models& models) {
    const Tokens tokens = random_tokens(kAll, 14);
    const Floats expected = models.expected(tokens);
    int left = 0;  // checks until the stop
    pi_session_params params = params_of(2, 16);
    params.should_stop = [](void* data) { return --*static_cast<int*>(data) == 0; };
    params.should_stop_data = &left;
    Session session(models.device, params);
    eval(session, part(tokens, 0, 20));
    const std::vector<uint8_t> before = saved(session, 0);
    int stops = 0;
    for (;; stops += full_circle() ? 1 : 3) {
        left = stops + 1;
        try {
            eval_with(session, part(tokens, 20, 80), {0, 10, 30});
            break;
        } catch (const Error& e) {
            CHECK(e.code() == Code::cancelled);
        }
        CHECK(session.length(0) == 20 && saved(session, 0) == before);
    }
    CHECK(stops >= 4);
    left = 0;
    CHECK(goes_on(session, tokens, expected));
}

// Saved on the CPU and continued on the device, and back; also parts, and from files. A state has
// the same bytes wherever it was computed.
void test_saved(const Models& models) {
    const Tokens tokens = random_tokens(kAll, 15);
    const Floats expected = models.expected(tokens);
    Session cpu(models.cpu, params_of()), device(models.device, params_of());
    eval_with(cpu, part(tokens, 0, 80), {64});
    eval_with(device, part(tokens, 0, 80), {64});
    const std::vector<uint8_t> whole = saved(cpu, 0);
    CHECK(saved(device, 0) == whole);
    const std::string path = folder / "state";
    for (const bool to_device : {true, false}) {
        Session& from = to_device ? cpu : device;
        Session& to = to_device ? device : cpu;
        eval(to, random_tokens(30, 16), {std::vector<int32_t>(30, 1).data()});
        load_state(to, 1, whole.data(), whole.size());
        CHECK(saved(to, 1) == whole && goes_on(to, tokens, expected, 1));
        save_state_file(from, 0, path);
        load_state_file(to, 2, path);
        CHECK(saved(to, 2) == whole && goes_on(to, tokens, expected, 2));
        to.truncate(1, 0);
        for (const int64_t first : {0, 64}) {
            const int64_t n = first ? 16 : 64;
            std::vector<uint8_t> bytes(size_t(part_size(from, 0, first, n)));
            save_part(from, 0, first, n, bytes.data());
            load_part(to, 1, bytes.data(), bytes.size());
            CHECK(matching(to, tokens, 1) == first + n);
        }
        CHECK(goes_on(to, tokens, expected, 1));
        to.truncate(1, 0), to.truncate(2, 0);
    }
}

// Where states lie is part of the plan, which a session takes.
void test_plan(const Models& models) {
    pi_session_params params = params_of();
    params.n_checkpoints = 2;
    const auto states = [&](const Model& model, Tier tier) {
        uint64_t bytes = 0;
        for (const PlanPart& p : make_plan(model, params).parts) {
            bytes += p.part == Part::states && p.tier == tier ? p.bytes : 0;
        }
        return bytes;
    };
    const uint64_t in_ram = states(*models.cpu, Tier::ram);
    CHECK(states(*models.cpu, Tier::gpu) == 0);
    const uint64_t slots = 2 * 3 + 2;
    const uint64_t all = slots * StateLayout(models.cpu->layers).bytes();
    const StateLayout here = device_state_layout(*models.device, models.device->device_layers());
    CHECK(in_ram >= all && here);
    CHECK(states(*models.device, Tier::gpu) >= slots * here.bytes());
    CHECK(states(*models.device, Tier::ram) <= in_ram - slots * here.bytes());
    const DeviceModel& on = *models.device->device;
    const uint64_t ram = models.device->budget->reserved(), vram = on.budget->reserved();
    const Plan plan = make_plan(*models.device, params);
    const uint64_t allocated = on.device->allocated_bytes();
    const Session session(models.device, params);
    const auto taken = [&](Tier tier) {
        return total(plan.parts, tier) - total(models.device->plan.parts, tier);
    };
    CHECK(models.device->budget->reserved() - ram == taken(Tier::ram));
    CHECK(on.budget->reserved() - vram == taken(Tier::gpu));
    CHECK(on.device->allocated_bytes() - allocated <= taken(Tier::gpu));
    // Slots for more checkpoints than there is room for.
    pi_session_params many = params;
    pi_model_params tight = on_device(total(plan.parts, Tier::gpu) + (1 << 20), params);
    tight.n_gpu_layers = int32_t(models.cpu->config.n_layer);
    CHECK(Model::inspect(models.path, tight)->device_layers() == models.cpu->config.n_layer);
    many.n_checkpoints = 64;
    tight.session = &many;
    tight.vram_budget = total(plan.parts, Tier::gpu) + 4096;
    CHECK_THROWS(memory, Model::inspect(models.path, tight));
}

#ifdef GGML_SHIM
// Call n of the run time fails while a state is folded, saved or loaded, for every n: an error, and
// nothing goes on from a state that is not right.
void test_failing(const Models& models) {
    const Tokens tokens = random_tokens(40, 18);
    const Floats expected = models.expected(tokens);
    Session session(models.device, params_of());
    const auto fails_at = [&](int n, const auto& what) {
        bool failed = false;
        shim::fail_after(n);
        try {
            what();
        } catch (const Error& e) {
            CHECK(e.code() == Code::device);
            failed = true;
        }
        shim::fail_after(-1);
        return failed;
    };
    const auto begin = [&] {
        session.truncate(0, 0);
        eval(session, part(tokens, 0, 20));
        eval(session, part(tokens, 20, 30));
    };
    int n = 0;
    for (begin(); fails_at(n, [&] { session.truncate(0, 25); }); n++, begin()) {
        CHECK(session.length(0) == 25 && matching(session, tokens) == 0);
        CHECK_THROWS(argument, eval(session, {1}));
    }
    CHECK(n > 3 && goes_on(session, tokens, expected));
    const std::vector<uint8_t> whole = saved(session, 0);
    for (n = 0; fails_at(n, [&] { saved(session, 0); }); n++) CHECK(session.length(0) == 40);
    CHECK(n > 1 && saved(session, 0) == whole);
    const auto load = [&] { load_state(session, 1, whole.data(), whole.size()); };
    for (n = 0; fails_at(n, load); n++) CHECK(session.length(1) == 0);
    CHECK(n > 1 && saved(session, 1) == whole);
}
#endif

// Blocks of neuron rows, shared with the CPU, between layers with a state: one split has the same
// bits for every cut, and the CPU's but for rounding.
void test_neuron_rows() {
    const std::string path = folder / "rows.gguf";
    tiny::write(state_models::nemotron_h(true), path);
    pi_session_params params = params_of();
    params.n_checkpoints = 2;
    const uint64_t most = budgets(path, params).most;
    const auto model = load_on(path, most - (40 << 10), params);
    CHECK(model->device_layers() > 1 && neurons_on_device(*model) > 0);
    CHECK(model->device->split.splits(4));
    const Tokens tokens = random_tokens(60, 19);
    const Floats expected = logits(model, tokens, params);
    CHECK(sessions::distance(expected, logits(load(path), tokens, params)) < 2e-5);
    for (const size_t at_once : {1, 7}) {
        Session session(model, params);
        CHECK(same(logits(session, tokens, at_once), expected));
    }
}

// brief: but for the nightly circle no more than cuts and saved states.
void test_kind(const Description& d, bool brief) {
    const Models whole(d);
    test_cuts(whole);
    if (brief && !nightly_circle()) return test_saved(whole);
    test_interleaved(whole);
    test_drafts(whole);
    test_checkpoints(whole);
    test_stops(whole);
    test_saved(whole);
    test_plan(whole);
    // The CPU has the first layers, and folds its own states.
    const Models some(d, int32_t(whole.cpu->config.n_layer / 2));
    test_drafts(some);
    test_saved(some);
    if (!full_circle()) return;
    test_interleaved(some);
    test_stops(some);
}

}  // namespace

int main(int argc, char**) {
    using namespace state_models;
    for (const Description& d : {lfm2(), nemotron_h(false), qwen3_5()}) test_kind(d, true);
    // An argument: all of them.
    for (const Description& d : {falcon_h1(), qwen3_next()}) test_kind(d, argc > 1);
#ifdef GGML_SHIM
    test_failing(Models(falcon_h1()));
#endif
    test_neuron_rows();
    return check::summary("test_device_states");
}
