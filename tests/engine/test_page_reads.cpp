// The reads of stores: guesses that fail, parts of a model on disks of which one is silent, pages
// that are in use together, and callers who ask where neurons are while a session computes.
#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <set>
#include <thread>

#include "api/api.h"
#include "faulty_reader.h"
#include "forward/neuron_source.h"
#include "plan/expert_plan.h"
#include "stored_models.h"

namespace {

using namespace stored;
using faulty::Fault;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

Shape mixture() {
    Shape shape;
    shape.type = DType::Q8_0;
    shape.n_embd = 128, shape.n_ff = 256, shape.n_layer = 3, shape.n_expert = 24;
    return shape;
}

std::string written(const Description& d) {
    const std::string path = folder / "mixture.gguf";
    std::remove((path + ".resident").c_str());
    tiny::write(d, path);
    return path;
}

std::shared_ptr<const Model> with_readers(const std::string& path, const pi_model_params& params,
                                          std::vector<std::unique_ptr<ggml::Reader>> readers) {
    const std::shared_ptr<const Model> model = Model::load(path, params);
    const_cast<Model&>(*model).experts = open_experts(*model, params, std::move(readers));
    return model;
}

std::shared_ptr<const Model> with_faults(const std::string& path, const pi_model_params& params,
                                         const faulty::Order& order, faulty::Choose choose) {
    std::vector<std::unique_ptr<ggml::Reader>> readers;
    readers.push_back(std::make_unique<faulty::Reader>(path, order, std::move(choose)));
    return with_readers(path, params, std::move(readers));
}

Bytes bytes_of(const std::vector<ggml::Matrix>& matrices) {
    Bytes all;
    for (const ggml::Matrix& m : matrices) all.insert(all.end(), m.data, m.data + m.bytes());
    return all;
}

Bytes bytes_of(const NeuronSource::Matrices& m) {
    return bytes_of(std::vector<ggml::Matrix>{m.gate, m.up, m.down});
}

// The experts of a model, one after the other.
std::vector<Bytes> all_bytes(const Model& model) {
    std::vector<Bytes> all;
    ggml::Context context(1);
    model.experts->begin(1);
    for (int32_t i = 0; i < int32_t(model.n_blocks()); i++) {
        all.push_back(bytes_of(model.experts->matrices(context, i)));
        model.experts->keep(i, 0);
    }
    return all;
}

std::string said_by(const std::function<void()>& act) {
    try {
        act();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

// A guess whose read fails harms nothing, whether it still stands or has been given up. The expert
// is read again when it is needed, and a failure of that read ends the call.
void test_failed_guess() {
    const std::string path = written(describe(mixture()));
    const pi_session_params session = session_params(1, 48);
    const pi_model_params params = model_params(bounds_of(path, session).least, session);
    const std::vector<Bytes> expected = all_bytes(*Model::load(path, params));
    bool on = false;
    faulty::Order order;
    order.shuffled = false;
    const auto model = with_faults(path, params, order, [&](uint64_t, const ggml::Read&) {
        return on ? Fault::eio : Fault::none;
    });
    ExpertStore& store = *model->experts;
    ggml::Context context(1);
    const auto guess = [&](int32_t expert) {
        on = true;
        store.guess(0, &expert, 1);
        on = false;
        CHECK(store.reader().owed() > 0);
    };
    const auto is_right = [&](int32_t expert) {
        const bool right = bytes_of(store.matrices(context, expert)) == expected[size_t(expert)];
        store.keep(expert, 1);
        return right;
    };
    store.begin(1);
    guess(3);
    CHECK(is_right(5));
    while (store.reader().owed() > 0) CHECK(is_right(5));
    CHECK(is_right(3));
    guess(7);
    const int32_t other = 8;
    store.guess(0, &other, 1);
    CHECK(is_right(9) && is_right(7) && is_right(8));
    guess(11);
    CHECK(is_right(12));
    while (store.reader().owed() > 0) CHECK(is_right(12));
    on = true;
    const std::string said = said_by([&] { store.matrices(context, 11); });
    CHECK(said.find(path + ": reading expert 11 failed") == 0);
    on = false;
    store.reset();
    CHECK(same(answer(load(path), session, kFew), answer(model, session, kFew)));
}

// The same in a session, where reads fail of all experts that were guessed wrongly. Which these are
// is known from a session that guesses nothing.
void test_wrong_guesses() {
    const std::string path = written(describe(mixture()));
    const pi_session_params params = session_params(1, 48);
    const Bounds bounds = bounds_of(path, params);
    const Tokens tokens = random_tokens(40, 3);
    std::vector<std::set<uint64_t>> needed(tokens.size());  // by token: where is read
    Floats expected;
    int n_failed = 0;
    for (const bool guesses : {false, true}) {
        size_t i = 0;
        const auto model = with_faults(path, model_params((bounds.least + bounds.all) / 2, params),
                                       {}, [&](uint64_t, const ggml::Read& read) {
                                           if (!guesses) needed[i].insert(read.offset);
                                           const bool wrong = !needed[i].count(read.offset);
                                           n_failed += wrong;
                                           return wrong ? Fault::eio : Fault::none;
                                       });
        const_cast<Model&>(*model).experts->set_guesses(guesses);
        Session session(model, params);
        Floats found;
        for (i = 0; i < tokens.size(); i++) {
            eval(session, {tokens[i]}, {});
            append_logits(session, 0, found);
        }
        i = 0;
        if (guesses) CHECK(same(expected, found));
        expected = found;
    }
    CHECK(n_failed > 5);
}

// A model in two parts, of which the first one's disk is silent: what the second has is there at
// once, even if the first takes no more reads. The error names the disk that was waited for.
void test_silent_part() {
    const Description d = describe(mixture());
    const std::string paths[] = {folder / "m-00001-of-00002.gguf",
                                 folder / "m-00002-of-00002.gguf"};
    const size_t n = d.tensors.size();
    for (uint32_t no : {0, 1}) {
        tiny::write(
            d, paths[no], no ? n / 2 : 0, no ? n : n / 2, no == 0,
            {{"split.no", no}, {"split.count", uint32_t(2)}, {"split.tensors.count", uint32_t(n)}});
    }
    const pi_session_params session = session_params(1, 48);
    const pi_model_params params = model_params(bounds_of(paths[0], session).least, session);
    for (const int depth : {1, 128}) {
        bool silent[] = {false, false};
        std::vector<std::unique_ptr<ggml::Reader>> readers;
        for (const int i : {0, 1}) {
            faulty::Order order;
            order.depth = depth;
            readers.push_back(std::make_unique<faulty::Reader>(
                paths[i], order, [&silent, i](uint64_t, const ggml::Read&) {
                    return silent[i] ? Fault::never : Fault::none;
                }));
        }
        auto model = with_readers(paths[0], params, std::move(readers));
        const std::vector<Bytes> expected = all_bytes(*model);
        std::vector<int32_t> files, of[2];
        const std::vector<StoredPage> pages = stored_experts(*model, files);
        for (size_t i = 0; i < pages.size(); i++) {
            if (!model->experts->absent(int32_t(i))) continue;
            for (const int32_t file : {0, 1}) {
                const auto here = [&](const StoredMatrix& m) { return m.file == file; };
                if (std::all_of(pages[i].begin(), pages[i].end(), here)) {
                    of[file].push_back(int32_t(i));
                }
            }
        }
        CHECK(of[0].size() > 2 && of[1].size() > 2);
        ExpertStore& store = *model->experts;
        ggml::Context context(1);
        store.begin(1);
        store.set_patience(30);
        silent[0] = true;
        CHECK(store.request(of[0][0]));
        const auto begin = Clock::now();
        CHECK(bytes_of(store.matrices(context, of[1][0])) == expected[size_t(of[1][0])]);
        store.keep(of[1][0], 1);
        CHECK(Clock::now() - begin < std::chrono::seconds(15));
        silent[1] = true;
        store.set_patience(0.05);
        const std::string said = said_by([&] { store.matrices(context, of[1][1]); });
        CHECK(said.find(paths[1] + ": the disk has not answered") == 0);
        model.reset();
    }
}

// Pages of a store without a disk: reads bring the number of the block.
struct Pages {
    explicit Pages(const PageShape& shape)
        : pages(shape, std::vector<StoredPage>(size_t(shape.n_blocks()), {stored()}), 512, "page") {
    }

    static StoredMatrix stored() {
        StoredMatrix m;
        m.matrix.rows = 8, m.matrix.cols = 64;
        return m;
    }
    static PageShape shape(int64_t n_blocks, int64_t slots, int64_t in_use) {
        PageShape shape;
        shape.before.resize(size_t(n_blocks) + 1);
        std::iota(shape.before.begin(), shape.before.end(), int64_t(0));
        shape.in_use = in_use, shape.landings = 2;
        set_classes(shape, std::vector<StoredPage>(size_t(n_blocks), {stored()}), 1);
        shape.classes[0].slots = slots;
        return shape;
    }
    const uint8_t* open(int32_t block) {
        CHECK(pages.request(block));
        ggml::Read read;
        int32_t file;
        while (pages.next(read, file)) {
            std::memset(read.pieces[0].to, block + 1, read.pieces[0].bytes);
            pages.sent(read);
            CHECK(pages.done(read.tag, false) == block);
        }
        return pages.matrices(context, block)[0].data;
    }

    ggml::Context context{1};
    ExpertPages pages;
};

// A page keeps its memory as long as it is in use, even if another one gets its slot.
void test_lost_slot() {
    Pages p(Pages::shape(4, 1, 2));
    ExpertPages& pages = p.pages;
    pages.begin(1);
    p.open(0);
    pages.keep(0, 1);
    CHECK(pages.resident(0));
    const uint8_t* const first = p.open(0);
    CHECK(p.open(0) == first);
    pages.begin(1);
    const uint8_t* const second = p.open(1);
    pages.keep(1, 100);
    CHECK(pages.resident(1) && !pages.resident(0) && pages.used() == 1);
    const uint8_t* const third = p.open(2);
    CHECK(third != first && third != second && *first == 1 && *second == 2 && *third == 3);
    pages.keep(2, 0);
    CHECK(p.open(0) == first);  // still there
    pages.keep(0, 0), pages.keep(0, 0);
    CHECK(pages.requested(0));
    pages.keep(0, 0);
    CHECK(!pages.requested(0) && pages.resident(1));
    // Both frames are free again.
    p.open(2), p.open(3);
    pages.keep(2, 0), pages.keep(3, 0), pages.keep(3, 0);
    CHECK(pages.resident(1) && !pages.requested(2) && !pages.requested(3));
}

// Experts in memory are in use together, with one that the disk brings. What an exception unwinds
// is forgotten.
void test_together() {
    const std::string path = written(describe(mixture()));
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    const pi_model_params params = model_params((bounds.least + bounds.all) / 2, session);
    const std::vector<Bytes> expected = all_bytes(*Model::load(path, params));
    const auto model = Model::load(path, params);
    ExpertStore& store = *model->experts;
    ggml::Context context(1);
    store.fill(context, {4, 5, 6, 7, 8}, 60, [](float) {});
    CHECK(store.used() >= 5 && store.absent(9));
    std::vector<StoreCounts> counts(model->ffns.size());
    const FeedForward& part = *model->ffns[0];
    const auto room = [&] {
        int64_t n = 0;
        for (int32_t i = 0; i < int32_t(model->n_blocks()); i++) {
            n += store.absent(i) && store.request(i);
        }
        return n;
    };
    {
        NeuronSource source(nullptr, &store, counts);
        source.begin(1);
        CHECK(source.ready(4) && !source.ready(9));
        std::vector<NeuronSource::Matrices> open;
        for (int32_t i = 4; i < 10; i++) {
            open.push_back(source.matrices(context, i, part.blocks[size_t(i)], 1));
            CHECK(open.back().read == (i == 9));
        }
        for (int32_t i = 4; i < 10; i++) {
            CHECK(bytes_of(open[size_t(i) - 4]) == expected[size_t(i)]);
        }
        open.pop_back();
        const auto more = source.matrices(context, 10, part.blocks[10], 1);
        CHECK(bytes_of(more) == expected[10]);
    }
    {
        NeuronSource source(nullptr, &store, counts);
        for (int i = 0; i < 10; i++) {
            source.begin(1);
            const int32_t other = store.absent(11) ? 11 : 12;
            try {
                const auto a = source.matrices(context, 4, part.blocks[4], 1);
                const auto b = source.matrices(context, other, part.blocks[size_t(other)], 1000);
                throw Error(Code::cancelled, "stop");
            } catch (const Error&) {
                source.reset();
            }
            CHECK(!source.ready(other));
        }
        CHECK(room() == store.shape().landings);
        source.reset();
    }
    CHECK(same(answer(load(path), session, kFew), answer(model, session, kFew)));
}

// Calls that say where neurons are do not wait for a session that does.
void test_asked_while_computing(const std::string& path, bool experts) {
    const pi_session_params params = session_params(1, 48);
    const Bounds bounds = bounds_of(path, params);
    const pi_model_params how = model_params((bounds.least + bounds.all) / 2, params);
    struct Status {
        pi_storage_report report{};
        std::vector<uint8_t> tiers;
        std::vector<int64_t> stored;
    };
    bool computes = false, in_time = false;
    std::future<Status> asked;
    std::function<Status()> ask;
    const faulty::Choose choose = [&](uint64_t, const ggml::Read&) {
        if (!std::exchange(computes, false)) return Fault::none;
        asked = std::async(std::launch::async, ask);
        in_time = asked.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
        return Fault::none;
    };
    const auto model =
        experts ? with_faults(path, how, {}, choose)
                : with_reader(path, how,
                              std::make_unique<faulty::Reader>(path, faulty::Order{}, choose));
    const pi_model handle{model, {}};
    ask = [&] {
        Status s;
        s.report.struct_size = sizeof s.report;
        CHECK(pi_model_storage(&handle, &s.report) == PI_OK);
        for (int32_t layer = 0; layer < int32_t(model->config.n_layer); layer++) {
            const FeedForward& part = *model->ffns[size_t(layer)];
            std::vector<uint8_t> tiers(size_t(part.n_blocks() * part.n_ff));
            CHECK(pi_model_tiers(&handle, layer, tiers.data(), tiers.size()) == PI_OK);
            s.tiers.insert(s.tiers.end(), tiers.begin(), tiers.end());
            s.stored.push_back(pi_model_layer_stored_neurons(&handle, layer));
            CHECK(s.stored.back() == std::count(tiers.begin(), tiers.end(), 0));
        }
        return s;
    };
    const auto is_same = [](const Status& a, const Status& b) {
        return a.tiers == b.tiers && a.stored == b.stored &&
               a.report.first_used == b.report.first_used &&
               a.report.rest_used == b.report.rest_used &&
               a.report.first_slots == b.report.first_slots &&
               a.report.rest_slots == b.report.rest_slots;
    };
    Session session(model, params);
    Status before = ask();
    CHECK(before.report.stored && before.report.experts == experts);
    for (int call = 0; call < 2; call++) {
        computes = true;
        eval(session, random_tokens(20, uint32_t(call)));
        CHECK(!computes && in_time);
        CHECK(is_same(asked.get(), before));  // when the call began
        const Status after = ask();
        CHECK(!is_same(after, before) || !experts || call > 0);
        CHECK(experts ? after.report.first_used == model->experts->used()
                      : after.report.first_used == model->store->residency().used(Half::gate));
        before = after;
    }
}

}  // namespace

int main() {
    test_failed_guess();
    test_wrong_guesses();
    test_silent_part();
    test_lost_slot();
    test_together();
    test_asked_while_computing(written(describe(mixture())), true);
    test_asked_while_computing(bundled(wide()), false);
    return check::summary("test_page_reads");
}
