// Models on three tiers at once: a device, RAM, and a disk that has what does not fit them. The
// same bits as those of the same placement with the rest in RAM, for any budgets, and disks that
// are slow or fail.
#include <algorithm>
#include <set>

#include "api/api.h"
#include "circle.h"
#include "faulty_reader.h"
#include "files/write_bundle.h"
#include "forward/device_forward.h"
#include "gpu/splits.h"
#include "load/open_store.h"

using namespace splits;
using faulty::Fault;

namespace {

constexpr uint64_t kNoLimit = uint64_t(1) << 40;

std::string bundled(const Shape& shape) {
    const std::string path = folder / "bundled.gguf";
    tiny::write(tiny::describe(shape), folder / "model.gguf");
    for (const char* end : {"", ".resident"}) std::remove((path + end).c_str());
    write_bundled(folder / "model.gguf", path, pi_bundle_default_params());
    return path;
}

Shape shape_of(DType type, int64_t rank) {
    Shape s = by_neuron(type);
    s.n_layer = 2, s.n_ff = type == DType::F32 ? 1000 : 2000, s.n_embd = 128,
    s.predictor_rank = rank, s.biases = type == DType::Q8_0;
    if (type == DType::Q4_0) s.n_embd = 256, s.head_dim = 64;  // folded rows
    return s;
}

// More rows than a few for neurons.cpp, few enough for most of a budget to be neurons.
pi_session_params session_of(int32_t sparse) {
    pi_session_params session = session_params(3, 20);
    session.sparse = sparse;
    session.n_batch = 32;
    return session;
}

// A bundled model with a share of its neurons' bytes on the device.
struct Tiers {
    Tiers(const std::string& file, const pi_session_params& s, double hot, bool streams = false)
        : path(file), session(s), range(budgets(file, s)) {
        params = on_device(range.least, session);
        params.op_offload = streams;
        params.vram_budget += uint64_t(hot * double(range.most - range.least));
        set_ram(kNoLimit);
        for (const PlanPart& p : make_plan(*Model::inspect(path, params), session).parts)
            all += p.tier == Tier::ram ? p.bytes : 0;
        set_ram(1);
        const auto model = Model::inspect(path, params);
        if (model->storage) least = model->storage->least;
    }

    void set_ram(uint64_t bytes) { params.ram_budget = bytes; }
    // Between the least budget and all but a byte of what the model takes.
    uint64_t ram(double part) const { return least + uint64_t(part * double(all - 1 - least)); }
    std::shared_ptr<const Model> load(uint64_t ram_budget) {
        set_ram(ram_budget);
        return Model::load(path, params);
    }
    // The store reads through `reader`.
    std::shared_ptr<const Model> load(uint64_t ram_budget, std::unique_ptr<ggml::Reader> reader) {
        const std::shared_ptr<const Model> model = load(ram_budget);
        CHECK(model->store && model->device);
        const_cast<Model&>(*model).store = open_store(*model, params, std::move(reader));
        return model;
    }

    const std::string path;
    const pi_session_params session;
    const Range range;
    pi_model_params params;
    uint64_t all = 0, least = 0;  // bytes of RAM
};

// A prompt, generated tokens one by one and three at once, and a short prompt.
Floats answer(Session& session) {
    session.truncate(0, 0);
    const Tokens tokens = random_tokens(14, 3);
    Floats out;
    const auto rows = [&](size_t begin, size_t end, bool generated) {
        append_rows(session, tokens, begin, end, generated, out);
    };
    rows(0, 9, false);
    for (size_t i = 9; i < 11; i++) rows(i, i + 1, true);
    rows(11, 13, true);
    rows(13, 14, false);
    return out;
}
Floats answer(std::shared_ptr<const Model> model, const pi_session_params& params) {
    Session session(std::move(model), params);
    return answer(session);
}

// What is where: the store has the neurons that the device does not have, all that is planned fits.
void check_places(const std::shared_ptr<const Model>& model, const Tiers& t) {
    const Model& m = *model;
    const NeuronStore& store = *m.store;
    const int64_t n_ff = m.ffns[0]->n_ff;
    const pi_model handle{model, {}};
    std::vector<uint8_t> tiers(static_cast<size_t>(n_ff));
    for (int32_t i = 0; i < int32_t(m.config.n_layer); i++) {
        const int64_t n = store.blocks().size(i);
        CHECK(n == n_ff - m.device_neurons(i));
        std::set<int32_t> rows;
        for (int32_t id = 0; id < int32_t(n); id++) rows.insert(store.row_of(i, id));
        CHECK(int64_t(rows.size()) == n);
        for (int32_t row : rows) {
            CHECK(!m.device->split.splits(i) || m.device->split.slot[size_t(i)][size_t(row)] < 0);
        }
        CHECK(store.resident(i) <= n);
        CHECK(pi_model_tiers(&handle, i, tiers.data(), tiers.size()) == PI_OK);
        CHECK(std::count(tiers.begin(), tiers.end(), 0) == n - store.resident(i));
        for (size_t row = 0; row < tiers.size(); row++) {
            CHECK((tiers[row] == 2) == (rows.count(int32_t(row)) == 0));
        }
    }
    const Plan plan = make_plan(m, t.session);
    CHECK(total(plan.parts, Tier::ram) <= t.params.ram_budget);
    CHECK(total(plan.parts, Tier::gpu) <= t.params.vram_budget);
    CHECK(m.budget->reserved() <= m.budget->limit());
    const ggml::Device& device = *m.device->device;
    CHECK(device.allocated_bytes() + device.context_bytes() == total(m.plan.parts, Tier::gpu));
}

// What is left for RAM is more than the pipeline takes.
void test_bits(const Shape& shape, int32_t sparse, bool streams,
               const std::vector<double>& shares_on_device) {
    const std::string path = bundled(shape);
    const pi_session_params planned = session_of(sparse);
    int32_t n_threads = 1;
    static int turn = 0;  // in the quick circle: one of three budgets, another one each time
    for (double hot : shares_on_device) {
        int number = 0;
        turn++;
        Tiers t(path, planned, hot, streams);
        CHECK(t.least > 0 && t.least < t.all);
        const auto whole = t.load(t.all);
        CHECK(!whole->storage && whole->device &&
              bool(whole->device->prompt_upload) == (streams && hot > 0));
        const Floats expected = answer(whole, planned);
        for (double part : {0.0, 0.4, 1.0}) {
            pi_session_params session = planned;
            session.n_threads = session.n_threads_batch = n_threads;
            session.stepwise = n_threads == 3;
            n_threads = n_threads % 3 + 1;
            if (!full_circle() && number++ != turn % 3) continue;
            const auto model = t.load(t.ram(part));
            CHECK(model->storage && model->store && model->device);
            if (!model->store) continue;
            CHECK(model->device->split.slot == whole->device->split.slot);
            CHECK(model->device->split.piece == whole->device->split.piece);
            check_places(model, t);
            Session computing(model, session);
            CHECK(same(answer(computing), expected));
            const Counts& did = computing.counts;
            CHECK(sum(did.stored).reads > 0);
            for (size_t i = 0; i < did.neurons.size(); i++) {
                CHECK(did.stored[i].missed[0] <= did.stored[i].needed[0]);
                CHECK(did.neurons[i].rows == 14);
                CHECK(did.from_disk[i] + did.on_device[i].computed <= did.neurons[i].computed);
                if (!model->store->blocks().size(int32_t(i))) CHECK(did.from_disk[i] == 0);
            }
        }
        // A byte less.
        CHECK_THROWS(memory, t.load(t.least - 1));
    }
    // With all neurons on the device none are left for the disk.
    Tiers t(path, planned, 1, streams);
    CHECK(t.least == 0 && neurons_on_device(*t.load(t.all)) == shape.n_layer * shape.n_ff);
}

// Some layers are the CPU's.
void test_layers() {
    const std::string path = bundled(shape_of(DType::F32, 32));
    Tiers t(path, session_of(PI_SPARSE_AUTO), 0.2);
    t.params.n_gpu_layers = 2;
    const Floats expected = answer(t.load(kNoLimit), t.session);
    const auto model = t.load(t.ram(0.5));
    CHECK(model->device_layers() == 2 && model->store);
    check_places(model, t);
    Session session(model, t.session);
    CHECK(same(answer(session), expected));
    CHECK(session.counts.from_disk[0] > 0);
}

// A file that is not bundled: the bundled one is written, and the placement is the same.
void test_first_use() {
    const Shape shape = shape_of(DType::F32, 0);
    bundled(shape);
    const std::string path = folder / "model.gguf";
    Tiers t(path, session_of(PI_SPARSE_EXACT), 0.5);
    const Floats expected = answer(t.load(kNoLimit), t.session);
    const auto model = t.load(t.ram(0.3));
    CHECK(model->store && model->file.gguf.path() == path + ".bundle.gguf");
    check_places(model, t);
    CHECK(same(answer(model, t.session), expected));
}

// What stays in memory is saved by the file's numbers: another placement begins with it, too.
void test_resident() {
    const std::string path = bundled(shape_of(DType::F32, 32));
    const pi_session_params params = session_of(PI_SPARSE_PREDICTOR);
    Tiers t(path, params, 0.4);
    std::set<std::pair<int32_t, int32_t>> kept;
    const auto resident = [](const Model& m) {
        std::set<std::pair<int32_t, int32_t>> found;
        for (const RankedPart& p : m.store->residency().resident())
            found.insert({p.block, m.store->row_of(p.block, p.id)});
        return found;
    };
    {
        const auto model = t.load(t.ram(0.4));
        Session session(model, params);
        for (int i = 0; i < 5; i++) answer(session);
        kept = resident(*model);
    }
    CHECK(std::filesystem::exists(path + ".resident") && !kept.empty());
    // The cache may be divided otherwise than it was at the end.
    for (double hot : {0.4, 0.6}) {
        Tiers next(path, params, hot);
        const auto model = next.load(hot < 0.5 ? t.ram(0.4) : next.ram(0.9));
        int64_t again = 0, possible = 0;
        const auto now = resident(*model);
        for (const auto& [block, row] : kept) {
            if (model->store->find_row(block, row) < 0) continue;
            possible++;
            again += int64_t(now.count({block, row}));
        }
        CHECK(possible > 0 && again > 0.8 * double(possible));
    }
}

// The disk takes its time: the CPU waits for it, and the device does other things or rests.
void test_slow_disk() {
    const std::string path = bundled(shape_of(DType::F32, 0));
    for (bool stepwise : {false, true}) {
        Tiers t(path, session_of(PI_SPARSE_EXACT), 0.4);
        pi_session_params params = t.session;
        params.stepwise = stepwise;
        int naps = -1;
        const auto choose = [&](uint64_t number, const ggml::Read&) {
            if (naps < 0 || number % 4) return Fault::none;
            naps++;
            std::this_thread::sleep_for(std::chrono::milliseconds(4));
            return Fault::none;
        };
        const auto model =
            t.load(t.least, std::make_unique<faulty::Reader>(path, faulty::Order{}, choose));
        Session session(model, params);
        naps = 0;
        answer(session);
        CHECK(session.counts.answers > 0 && naps > 25);
        CHECK(double(session.counts.waited_for_cpu) < 0.1 * 4e6 * naps);
    }
}

// A read that fails ends the call with its error. The device is alive, and the next call works. In
// the quick circle step by step without a stream, and as a graph with one.
void test_faults(bool streams) {
    const std::string path = bundled(shape_of(DType::F32, 0));
    Tiers t(path, session_of(PI_SPARSE_EXACT), 0.3, streams);
    faulty::Choose choose;
    const auto model =
        t.load(t.ram(0.2), std::make_unique<faulty::Reader>(
                               path, faulty::Order{}, [&](uint64_t n, const ggml::Read& read) {
                                   return choose ? choose(n, read) : Fault::none;
                               }));
    int n_failed = 0;
    const auto fails = [&](Session& session, Fault fault, double share, Code code) {
        choose = faulty::at_random(uint64_t(fault), share, {fault});
        try {
            answer(session);
        } catch (const Error& e) {
            n_failed++;
            CHECK(e.code() == code && std::strstr(e.what(), path.c_str()));
        }
        choose = nullptr;
    };
    for (bool stepwise : {false, true}) {
        pi_session_params params = t.session;
        params.stepwise = stepwise;
        if (!full_circle() && stepwise == streams) continue;
        Session session(model, params);
        const Floats expected = answer(session);
        for (Fault fault : {Fault::eio, Fault::cut, Fault::flipped}) {
            fails(session, fault, 0.02, fault == Fault::flipped ? Code::format : Code::io);
            CHECK(same(answer(session), expected));
        }
    }
    // A read that never comes back.
    Session session(model, t.session);
    model->store->set_patience(0.05);
    fails(session, Fault::never, 1, Code::io);
    CHECK(n_failed == (full_circle() ? 7 : 4));
}

// Stopped by the caller at every check: the bits of the next call are those of any other.
void test_stops(bool streams) {
    const std::string path = bundled(shape_of(DType::F32, 32));
    Tiers t(path, session_of(PI_SPARSE_AUTO), 0.4, streams);
    const auto model = t.load(t.ram(0.3));
    static int left;
    left = -1;
    pi_session_params params = t.session;
    params.should_stop = [](void*) { return left-- == 0; };
    Session session(model, params);
    const Floats expected = answer(session);
    int stopped = 0;
    for (int n = 0;; n += full_circle() ? 4 + 2 * n : 9 + 4 * n) {
        left = n;
        try {
            answer(session);
            break;
        } catch (const Error& e) {
            CHECK(e.code() == Code::cancelled);
            stopped++;
        }
        left = -1;
        CHECK(same(answer(session), expected));
    }
    left = -1;
    CHECK(stopped > 1);
}

}  // namespace

int main() {
    test_faults(true);
    if (check::kSanitized) {  // which is slow
        test_bits(shape_of(DType::F32, 32), PI_SPARSE_AUTO, false, {0.25});
        return check::summary("test_tiers");
    }
    test_bits(shape_of(DType::F32, 32), PI_SPARSE_AUTO, false, {0, 0.5});
    test_bits(shape_of(DType::Q8_0, 0), PI_SPARSE_EXACT, true, {0.3});
    test_bits(shape_of(DType::Q4_0, 32), PI_SPARSE_PREDICTOR, true, {0.3});
    test_faults(false);
    test_layers();
    test_first_use();
    test_slow_disk();
    test_resident();
    test_stops(true);
    return check::summary("test_tiers");
}
