// Memory plans: allocations equal the plan; a model and its sessions share one budget; sizes too
// large for any memory.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/sessions.h"
#include "ggml/check.h"
#include "ggml/sizes.h"
#include "load/weight_reader.h"
#include "plan/plan.h"

using namespace sessions;

namespace {

uint64_t address_space() {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * uint64_t(sysconf(_SC_PAGESIZE));
}

// Memory that an allocator may map ahead or reuse. The address sanitizer maps whole regions.
#ifdef __SANITIZE_ADDRESS__
constexpr uint64_t kAllocatorSlack = 64 << 20;
#else
constexpr uint64_t kAllocatorSlack = 1 << 20;
#endif

void test_plan(const Shape& shape) {
    const Description d = tiny::describe(shape);
    const std::string path = folder / "plan.gguf";
    tiny::write(d, path);
    pi_session_params params = session_params();
    params.n_ctx = 100000, params.n_seq = 2, params.n_kv_old = 0;
    pi_model_params read = pi_model_default_params();
    read.use_mmap = false;
    const auto header = Model::inspect(path, read);
    const Plan plan = make_plan(*header, params);
    CHECK(plan.n_ctx == 100000);
    uint64_t weights = 0, kv = 0, scratch = 0;
    std::set<Part> parts;
    std::set<std::pair<Part, int32_t>> unique;
    for (const PlanPart& p : plan.parts) {
        CHECK(unique.insert({p.part, p.layer}).second);
        CHECK(p.tier == Tier::ram && p.bytes > 0);
        CHECK(p.layer >= -1 && p.layer < header->config.n_layer);
        const bool by_layer = p.part == Part::attention || p.part == Part::ffn;
        CHECK(p.part == Part::norms || by_layer == (p.layer >= 0));
        parts.insert(p.part);
        const bool working = p.part == Part::scratch || p.part == Part::results;
        (p.part == Part::kv ? kv : working ? scratch : weights) += p.bytes;
    }
    for (Part part : {Part::attention, Part::ffn, Part::head, Part::norms, Part::kv, Part::scratch,
                      Part::results}) {
        CHECK(parts.count(part) == 1);
    }
    CHECK(parts.count(Part::embedding) == (shape.tied ? 0 : 1));
    CHECK(unique.size() == size_t(3 * shape.n_layer + (shape.tied ? 5 : 6)));

    uint64_t file = 0, padding = 0;
    for (const tiny::Tensor& t : d.tensors) {
        file += t.bytes.size();
        const auto n = uint64_t(t.ne.size() == 3 ? t.ne[2] : 1);  // experts, or heads of latents
        padding += n * 64;
        if (t.ne.size() >= 2 && ggml::has_strips(t.type)) {
            padding += n * uint64_t(-t.ne[1] & 7) * uint64_t(ggml::info(t.type).size(t.ne[0]));
        }
    }
    CHECK(weights >= file && weights <= file + padding);
    CHECK(weights == total(header->plan.parts, Tier::ram));
    const uint64_t mapped =
        total(Model::inspect(path, pi_model_default_params())->plan.parts, Tier::ram);
    CHECK(mapped >= file && mapped <= weights);

    // Real allocations: the memory of the weights, and the growth of the address space by a
    // session.
    const auto model = load(path, false);
    CHECK(model->packed.size() + model->plain.size() == weights);
    const uint64_t before = address_space();
    {
        const Session session(model, params);
        const uint64_t added = address_space() - before;
#ifdef __SANITIZE_ADDRESS__
        CHECK(added + kAllocatorSlack >= kv + scratch);
#else
        CHECK(added >= kv + scratch);
#endif
        CHECK(added <= kv + scratch + kAllocatorSlack);
    }

    // The budget is exact to the byte.
    pi_model_params asked = read;
    asked.ram_budget = weights;
    const auto fits = Model::load(path, asked);
    CHECK_THROWS(memory, Session(fits, params));
    CHECK(!fits->storage);  // which a model this small does not help
    asked.ram_budget = weights - 1;
    const bool can_store = Model::inspect(path, asked)->storage.has_value();
    CHECK(!can_store || shape.down_t || shape.n_expert);
    refused(d, Code::memory, {can_store ? "at least" : "weights", "MiB"}, asked);
    asked.ram_budget = weights + kv + scratch;
    const auto just = Model::load(path, asked);
    CHECK(make_plan(*just, params).budget == asked.ram_budget);
    CHECK(Session(just, params).params.n_ctx == 100000);
    params.n_ctx += kKvPage;
    try {
        Session session(just, params);
        CHECK(!"refused");
    } catch (const Error& e) {
        CHECK(e.code() == Code::memory && std::strstr(e.what(), "100064 positions"));
    }
}

// The error message of a session that exceeds the budget; "" if it opens.
std::string refused_session(const std::shared_ptr<const Model>& model,
                            const pi_session_params& params) {
    try {
        Session session(model, params);
    } catch (const Error& e) {
        CHECK(e.code() == Code::memory);
        return e.what();
    }
    return "";
}

// Model, sessions and callers reserve in one budget and give back their reservations.
void test_one_budget() {
    const std::string path = folder / "budget.gguf";
    tiny::write(tiny::describe(Shape()), path);
    const pi_session_params params = session_params();
    pi_model_params asked = pi_model_default_params();
    uint64_t weights, all;
    {
        const auto model = load(path);
        weights = model->budget->reserved();
        CHECK(weights == total(model->plan.parts, Tier::ram));
        const Session session(model, params);
        all = model->budget->reserved();
        CHECK(all > weights && all <= model->budget->limit());
    }
    asked.ram_budget = all;
    auto model = Model::load(path, asked);
    const std::shared_ptr<Budget> budget = model->budget;
    CHECK(budget->limit() == all && budget->reserved() == weights);
    {
        const Session first(model, params);
        const std::string why = refused_session(model, params);
        CHECK(why.find("a context of 96 positions would take") == 0);
        CHECK(why.find("0 MiB are left of the") != why.npos);
        CHECK(budget->reserved() == all);
    }
    CHECK(refused_session(model, params).empty());
    CHECK(budget->reserved() == weights);
    {
        Reservation mine = budget->reserve("a cache", 1), other;
        CHECK(!refused_session(model, params).empty());
        CHECK_THROWS(memory, budget->reserve("a cache", all - weights));
        CHECK_THROWS(memory, budget->reserve("a cache", UINT64_MAX));
        other = std::move(mine);
        CHECK(mine.bytes() == 0 && other.bytes() == 1 && budget->reserved() == weights + 1);
        mine = budget->reserve("a cache", all - weights - 1);
        CHECK(budget->reserved() == all);
    }
    CHECK(budget->reserved() == weights);
    model = nullptr;
    CHECK(budget->reserved() == 0);
}

// Buffers for weights that are read come from what the budget has left, and shrink with it.
void test_buffers() {
    const std::string path = folder / "buffers.gguf";
    Shape shape;
    shape.n_embd = 256, shape.n_ff = 1024, shape.type = DType::Q8_0;
    tiny::write(tiny::describe(shape), path);
    const auto header = Model::inspect(path, pi_model_default_params());
    std::vector<const WeightSpec*> order;
    for (const WeightSpec& w : header->weights) order.push_back(&w);
    const uint64_t strip = ggml::kStrip * uint64_t(ggml::info(shape.type).size(shape.n_ff));
    // Most that is reserved, of a budget of so many bytes.
    const auto reserved = [&](uint64_t bytes, int n_threads) {
        const auto budget = std::make_shared<Budget>("RAM", bytes, true);
        ggml::Threads threads(n_threads);
        WeightReader reader(header->file, threads, *budget, order);
        std::vector<WeightMove> moves;
        std::atomic<int64_t> missing{0};
        std::atomic<uint64_t> most{0};
        for (const WeightSpec* w : order) {
            missing += w->rows;
            moves.push_back({w, ggml::kStrip, [&](int64_t first, int64_t n, const uint8_t* rows) {
                                 CHECK(rows && first % ggml::kStrip == 0);
                                 missing -= n;
                                 most = budget->reserved();
                             }});
        }
        reader.move(moves, [](uint64_t) {});
        CHECK(missing == 0 && budget->reserved() == 0 && threads.active() == n_threads);
        return most.load();
    };
    for (int n : {1, 3}) {
        const uint64_t most = reserved(uint64_t(1) << 30, n);
        CHECK(most > 0.9 * n * (256 << 10) && most <= uint64_t(n) * (256 << 10));
        CHECK(reserved(uint64_t(n) * strip, n) == uint64_t(n) * strip);
        CHECK(reserved(uint64_t(n) * strip + 100, n) <= uint64_t(n) * strip + 100);
        CHECK(reserved(uint64_t(n) * strip * 3, n) == uint64_t(n) * strip * 3);
    }
    CHECK(reserved(2 * strip, 3) == 2 * strip);  // for two of three threads
    CHECK(reserved(0, 3) == 0 && reserved(strip / 2, 3) == strip / 2);
}

// Cache sizes that are 0 modulo 2^64 must not look small.
void test_sizes_beyond_64_bits() {
    Description d = tiny::describe(Shape());
    d.keys["llama.context_length"] = uint32_t(1) << 30;
    d.keys["llama.embedding_length"] = uint32_t(1);
    d.keys["llama.attention.head_count"] = uint32_t(64);
    d.keys["llama.attention.head_count_kv"] = uint32_t(64);
    d.keys["llama.attention.key_length"] = uint32_t(1) << 16;
    d.keys["llama.attention.value_length"] = uint32_t(1) << 16;
    const int64_t q_dim = 64 << 16;
    for (tiny::Tensor& t : d.tensors) {
        const bool attention = t.name.find("attn_") != t.name.npos && t.ne.size() == 2;
        for (int64_t& n : t.ne) n = n != 64 ? n : attention && &n != &t.ne[0] ? q_dim : 1;
        if (t.name.find("attn_output") != t.name.npos) t.ne = {q_dim, 1};
        if (t.ne.size() == 2) t.type = DType::F16;
        int64_t n = 1;
        for (int64_t size : t.ne) n *= size;
        t.bytes.assign(size_t(ggml::info(t.type).size(n)), 0);
    }
    const std::string path = folder / "beyond.gguf";
    tiny::write(d, path);
    pi_session_params params = session_params(1, 1);
    params.n_ctx = 0, params.n_batch = 1, params.n_seq = 256;
    params.type_k = params.type_v = uint32_t(DType::F32);
    const auto model = load(path);
    const Config& c = model->config;
    // 2 layers, keys and values, heads, floats, positions, sequences.
    const auto& attention = *model->layers[0].find<Attention>();
    CHECK(c.n_layer * 2 * attention.n_head_kv == 1 << 8 && attention.head_dim * 4 == 1 << 18);
    CHECK(c.n_ctx == 1 << 30 && params.n_seq == 1 << 8);
    const std::string why = refused_session(model, params);
    CHECK(why.find("a context of 1073741824 positions would take 17592186044416 MiB") == 0);
    CHECK(total(make_plan(*model, params).parts, Tier::ram) == ggml::kMostBytes);
    params.n_ctx = params.n_seq = 1;
    params.sparse = PI_SPARSE_EXACT, params.record = PI_RECORD_INPUTS;
    CHECK(refused_session(model, params).empty());
    std::filesystem::remove(path);
}

// With a mapped file, packed weights are not locked a second time.
void test_locking() {
    if (check::kSanitized) return;  // sanitizers make mlock() do nothing
    Shape shape;
    shape.type = DType::Q8_0, shape.n_embd = 512, shape.n_ff = 1024, shape.head_dim = 128;
    const std::string path = folder / "locked.gguf";
    tiny::write(tiny::describe(shape), path);
    pi_model_params params = pi_model_default_params();
    params.use_mlock = true;
    for (bool use_mmap : {true, false}) {
        params.use_mmap = use_mmap;
        const uint64_t before = check::locked_bytes();
        try {
            const auto model = Model::load(path, params);
            const uint64_t locked = check::locked_bytes() - before, pages = 32 * 4096;
            const uint64_t weights = total(model->plan.parts, Tier::ram);
            CHECK(locked >= weights && locked <= weights + pages);
            CHECK(std::filesystem::file_size(path) > 2 * pages);
        } catch (const Error& e) {
            CHECK(e.code() == Code::memory);  // not allowed to this user
        }
    }
}

}  // namespace

int main() {
    unsetenv("GGML_ISA");
    for (const Shape& shape : shapes()) test_plan(shape);
    // Weights keep their format in memory, in either layout.
    for (DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1,
                       DType::Q5_0, DType::Q5_1, DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K,
                       DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4, DType::NVFP4}) {
        for (bool down_t : {false, true}) {
            Shape shape;
            shape.type = type;
            shape.down_t = down_t;
            shape.activation = "relu";
            shape.n_embd = 256, shape.n_ff = 512, shape.head_dim = 64;
            shape.n_layer = 1;
            test_plan(shape);
        }
    }
    test_one_budget();
    test_buffers();
    test_sizes_beyond_64_bits();
    test_locking();
    return check::summary("test_memory");
}
