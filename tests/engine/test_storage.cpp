// Models whose neurons stay on the disk: the same bits as in memory, for any budget, order of
// arrival and number of threads; and disks that fail.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "bundle_file.h"
#include "faulty_reader.h"
#include "sessions.h"
#include "storage.h"

namespace {

using namespace sessions;
using faulty::Fault;

constexpr uint64_t kNoLimit = uint64_t(1) << 40;

pi_model_params model_params(uint64_t budget, const pi_session_params& session) {
    pi_model_params params = pi_model_default_params();
    params.ram_budget = budget;
    params.session = &session;
    return params;
}

// Bytes that the plan of a model and a session takes, if all neurons are in RAM; and the least
// budget with which it runs.
struct Bounds {
    uint64_t all, least;
};

Bounds bounds_of(const std::string& path, const pi_session_params& session) {
    Bounds bounds{0, 0};
    for (const PlanPart& p :
         make_plan(*Model::inspect(path, model_params(kNoLimit, session)), session).parts)
        bounds.all += p.bytes;
    const auto least = Model::inspect(path, model_params(1, session));
    CHECK(least->storage);
    if (least->storage) bounds.least = least->storage->least;
    return bounds;
}

std::string bundled(const Shape& shape) {
    tiny::write(tiny::describe(shape), folder / "model.gguf");
    for (const char* end : {"", ".resident"}) std::remove((folder / "bundled.gguf" + end).c_str());
    write_bundled(folder / "model.gguf", folder / "bundled.gguf", pi_bundle_default_params());
    return folder / "bundled.gguf";
}

// A prompt of n tokens in one call, and 20 more: generated ones, one by one and in threes, and two.
Floats answer(std::shared_ptr<const Model> model, const pi_session_params& params, size_t n = 40) {
    Session session(std::move(model), params);
    const Tokens tokens = random_tokens(n + 20, 3);
    Floats out;
    const auto rows = [&](size_t begin, size_t end, bool is_generated) {
        const size_t n_rows = end - begin;
        const std::vector<char> keep(n_rows, 1), generated(n_rows, is_generated);
        eval(session, Tokens(tokens.begin() + ptrdiff_t(begin), tokens.begin() + ptrdiff_t(end)),
             {nullptr, reinterpret_cast<const bool*>(keep.data()),
              reinterpret_cast<const bool*>(generated.data())});
        for (size_t row = 0; row < n_rows; row++) append_logits(session, int32_t(row), out);
    };
    rows(0, n, false);
    for (size_t i = n; i < n + 12; i++) rows(i, i + 1, true);
    for (size_t i = n + 12; i < n + 18; i += 3) rows(i, i + 3, true);
    rows(n + 18, n + 20, false);
    return out;
}

void test_shape(const Shape& shape, int32_t sparse) {
    const std::string path = bundled(shape);
    pi_session_params session = session_params(1, 32);
    session.sparse = sparse;
    const Floats expected = answer(load(path), session);
    CHECK(same(expected, answer(load(folder / "model.gguf"), session)));
    pi_session_params planned = session;
    planned.n_threads = planned.n_threads_batch = 4;
    const Bounds bounds = bounds_of(path, planned);
    CHECK(bounds.least < bounds.all);
    int n_threads = 1;
    for (const uint64_t budget :
         {bounds.least, bounds.least + (bounds.all - bounds.least) / 4,
          bounds.least + (bounds.all - bounds.least) * 3 / 4, bounds.all - 1}) {
        session.n_threads = session.n_threads_batch = n_threads;
        n_threads = n_threads % 4 + 1;
        const auto model = Model::load(path, model_params(budget, planned));
        CHECK(model->storage && model->store);
        if (!model->store) continue;
        CHECK(same(expected, answer(model, session)));
        CHECK(model->store->counts.reads > 0);
        CHECK(model->budget->limit() == budget && model->budget->reserved() <= budget);
    }
    const auto model = Model::load(path, model_params(bounds.all, planned));
    CHECK(!model->storage && !model->store);
}

// A loaded model whose store reads through `reader`.
std::shared_ptr<const Model> with_reader(const std::string& path, const pi_model_params& params,
                                         std::unique_ptr<ggml::Reader> reader) {
    const std::shared_ptr<const Model> model = Model::load(path, params);
    CHECK(model->store);
    const_cast<Model&>(*model).store = open_store(*model, params, std::move(reader));
    return model;
}

Shape wide() {
    Shape shape;
    shape.activation = "relu", shape.down_t = true, shape.type = DType::Q8_0;
    shape.n_ff = 1500, shape.n_embd = 128, shape.n_layer = 3;
    return shape;
}

// A prompt that is more than a few rows for ffn_stored.cpp.
constexpr size_t kFew = 12;

// The ways of reading that this system allows.
std::vector<std::string> ways() {
    std::vector<std::string> all = {"threads"};
    try {
        ggml::ReaderOptions options;
        options.path = "uring";
        ggml::open_reader("/proc/self/exe", options);
        all.push_back("uring");
    } catch (const Error&) {
    }
    return all;
}

// A prompt that has far more rows than a micro-batch reads a neuron once, since the cache lends it
// memory; and its answer is the same.
void test_lending() {
    Shape shape = wide();
    shape.n_layer = 24;
    const std::string path = bundled(shape);
    for (const int32_t sparse : {PI_SPARSE_EXACT, PI_SPARSE_OFF}) {
        pi_session_params session = session_params(2, 8);
        session.sparse = sparse;
        session.n_batch = 120, session.n_ctx = 128;
        const Bounds bounds = bounds_of(path, session);
        const Tokens tokens = random_tokens(120, 5);
        const auto last = [&](Session& computing) {
            Floats out;
            eval(computing, tokens, {});
            append_logits(computing, 119, out);
            eval(computing, {tokens[0]}, {});
            append_logits(computing, 0, out);
            return out;
        };
        Session whole(load(path), session);
        const auto model = Model::load(
            path, model_params(bounds.least + (bounds.all - bounds.least) * 3 / 4, session));
        Session computing(model, session);
        const NeuronStore& store = *model->store;
        const StoreShape& shape_of = store.shape();
        const int64_t all = int64_t(shape_of.n_blocks) * shape_of.n;
        const uint64_t filled = store.counts.bytes;
        eval(computing, tokens, {});
        CHECK(double(store.counts.bytes - filled) < 1.1 * double(shape_of.slot_bytes(all, all)));
        computing.truncate(0, 0);
        CHECK(same(last(whole), last(computing)));
        const ResidencyShape& now = model->store->residency().shape();
        CHECK(shape_of.slot_bytes(now.first_slots, now.rest_slots) >
              uint64_t(0.95 * double(shape_of.cache_sectors * StoreShape::kSector)));
    }
}

// Audits find the same whatever is in memory, and however many rows come together.
void test_audits() {
    Shape shape = wide();
    shape.predictor_rank = 32;
    const std::string path = bundled(shape);
    pi_session_params session = session_params(2, 16);
    session.sparse = PI_SPARSE_PREDICTOR;
    const Bounds bounds = bounds_of(path, session);
    const auto audited = [&](uint64_t budget, size_t at_once) {
        Session computing(Model::load(path, model_params(budget, session)), session);
        const Tokens tokens = random_tokens(48, 3);
        const std::vector<char> generated(at_once, 1);
        for (auto i = tokens.begin(); i < tokens.end(); i += ptrdiff_t(at_once)) {
            eval(computing, Tokens(i, i + ptrdiff_t(at_once)),
                 {nullptr, nullptr, reinterpret_cast<const bool*>(generated.data())});
        }
        std::vector<int64_t> found;
        for (int64_t layer = 0; layer < shape.n_layer; layer++) {
            found.push_back(computing.audit.layer(layer).fired);
            found.push_back(computing.audit.layer(layer).found);
        }
        return found;
    };
    const std::vector<int64_t> expected = audited(bounds.least, 1);
    for (int64_t layer = 0; layer < shape.n_layer; layer++) {
        CHECK(expected[size_t(2 * layer)] > expected[size_t(2 * layer + 1)]);
        CHECK(expected[size_t(2 * layer + 1)] > 0);
    }
    const uint64_t more = bounds.least + (bounds.all - bounds.least) * 3 / 4;
    CHECK(audited(more, 1) == expected);
    CHECK(audited(more, 4) == expected);
    CHECK(audited(bounds.least, 12) == expected);
}

// Without a profile the next run begins with what was needed, unless its file is damaged.
void test_resident() {
    Shape shape = wide();
    shape.predictor_rank = 32;
    const std::string path = bundled(shape), saved = path + ".resident";
    const pi_session_params session = session_params(2, 48);
    const Bounds bounds = bounds_of(path, session);
    const pi_model_params params =
        model_params(bounds.least + (bounds.all - bounds.least) / 2, session);
    const auto missed = [&] {
        const auto model = Model::load(path, params);
        Session computing(model, session);
        const Tokens tokens = random_tokens(90, 3);
        const bool generated = true;
        for (size_t i = 0; i < 10; i++)
            eval(computing, {tokens[i]}, {nullptr, nullptr, &generated});
        const StoreCounts& c = model->store->counts;
        const double share = double(c.missed[0] + c.missed[1]) / double(c.needed[0] + c.needed[1]);
        for (size_t i = 10; i < 90; i++) {
            eval(computing, {tokens[i]}, {nullptr, nullptr, &generated});
        }
        return share;
    };
    const double at_first = missed();
    CHECK(std::filesystem::exists(saved));
    CHECK(missed() < 0.9 * at_first);
    const auto size = std::filesystem::file_size(saved);
    std::filesystem::resize_file(saved, size - 9);
    CHECK(missed() == at_first);
    std::remove(saved.c_str());
    {
        pi_model_params silent = params;
        silent.bundle = false;
        const auto model = Model::load(path, silent);
        answer(model, session);
    }
    CHECK(!std::filesystem::exists(saved));
}

// Predictors of experts are read when a row chooses these, and stay as far as there is room.
void test_predictors(const Shape& shape) {
    const std::string path = bundled(shape);
    pi_session_params session = session_params(2, 32);
    session.sparse = PI_SPARSE_PREDICTOR;
    const Bounds bounds = bounds_of(path, session);
    const auto blocks = uint64_t(shape.n_layer * shape.n_expert);
    uint64_t before = UINT64_MAX;
    for (const uint64_t budget :
         {bounds.least, bounds.least + (bounds.all - bounds.least) / 4, bounds.all - 1}) {
        const auto model = Model::load(path, model_params(budget, session));
        const auto slots = uint64_t(model->storage->predictors.slots);
        CHECK((slots == 0) == (budget == bounds.least));
        answer(model, session);
        const uint64_t n = model->store->counts.predictors;
        CHECK(n >= blocks && n < before);
        CHECK(slots < blocks || n == blocks);
        before = n;
    }
}

// Any order of arrival gives the same bits.
void test_orders(const Shape& shape, uint64_t n) {
    const std::string path = bundled(shape);
    const pi_session_params planned = session_params(3, 48);
    pi_session_params session = planned;
    const Floats expected = answer(load(path), session, kFew);
    const Bounds bounds = bounds_of(path, planned);
    for (uint64_t seed = 0; seed < n; seed++) {
        faulty::Order order;
        order.seed = seed;
        order.most = int(seed % 9) + 1;
        order.depth = int(seed % 7) * 20 + 1;
        const uint64_t budget = bounds.least + (bounds.all - bounds.least) * (seed % 10) / 10;
        const pi_model_params params = model_params(budget, planned);
        const auto late = faulty::at_random(seed, 0.1, {Fault::late});
        session.n_threads = int32_t(seed % 3) + 1;
        const auto model =
            with_reader(path, params, std::make_unique<faulty::Reader>(path, order, late));
        CHECK(same(expected, answer(model, session, kFew)));
    }
}

// After a read that failed the call fails, and the next one works.
void test_faults(const Shape& shape) {
    const std::string path = bundled(shape);
    pi_session_params session = session_params(2, 48);
    const Floats expected = answer(load(path), session, kFew);
    const Bounds bounds = bounds_of(path, session);
    int n_failed = 0;
    for (Fault fault : {Fault::eio, Fault::cut, Fault::flipped}) {
        for (uint64_t seed = 0; seed < 20; seed++) {
            bool on = false;
            auto random = faulty::at_random(seed, 0.02, {fault});
            faulty::Order order;
            order.seed = seed;
            const pi_model_params params = model_params(bounds.least + seed * 1000, session);
            const auto model = with_reader(
                path, params,
                std::make_unique<faulty::Reader>(path, order, [&](uint64_t n, const ggml::Read& r) {
                    return on ? random(n, r) : Fault::none;
                }));
            // Predictors have no checksums before they have been read.
            if (shape.predictor_rank) answer(model, session, kFew);
            on = true;
            try {
                CHECK(same(expected, answer(model, session, kFew)));
            } catch (const Error& e) {
                n_failed++;
                CHECK(e.code() == (fault == Fault::flipped ? Code::format : Code::io));
                CHECK(std::strstr(e.what(), path.c_str()));
            }
            on = false;
            CHECK(same(expected, answer(model, session, kFew)));
        }
    }
    CHECK(n_failed > 30);
}

// A read that never comes back ends the call, not the process.
void test_silence() {
    const std::string path = bundled(wide());
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    bool on = false;
    const auto model = with_reader(
        path, model_params(bounds.least, session),
        std::make_unique<faulty::Reader>(path, faulty::Order{}, [&](uint64_t, const ggml::Read&) {
            return std::exchange(on, false) ? Fault::never : Fault::none;
        }));
    model->store->patience = 0.05;
    on = true;
    for (int i = 0; i < 2; i++) {
        std::string said;
        try {
            answer(model, session);
        } catch (const Error& e) {
            said = e.what();
            CHECK(e.code() == Code::io);
        }
        CHECK(std::strstr(said.c_str(), "answer"));
    }
}

// Both ways of reading.
void test_disk() {
    const std::string path = bundled(wide());
    const pi_session_params session = session_params(2, 48);
    const Floats expected = answer(load(path), session);
    const Bounds bounds = bounds_of(path, session);
    for (const std::string& io : ways()) {
        setenv("POWERINFER_IO", io.c_str(), 1);
        const auto model = Model::load(path, model_params(bounds.least, session));
        CHECK(same(expected, answer(model, session)));
        CHECK(model->store->reader().name() == io);
    }
    unsetenv("POWERINFER_IO");
}

// File systems count time in ticks: what is written within one is not seen to be later.
void wait_for_a_tick() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void overwrite(const std::string& path, uint64_t from, uint64_t bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(from));
    const std::string other(size_t(bytes), 'x');
    file.write(other.data(), std::streamsize(bytes));
    CHECK(bool(file.flush()));
}

// What happens to a file while a model runs from it: where its bytes go, every call fails at once;
// where only its name goes, nothing does. Rows of a tied embedding are in memory, others are read.
void test_changes() {
    namespace fs = std::filesystem;
    Shape shape = wide();
    for (bool tied : {false, true}) {
        shape.tied = tied;
        const std::string good = bundled(shape), path = folder / "changing.gguf";
        const pi_session_params session = session_params(2, 48);
        const Floats expected = answer(load(good), session, kFew);
        const Bounds bounds = bounds_of(good, session);
        const auto probe = Model::inspect(good, model_params(bounds.least, session));
        const StoredNeurons& neurons = probe->layers[1].ffn.stored;
        const uint64_t size = fs::file_size(good);
        const ggml::TensorInfo* const rows = probe->file.gguf.find_tensor("token_embd.weight");
        CHECK(rows);
        struct Change {
            std::function<void()> make;
            const char* said;  // null: no harm
        };
        const char* const damaged = "does not match its checksum";
        const char* const changed = tied ? damaged : "was changed while it was open";
        const char* const shorter = tied ? "the file ends before" : changed;
        const std::vector<Change> changes = {
            {[&] { fs::remove(path); }, nullptr},
            {[&] {
                 std::ofstream(folder / "other.gguf") << "another file";
                 fs::rename(folder / "other.gguf", path);
             },
             nullptr},
            {[&] { fs::resize_file(path, neurons.offset); }, shorter},
            {[&] { fs::resize_file(path, 0); }, tied ? shorter : "ends at offset"},
            {[&] { overwrite(path, 0, size); }, changed},
            {[&] {
                 overwrite(path, neurons.offset,
                           uint64_t(shape.n_ff) * uint64_t(neurons.layout.stride));
             },
             changed},
            {[&] { overwrite(path, rows->offset, rows->bytes); }, tied ? nullptr : changed},
        };
        for (const std::string& io : ways()) {
            setenv("POWERINFER_IO", io.c_str(), 1);
            for (const Change& change : changes) {
                fs::remove(path);
                fs::copy_file(good, path);
                const auto model = Model::load(path, model_params(bounds.least, session));
                wait_for_a_tick();
                change.make();
                for (int call = 0; call < 2; call++) {
                    std::string said;
                    try {
                        CHECK(same(expected, answer(model, session, kFew)));
                    } catch (const Error& e) {
                        said = e.what();
                    }
                    CHECK(said.empty() == !change.said);
                    if (!change.said) continue;
                    CHECK(said.find(change.said) != said.npos && said.find(path) == 0);
                }
            }
        }
        unsetenv("POWERINFER_IO");
        // While it is loaded.
        fs::copy_file(good, path, fs::copy_options::overwrite_existing);
        wait_for_a_tick();
        pi_model_params loading = model_params(bounds.least, session);
        loading.progress_data = const_cast<char*>(path.c_str());
        loading.progress = [](float, void* data) {
            overwrite(static_cast<const char*>(data), 0, 1);
            return true;
        };
        CHECK_THROWS(format, Model::load(path, loading));
    }
}

// Damaged files: an error, or the same bits where the damage is not read. In the header anything
// may be another model; then nothing is asked but an end without a crash.
void test_damage() {
    const std::string good = bundled(wide()), path = folder / "damaged.gguf";
    std::ifstream in(good, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    const pi_session_params session = session_params(1, 48);
    const Floats expected = answer(load(good), session, kFew);
    const Bounds bounds = bounds_of(good, session);
    const auto probe = Model::inspect(good, model_params(bounds.least, session));
    std::vector<std::pair<uint64_t, uint64_t>> regions = {{0, bytes.size()}};  // first: the header
    for (const ggml::TensorInfo& t : probe->file.gguf.tensors()) {
        regions[0].second = std::min(regions[0].second, t.offset);
        if (t.name.find("ffn_bundle") == t.name.npos) continue;
        regions.push_back({t.offset, t.offset + t.bytes});
    }
    CHECK(regions.size() == 7);
    std::mt19937_64 random(1);
    int n_refused = 0;
    const int n = 300;
    for (int i = 0; i < n; i++) {
        const auto [begin, end] = regions[size_t(i) % regions.size()];
        std::string bad = bytes;
        for (int k = 0; k < 1 + i % 5; k++) {
            bad[size_t(begin + random() % (end - begin))] ^= char(1 << random() % 8);
        }
        std::ofstream(path, std::ios::binary) << bad;
        pi_model_params params = model_params(bounds.least, session);
        params.bundle = false;
        try {
            const Floats found = answer(Model::load(path, params), session, kFew);
            CHECK(begin == 0 || same(expected, found));
        } catch (const Error& e) {
            n_refused++;
            CHECK(begin == 0 || e.code() == Code::format);
        }
    }
    CHECK(n_refused > n / 3);
}

// Sessions of several threads share the store.
void test_together() {
    Shape shape = wide();
    shape.predictor_rank = 32;
    const std::string path = bundled(shape);
    const pi_session_params session = session_params(2, 48);
    pi_model_params params = model_params(0, session);
    params.n_sessions = 3;
    const Floats expected = answer(load(path), session, kFew);
    const auto least = Model::inspect(path, [&] {
        params.ram_budget = 1;
        return params;
    }());
    for (const std::string& io : ways()) {
        setenv("POWERINFER_IO", io.c_str(), 1);
        params.ram_budget = least->storage->least + (64 << 10);
        const auto model = Model::load(path, params);
        CHECK(model->store);
        std::vector<std::thread> callers;
        std::vector<Floats> found(3);
        for (Floats& out : found) {
            callers.emplace_back([&] { out = answer(model, session, kFew); });
        }
        for (std::thread& caller : callers) caller.join();
        for (const Floats& out : found) CHECK(same(expected, out));
    }
    unsetenv("POWERINFER_IO");
}

// Sessions that are opened later share what is left: one that does not fit is refused with a
// sentence, and does the others no harm.
void test_later_sessions() {
    const std::string path = bundled(wide());
    const pi_session_params session = session_params(2, 48);
    const Floats expected = answer(load(path), session, kFew);
    const Bounds bounds = bounds_of(path, session);
    const auto model =
        Model::load(path, model_params(bounds.least + (bounds.all - bounds.least) / 2, session));
    Session first(model, session);
    const uint64_t reserved = model->budget->reserved();
    for (int i = 0; i < 3; i++) {
        pi_session_params larger = session;
        larger.n_ctx += i;
        std::string said;
        try {
            Session(model, larger);
        } catch (const Error& e) {
            CHECK(e.code() == Code::memory);
            said = e.what();
        }
        CHECK(said.find("a context of") == 0 && said.find("would take") != said.npos);
        CHECK(model->budget->reserved() == reserved);
    }
    eval(first, random_tokens(8, 3));
}

// The least budget is named, and one byte less is refused; without a bundled file one is written,
// unless that is forbidden.
void test_budgets() {
    tiny::write(tiny::describe(wide()), folder / "model.gguf");
    const std::string path = folder / "model.gguf", bundle = path + ".bundle.gguf";
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    CHECK(!std::filesystem::exists(bundle));
    const auto error_of = [&](pi_model_params params) -> std::string {
        try {
            Model::load(path, params);
        } catch (const Error& e) {
            return e.what();
        }
        return "";
    };
    const std::string said = error_of(model_params(bounds.least - 1, session));
    CHECK(std::strstr(said.c_str(), std::to_string(bounds.least).c_str()));
    pi_model_params without = model_params(bounds.least, session);
    without.bundle = false;
    CHECK(std::strstr(error_of(without).c_str(), "may not be written"));
    CHECK(!std::filesystem::exists(bundle));
    CHECK(error_of(model_params(bounds.least, session)).empty());
    CHECK(std::filesystem::exists(bundle));
    CHECK(error_of(without).empty());
}

}  // namespace

int main() {
    test_disk();
    test_together();
#if defined(__SANITIZE_THREAD__)  // twenty times as slow; others share no more
    return check::summary("test_storage");
#endif
    std::vector<Shape> all;
    for (DType type : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_0}) {
        Shape shape = wide();
        shape.type = type;
        shape.biases = type == DType::Q8_0;
        all.push_back(shape);
    }
    all[1].activation = "silu";  // every neuron contributes
    all.push_back(wide());
    all.back().n_expert = 5, all.back().n_ff = 700;
    all.push_back(wide());
    all.back().predictor_rank = 32;
    Shape mixture = wide();
    mixture.predictor_rank = 96, mixture.n_expert = 5, mixture.n_ff = 700;
    for (DType type : {DType::Q4_0, DType::F16}) {  // packed, and not
        all.push_back(mixture);
        all.back().type = type;
    }
    for (const bool sketch :
         {false, true}) {  // routed before attention, without predictors or with
        all.push_back(mixture);
        all.back().architecture = "smallthinker";
        all.back().predictor_rank = 0, all.back().sketch = sketch;
    }
    for (const Shape& shape : all) {
        test_shape(shape, PI_SPARSE_AUTO);  // exact without predictors
        if (!shape.predictor_rank && !shape.sketch) continue;
        test_shape(shape, PI_SPARSE_PREDICTOR);
        if (!check::kSanitized) test_shape(shape, PI_SPARSE_EXACT);
    }
    test_lending();
    test_audits();
    test_resident();
    Shape narrow = wide();
    narrow.n_ff = 1000, narrow.n_layer = 2;
    test_orders(narrow, check::kSanitized ? 40 : 200);
    mixture.n_layer = 2, mixture.n_ff = 400;
    test_orders(mixture, check::kSanitized ? 20 : 60);
    test_faults(wide());
    test_faults(mixture);
    test_predictors(mixture);
    test_silence();
    test_changes();
    test_damage();
    test_later_sessions();
    test_budgets();
    return check::summary("test_storage");
}
