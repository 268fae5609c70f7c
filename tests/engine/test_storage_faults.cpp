// Models whose neurons stay on the disk, and disks that fail, files that change, and sessions that
// share a store.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "circle.h"
#include "faulty_reader.h"
#include "stored_models.h"

namespace {

using namespace stored;
using faulty::Fault;

// After a read that failed the call fails, and the next one works.
void test_faults(const Shape& shape) {
    const std::string path = bundled(shape);
    pi_session_params session = session_params(2, 48);
    const Floats expected = answer(load(path), session, kFew);
    const Bounds bounds = bounds_of(path, session);
    const uint64_t n_seeds = full_circle() ? 20 : 7;
    uint64_t n_failed = 0;
    for (Fault fault : {Fault::eio, Fault::cut, Fault::flipped}) {
        for (uint64_t seed = 0; seed < n_seeds; seed++) {
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
    CHECK(2 * n_failed > 3 * n_seeds);  // of three faults for each
}

// A read that never comes back ends the call, not the process; nor does the model's end wait for
// it, and its memory is left to the disk, which may still write there.
void test_silence() {
    const std::string path = bundled(wide());
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    bool on = false;
    ggml::ReadPiece asked{};
    auto model = with_reader(path, model_params(bounds.least, session),
                             std::make_unique<faulty::Reader>(
                                 path, faulty::Order{}, [&](uint64_t, const ggml::Read& read) {
                                     if (!std::exchange(on, false)) return Fault::none;
                                     asked = read.pieces[0];
                                     return Fault::never;
                                 }));
    model->store->set_patience(0.05);
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
    CHECK(model->store->reader().in_flight() == 1);
    const auto begin = std::chrono::steady_clock::now();
    model.reset();
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    std::fill_n(asked.to, asked.bytes, uint8_t(1));
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
        const StoredNeurons& neurons = probe->ffns[1]->blocks[0].stored;
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
            for (size_t i = 0; i < changes.size(); i++) {
                // In the quick circle: each change in one way of reading.
                if (!full_circle() && (i + tied + (io == "uring")) % 2) continue;
                const Change& change = changes[i];
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
    const int n = check::kSanitized ? 60 : full_circle() ? 300 : 100;
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

}  // namespace

int main() {
    test_disk();
    test_together();
#if defined(__SANITIZE_THREAD__)  // twenty times as slow; others share no more
    return check::summary("test_storage_faults");
#endif
    Shape mixture = wide();
    mixture.predictor_rank = 96, mixture.n_expert = 5, mixture.n_ff = 400, mixture.n_layer = 2;
    test_faults(wide());
    test_faults(mixture);
    test_silence();
    test_changes();
    test_damage();
    return check::summary("test_storage_faults");
}
