// Mixtures that run from their ordinary files, and dense models with mmap_anyway: the same bits as
// in memory, at every budget; disks that fail; files that change.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "circle.h"
#include "faulty_reader.h"
#include "plan/ways.h"
#include "stored_models.h"

namespace {

using namespace stored;
using faulty::Fault;

Shape mixture(DType type = DType::Q8_0) {
    Shape shape;
    shape.type = type;
    shape.n_embd = 128, shape.n_ff = 256, shape.n_layer = 3, shape.n_expert = 24;
    return shape;
}

Shape dense(DType type = DType::Q8_0) {
    Shape shape;
    shape.type = type;
    shape.n_embd = 128, shape.n_ff = type == DType::F32 ? 192 : 1024, shape.n_layer = 12;
    return shape;
}

// For mixtures mmap_anyway changes nothing.
pi_model_params stored_params(uint64_t budget, const pi_session_params& session) {
    pi_model_params params = model_params(budget, session);
    params.mmap_anyway = true;
    return params;
}

std::string written(const Description& d) {
    const std::string path = folder / "mixture.gguf";
    std::remove((path + ".resident").c_str());
    tiny::write(d, path);
    return path;
}

// Another format for one matrix, as half of the layers have it in K_M files.
void reencode(Description& d, const std::string& name, DType type) {
    tiny::Tensor& t = d.tensor(name);
    int64_t n = 1;
    for (int64_t size : t.ne) n *= size;
    std::vector<float> values(static_cast<size_t>(n));
    ggml::info(t.type).decode(t.bytes.data(), values.data(), n);
    t.type = type;
    t.bytes.resize(size_t(ggml::info(type).size(n)));
    ggml::info(type).encode(values.data(), t.bytes.data(), n);
}

// One tensor with the rows of gate and up, expert by expert.
void fuse(Description& d, const std::string& blk) {
    const tiny::Tensor gate = d.tensor(blk + "ffn_gate_exps.weight");
    const tiny::Tensor up = d.tensor(blk + "ffn_up_exps.weight");
    tiny::Tensor both{blk + "ffn_gate_up_exps.weight", gate.type, gate.ne, {}};
    both.ne[1] *= 2;
    const auto each = ptrdiff_t(gate.bytes.size()) / gate.ne[2];
    for (ptrdiff_t e = 0; e < gate.ne[2]; e++) {
        for (const tiny::Tensor* t : {&gate, &up}) {
            const auto from = t->bytes.begin() + e * each;
            both.bytes.insert(both.bytes.end(), from, from + each);
        }
    }
    d.remove(gate.name);
    d.remove(up.name);
    d.tensors.push_back(both);
}

// A tensor for every expert.
void divide(Description& d, const std::string& blk) {
    for (const char* what : {"gate", "up", "down"}) {
        const tiny::Tensor all = d.tensor(blk + "ffn_" + what + "_exps.weight");
        const auto each = ptrdiff_t(all.bytes.size()) / all.ne[2];
        for (ptrdiff_t e = 0; e < all.ne[2]; e++) {
            const auto from = all.bytes.begin() + e * each;
            d.tensors.push_back({blk + "ffn_" + what + "." + std::to_string(e) + ".weight",
                                 all.type,
                                 {all.ne[0], all.ne[1]},
                                 {from, from + each}});
        }
        d.remove(all.name);
    }
}

// The same bits as in memory, at several budgets and numbers of threads. In the quick circle one
// number for each model, another one for the next.
void check_same(const Description& d) {
    static int n_models = 0;
    const int only = n_models++ % 2 + 1;
    const std::string path = written(d);
    const Floats expected = answer(load(path), session_params(1, 48));
    for (int32_t n_threads : {1, 2}) {
        if (!full_circle() && n_threads != only) continue;
        const pi_session_params session = session_params(n_threads, 48);
        const Bounds bounds = bounds_of(path, session);
        CHECK(bounds.least < bounds.all);
        for (int share = 0; share < 10; share += full_circle() ? 3 : 6) {
            const uint64_t budget = bounds.least + (bounds.all - bounds.least) * share / 10;
            const auto model = Model::load(path, stored_params(budget, session));
            CHECK(model->experts && !model->store);
            if (!model->experts) continue;
            CHECK(same(expected, answer(model, session)));
            CHECK(sum(model->experts->counts).missed[0] > 0);
            CHECK(model->experts->used() <= model->experts->shape().slots());
            // A second session finds what the first one left.
            if (full_circle() || share) CHECK(same(expected, answer(model, session)));
        }
    }
}

// Calls of answer() compute so many batches.
uint64_t batches_of_answer(int32_t n_ubatch) {
    return uint64_t((40 + n_ubatch - 1) / n_ubatch + 12 + 2 + 1);
}

// The same of a dense model. A batch reads what memory lacks and nothing else, also when it is
// generated, and what is in memory stays there.
void check_same_dense(const Description& d) {
    const std::string path = written(d);
    const Floats expected = answer(load(path), session_params(1, 48));
    for (int32_t n_threads : {1, 2}) {
        const pi_session_params session = session_params(n_threads, 48);
        const Bounds bounds = bounds_of(path, session);
        CHECK(bounds.least < bounds.all);
        int64_t slots = 0;
        for (int share = 0; share < 10; share += full_circle() ? 1 : 4) {
            const uint64_t budget = bounds.least + (bounds.all - bounds.least) * share / 10;
            const auto model = Model::load(path, stored_params(budget, session));
            CHECK(model->experts && !model->store);
            if (!model->experts) continue;
            ExpertStore& store = *model->experts;
            const auto n_blocks = int32_t(model->n_blocks());
            std::vector<bool> absent;
            for (int32_t i = 0; i < n_blocks; i++) absent.push_back(store.absent(i));
            CHECK(store.used() == store.shape().slots() && store.used() < n_blocks);
            CHECK(store.used() >= slots);
            CHECK(share == 0 ? store.used() == 0 : share < 8 || store.used() > 0);
            slots = store.used();
            const uint64_t filled = sum(store.counts).bytes;
            CHECK(same(expected, answer(model, session)));
            const uint64_t batches = batches_of_answer(model->storage->n_ubatch);
            const StoreCounts counts = sum(store.counts);
            CHECK(counts.needed[0] == batches * uint64_t(n_blocks));
            CHECK(counts.missed[0] == batches * uint64_t(n_blocks - slots));
            const uint64_t missing = store.shape().missing();
            const double read = double(counts.bytes - filled) / double(batches);
            CHECK(read >= 0.7 * double(missing) && read < 1.1 * double(missing));
            for (int32_t i = 0; i < n_blocks; i++) CHECK(store.absent(i) == absent[size_t(i)]);
        }
    }
    CHECK(!std::filesystem::exists(path + ".resident"));
}

void test_dense() {
    for (DType type : {DType::F32, DType::Q8_0}) check_same_dense(describe(dense(type)));
    Shape biased = dense(DType::Q4_0);
    biased.biases = biased.tied = true;
    Description mixed = describe(biased);
    for (const char* name : {"blk.1.ffn_down.weight", "blk.5.ffn_down.weight"}) {
        reencode(mixed, name, DType::F16);
    }
    const tiny::Tensor gate = mixed.tensor("blk.2.ffn_gate.weight");
    tiny::Tensor& both = mixed.tensor("blk.2.ffn_up.weight");
    both.bytes.insert(both.bytes.begin(), gate.bytes.begin(), gate.bytes.end());
    both.ne[1] *= 2;
    mixed.remove(gate.name);
    check_same_dense(mixed);
}

// While a block is computed, the next two are on their way.
void test_ahead() {
    const std::string path = written(describe(dense(DType::Q4_0)));
    const pi_session_params session = session_params(1, 48);
    const auto model = Model::load(path, stored_params(bounds_of(path, session).least, session));
    ExpertStore& store = *model->experts;
    ggml::Context context(1);
    for (int token = 0; token < 2; token++) {
        store.begin(1);
        CHECK(store.reader().in_flight() > 0);
        const auto n = int32_t(model->n_blocks());
        for (int32_t block = 0; block < n; block++) {
            CHECK(store.matrices(context, block).size() == 3);
            CHECK(block + 2 >= n || store.reader().in_flight() > 0);
            store.keep(block, 1);
        }
        CHECK(store.reader().in_flight() == 0);
    }
}

// However many blocks memory has room for, the others are spread over the model.
void test_spread() {
    for (int64_t n = 1; n < 40; n++) {
        PageShape shape;
        for (int64_t i = 0; i <= n; i++) shape.before.push_back(i);
        shape.class_of.assign(size_t(n), 0);
        shape.classes.push_back({});
        const std::vector<int32_t> order = shape.spread();
        std::vector<int32_t> first;
        for (int32_t block : order) {
            first.push_back(block);
            std::sort(first.begin(), first.end());
            CHECK(std::adjacent_find(first.begin(), first.end()) == first.end());
            int64_t gap = n - first.back();
            for (size_t i = 1; i < first.size(); i++) {
                gap = std::max(gap, int64_t(first[i] - first[i - 1]));
            }
            CHECK(first[0] == 0 && double(gap) < 2.0 * double(n) / double(first.size()));
        }
        CHECK(int64_t(order.size()) == n);
    }
}

// Without mmap_anyway a dense model is refused, and that is the last way out; with it the log has
// a warning. It needs what it says.
void test_asked_for() {
    const std::string path = written(describe(dense(DType::Q4_0)));
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    std::vector<std::string> said;
    const auto listen = [&](pi_model_params params) {
        said.clear();
        params.log_data = &said;
        params.log = [](int32_t level, const char* text, void* to) {
            if (level <= 2) static_cast<std::vector<std::string>*>(to)->push_back(text);
        };
        return params;
    };
    const auto refused = [&](const pi_model_params& params) {
        CHECK_THROWS(memory, Session(Model::load(path, params), session));
        CHECK(said.empty());
    };
    for (uint64_t budget : {bounds.least, bounds.all - 1}) {
        const pi_model_params without = listen(model_params(budget, session));
        refused(without);
        const auto inspected = Model::inspect(path, without);
        const std::vector<Way> ways =
            find_ways(*inspected, without, kept_session(*inspected, without));
        CHECK(!ways.empty() && !std::strcmp(ways.back().what, "mmap_anyway"));
        CHECK(ways.back().bytes == bounds.least && inspected->anyway);
        CHECK(ways.back().value == int64_t(inspected->anyway->experts.missing()));
        const auto model = Model::load(path, listen(stored_params(budget, session)));
        CHECK(said.size() == 1 && said[0].find("each token reads") != std::string::npos);
        CHECK(said[0].find(path) == 0);
        const Session opened(model, session);
        CHECK(model->budget->reserved() <= budget);
    }
    refused(listen(stored_params(bounds.least - 1, session)));
    // More memory never means more reads, and is used.
    double seconds = 1;
    for (int i = 0; i < 40; i++) {
        const uint64_t budget = bounds.least + (bounds.all - bounds.least) * uint64_t(i) / 40;
        const auto model = Model::inspect(path, stored_params(budget, session));
        CHECK(model->storage && model->storage->read_seconds <= seconds);
        seconds = model->storage->read_seconds;
        const Plan plan = make_plan(*model, session);
        const uint64_t page = model->storage->experts.classes[0].page;
        CHECK(total(plan.parts, Tier::ram) <= budget);
        CHECK(total(plan.parts, Tier::ram) + 2 * page > budget);
    }
    // In memory if it fits.
    CHECK(!Model::load(path, listen(stored_params(bounds.all, session)))->experts && said.empty());
}

void test_budgets() {
    for (DType type : {DType::F32, DType::Q8_0, DType::Q4_0}) check_same(describe(mixture(type)));
    Description mixed = describe(mixture());
    reencode(mixed, "blk.1.ffn_down_exps.weight", DType::F16);
    check_same(mixed);
    Description fused = describe(mixture());
    for (const char* blk : {"blk.0.", "blk.1.", "blk.2."}) fuse(fused, blk);
    check_same(fused);
    Description singles = describe(mixture());
    for (const char* blk : {"blk.0.", "blk.1.", "blk.2."}) divide(singles, blk);
    check_same(singles);
}

// Files with other tensors of the same numbers compute the same.
void test_other_tensors() {
    const pi_session_params session = session_params(1, 48);
    const Floats expected = answer(load(written(describe(mixture()))), session);
    Description other = describe(mixture());
    fuse(other, "blk.0.");
    divide(other, "blk.1.");
    CHECK(same(expected, answer(load(written(other)), session)));
}

// What is expected of a budget: more memory never makes it worse, and `twice` is what it says.
void test_expected() {
    const std::string path = written(describe(mixture()));
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    const auto planned = [&](uint64_t budget) {
        return *Model::inspect(path, model_params(budget, session))->storage;
    };
    double seconds = 1, hits = -1;
    int n_twice = 0;
    for (int i = 0; i < 20; i++) {
        const StoragePlan plan = planned(bounds.least + (bounds.all - bounds.least) * i / 20);
        CHECK(plan.read_seconds > 0 && plan.token_seconds > plan.read_seconds);
        CHECK(plan.token_seconds <= seconds && plan.hits >= hits && plan.hits < 1);
        seconds = plan.token_seconds, hits = plan.hits;
        if (!plan.twice) continue;
        n_twice++;
        CHECK(plan.twice > bounds.least && plan.twice <= bounds.all);
        if (plan.twice == bounds.all) continue;
        // Within what an expert for every layer takes, and the rows that a larger budget allows.
        const uint64_t step = (bounds.all - bounds.least) / 20;
        CHECK(2 * planned(plan.twice - step).token_seconds > seconds);
        if (plan.twice + step > bounds.all) continue;
        CHECK(2 * planned(plan.twice + step).token_seconds < seconds);
    }
    CHECK(n_twice > 5 && n_twice < 20);
}

// What the last run kept is in memory when the next one begins.
void test_resident() {
    const std::string path = written(describe(mixture()));
    const pi_session_params session = session_params(1, 48);
    const Floats expected = answer(load(path), session, 60);
    const Bounds bounds = bounds_of(path, session);
    const pi_model_params params = model_params((bounds.least + bounds.all) / 2, session);
    CHECK(same(expected, answer(Model::load(path, params), session, 60)));
    CHECK(std::filesystem::exists(path + ".resident"));
    const auto model = Model::load(path, params);
    CHECK(model->experts->used() == model->experts->shape().slots());
    CHECK(same(expected, answer(model, session, 60)));
    // It belongs to this file only.
    tiny::write(describe(mixture(), 2), path);
    CHECK(Model::load(path, params)->experts->used() == 0);
}

// Filling a cache ends after the seconds that it may take, and what was asked for is kept.
void test_fill() {
    const std::string path = written(describe(mixture()));
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    const auto model = Model::load(path, model_params((bounds.least + bounds.all) / 2, session));
    ExpertStore& store = *model->experts;
    ggml::Context context(1);
    float last = 0;
    const auto progress = [&](float fraction) { last = fraction; };
    store.fill(context, {5, 6}, 0, progress);
    CHECK(store.used() == 0 && last == 1);
    store.fill(context, {5, 6}, 60, progress);
    CHECK(store.used() == 2 && !store.absent(5) && !store.absent(6) && store.absent(7));
    CHECK(same(answer(load(path), session), answer(model, session)));
}

// What a session counts: experts by layer, and their bytes; guesses, which are not hits.
void test_counts() {
    const std::string path = written(describe(mixture()));
    const pi_session_params params = session_params(1, 48);
    const Bounds bounds = bounds_of(path, params);
    const auto model = Model::load(path, model_params((bounds.least + bounds.all) / 2, params));
    const uint64_t n_used = uint64_t(model->ffns[0]->n_used), n_ff = uint64_t(model->ffns[0]->n_ff);
    const PageShape& shape = model->experts->shape();
    const Tokens tokens = random_tokens(40, 3);
    for (const bool guesses : {false, true}) {
        const_cast<Model&>(*model).experts->set_guesses(guesses);
        const std::vector<StoreCounts> begun = model->experts->counts;
        Session session(model, params);
        for (int32_t token : tokens) eval(session, {token}, {});
        uint64_t guessed = 0;
        for (size_t part = 0; part < model->ffns.size(); part++) {
            const StoreCounts& c = session.counts.stored[part];
            StoreCounts of_store;
            of_store.add(begun[part], model->experts->counts[part]);
            CHECK(of_store.needed[0] == c.needed[0] && of_store.bytes == c.bytes);
            CHECK(c.needed[0] == tokens.size() * n_used && c.needed[1] + c.missed[1] == 0);
            CHECK(c.missed[0] > 0 && c.missed[0] < c.needed[0]);
            CHECK(uint64_t(session.counts.from_disk[part]) == c.missed[0] * n_ff);
            // A page of this format is as long as what is read of it, but for the disk's units.
            const uint64_t page = shape.classes[size_t(shape.class_of[part])].page;
            const uint64_t read = c.missed[0] + c.guessed - c.right;
            CHECK(c.right <= c.guessed);
            CHECK(c.bytes >= c.missed[0] * page && c.bytes <= read * (page + 3 * 8192));
            guessed += c.guessed;
        }
        CHECK(guesses == (guessed > 0));
        CHECK(sum(session.counts.stored).waited_s > 0);
    }
}

// What is read early is what the router chooses with its bias, here half of the experts. By the
// scores alone 1 of 5 guesses was right, and so few were worth it; with the bias 24 of 37 are.
void test_guesses_know_the_bias() {
    Description d = describe(mixture());
    std::vector<float> bias(24, 0.0f);
    for (size_t e = 0; e < 12; e++) bias[e] = 1;
    const auto* bytes = reinterpret_cast<const uint8_t*>(bias.data());
    for (int i = 0; i < 3; i++) {
        d.tensors.push_back({"blk." + std::to_string(i) + ".exp_probs_b.bias",
                             DType::F32,
                             {24},
                             {bytes, bytes + bias.size() * sizeof(float)}});
    }
    const std::string path = written(d);
    const pi_session_params params = session_params(1, 48);
    const Bounds bounds = bounds_of(path, params);
    const auto model = Model::load(path, model_params((bounds.least + bounds.all) / 2, params));
    Session session(model, params);
    for (int32_t token : random_tokens(40, 3)) eval(session, {token}, {});
    uint64_t guessed = 0, right = 0;
    for (const StoreCounts& c : session.counts.stored) guessed += c.guessed, right += c.right;
    CHECK(guessed > 10 && 2 * right > guessed);
}

std::shared_ptr<const Model> with_faults(const std::string& path, const pi_model_params& params,
                                         const faulty::Order& order, faulty::Choose choose) {
    const std::shared_ptr<const Model> model = Model::load(path, params);
    std::vector<std::unique_ptr<ggml::Reader>> readers;
    readers.push_back(std::make_unique<faulty::Reader>(path, order, std::move(choose)));
    const_cast<Model&>(*model).experts = open_experts(*model, params, std::move(readers));
    return model;
}

// After a read that failed the call fails, and the next one works.
void test_faults(const Description& d, uint64_t n_seeds) {
    const std::string path = written(d);
    const pi_session_params session = session_params(2, 48);
    const Floats expected = answer(load(path), session, kFew);
    const Bounds bounds = bounds_of(path, session);
    uint64_t n_failed = 0;
    for (Fault fault : {Fault::eio, Fault::cut, Fault::flipped, Fault::late}) {
        for (uint64_t seed = 0; seed < n_seeds; seed++) {
            bool on = false;
            auto random = faulty::at_random(seed, 0.02, {fault});
            faulty::Order order;
            order.seed = seed;
            order.depth = int(1 + seed % 5);
            const auto model = with_faults(
                path, stored_params(bounds.least + seed * 1000, session), order,
                [&](uint64_t n, const ggml::Read& r) { return on ? random(n, r) : Fault::none; });
            // Experts have no checksums before they have been read.
            answer(model, session, kFew);
            on = true;
            try {
                CHECK(same(expected, answer(model, session, kFew)));
            } catch (const Error& e) {
                n_failed++;
                CHECK(fault != Fault::late);
                CHECK(e.code() == (fault == Fault::flipped ? Code::format : Code::io));
                CHECK(std::strstr(e.what(), path.c_str()));
            }
            on = false;
            CHECK(same(expected, answer(model, session, kFew)));
        }
    }
    CHECK(n_failed > n_seeds);  // of three faults for each
}

// A model in two parts, on disks whose blocks differ: the error names the part that failed.
void test_parts() {
    const Description d = describe(mixture());
    const std::string first = folder / "m-00001-of-00002.gguf",
                      second = folder / "m-00002-of-00002.gguf";
    const size_t n = d.tensors.size();
    for (uint32_t no : {0, 1}) {
        tiny::write(
            d, no ? second : first, no ? n / 2 : 0, no ? n : n / 2, no == 0,
            {{"split.no", no}, {"split.count", uint32_t(2)}, {"split.tensors.count", uint32_t(n)}});
    }
    const pi_session_params session = session_params(1, 48);
    const Floats expected = answer(load(written(d)), session, kFew);
    const pi_model_params params = model_params(bounds_of(first, session).least, session);
    const std::shared_ptr<const Model> model = Model::load(first, params);
    bool on = false;
    std::vector<std::unique_ptr<ggml::Reader>> readers;
    for (const std::string& path : {first, second}) {
        faulty::Order order;
        order.align = path == first ? 512 : 4096;
        readers.push_back(
            std::make_unique<faulty::Reader>(path, order, [&on, path, second](auto&&...) {
                return on && path == second ? Fault::eio : Fault::none;
            }));
    }
    const_cast<Model&>(*model).experts = open_experts(*model, params, std::move(readers));
    CHECK(same(expected, answer(model, session, kFew)));
    on = true;
    std::string said;
    try {
        answer(model, session, kFew);
    } catch (const Error& e) {
        said = e.what();
    }
    CHECK(said.find(second + ": reading expert ") == 0);
    on = false;
    CHECK(same(expected, answer(model, session, kFew)));
}

// A read that never comes back ends the call, not the process.
void test_silence() {
    const std::string path = written(describe(mixture()));
    const pi_session_params session = session_params(1, 48);
    bool on = false;
    ggml::ReadPiece asked{};
    auto model = with_faults(path, model_params(bounds_of(path, session).least, session),
                             faulty::Order{}, [&](uint64_t, const ggml::Read& read) {
                                 if (!std::exchange(on, false)) return Fault::none;
                                 asked = read.pieces[0];
                                 return Fault::never;
                             });
    model->experts->set_patience(0.05);
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
    const auto begin = std::chrono::steady_clock::now();
    model.reset();
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    std::fill_n(asked.to, asked.bytes, uint8_t(1));
}

// A file whose bytes change while it is open: every call fails at once.
void test_changes() {
    namespace fs = std::filesystem;
    const std::string good = written(describe(mixture())), path = folder / "changing.gguf";
    const pi_session_params session = session_params(1, 48);
    const Floats expected = answer(load(good), session, kFew);
    const Bounds bounds = bounds_of(good, session);
    for (const std::string& io : ways()) {
        setenv("POWERINFER_IO", io.c_str(), 1);
        for (int change = 0; change < 3; change++) {
            fs::copy_file(good, path, fs::copy_options::overwrite_existing);
            const auto model = Model::load(path, model_params(bounds.least, session));
            CHECK(same(expected, answer(model, session, kFew)));
            std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a tick of its times
            if (change == 0) fs::resize_file(path, fs::file_size(path) / 2);
            if (change == 1) std::ofstream(path, std::ios::app) << "more";
            if (change == 2) fs::remove(path);
            for (int call = 0; call < 2; call++) {
                std::string said;
                try {
                    CHECK(same(expected, answer(model, session, kFew)));
                } catch (const Error& e) {
                    said = e.what();
                }
                CHECK(said.empty() == (change == 2));
                if (change != 2) CHECK(said.find(path) == 0);
            }
        }
    }
    unsetenv("POWERINFER_IO");
}

}  // namespace

int main() {
    test_budgets();
    test_dense();
    test_ahead();
    test_spread();
    test_asked_for();
    test_other_tensors();
    test_expected();
    test_resident();
    test_fill();
    test_counts();
    test_guesses_know_the_bias();
    test_faults(describe(mixture()), full_circle() ? 20 : 5);
    test_faults(describe(dense(DType::Q4_0)), full_circle() ? 10 : 1);
    test_parts();
    test_silence();
    test_changes();
    return check::summary("test_experts");
}
