// Plans of models whose neurons stay on the disk, without loading one: what a plan leaves is what
// its sessions take, and more memory never makes a token read for longer.
#include <algorithm>

#include "circle.h"
#include "plan/plan.h"
#include "plan/storage_plan.h"
#include "stored_models.h"

namespace {

using namespace stored;

class Random {
 public:
    explicit Random(uint32_t seed) : rng_(seed) {}
    int64_t from(int64_t low, int64_t high) { return low + int64_t(rng_()) % (high - low + 1); }
    bool in(int64_t n) { return from(1, n) == 1; }
    template <typename T>
    T of(std::initializer_list<T> list) {
        return list.begin()[from(0, int64_t(list.size()) - 1)];
    }
    double share() { return double(rng_()) / 4294967296.0; }

 private:
    std::mt19937 rng_;
};

Shape random_shape(Random& random) {
    Shape s;
    s.down_t = true;
    s.type = random.of({DType::F32, DType::Q8_0, DType::Q4_0});
    s.n_embd = random.of({32, 64});
    s.n_ff = random.from(40, 300);
    s.n_layer = random.from(1, 3);
    if (random.in(2)) s.n_expert = random.from(2, 9), s.n_ff = random.from(32, 96);
    s.activation = random.of({"relu", "silu"});
    if (random.in(3)) s.predictor_rank = random.of({32, 64});
    s.tied = random.in(2);
    return s;
}

// A profile: an expert is computed by some of the tokens, and its neurons fire for some of these.
void add_rates(Description& d, const Shape& s, Random& random) {
    const int64_t n_blocks = std::max<int64_t>(1, s.n_expert);
    for (int64_t layer = 0; layer < s.n_layer; layer++) {
        std::vector<float> rates;
        for (int64_t block = 0; block < n_blocks; block++) {
            const double chosen = s.n_expert ? random.share() : 1;
            const double power = random.share() * 8;
            for (int64_t i = 0; i < s.n_ff; i++) {
                rates.push_back(float(chosen * std::pow(random.share(), power)));
            }
        }
        const std::string name = "blk." + std::to_string(layer) + ".ffn_rate";
        std::vector<int64_t> ne{s.n_ff};
        if (s.n_expert) ne.push_back(s.n_expert);
        std::vector<uint8_t> bytes(rates.size() * sizeof(float));
        std::memcpy(bytes.data(), rates.data(), bytes.size());
        d.tensors.push_back({s.n_expert ? name + "_exps" : name, DType::F32, ne, bytes});
    }
}

pi_session_params random_session(Random& random) {
    pi_session_params p = pi_session_default_params();
    p.n_ctx = int32_t(random.from(16, 128));
    p.n_batch = int32_t(random.from(1, 128));
    p.n_ubatch = int32_t(random.from(1, p.n_batch));
    p.n_seq = int32_t(random.from(1, 36));
    p.n_kv = random.in(2) ? random.from(64, 2000) : 0;
    p.n_logits = int32_t(random.from(0, 40));
    p.n_threads = int32_t(random.from(1, 5));
    p.n_threads_batch = int32_t(random.from(1, 5));
    p.type_k = p.type_v = uint32_t(random.of({DType::F16, DType::F32}));
    p.sparse = random.of<int32_t>({PI_SPARSE_AUTO, PI_SPARSE_EXACT, PI_SPARSE_OFF});
    if (random.in(4)) p.record = PI_RECORD_BITS;
    if (random.in(6)) p.embedding = true;
    return p;
}

// As Model::inspect leaves it for storage.
std::unique_ptr<Model> for_storage(const std::string& path, const pi_session_params& session) {
    std::unique_ptr<Model> model = Model::inspect(path, model_params(kNoLimit, session));
    model->plan = plan_weights(model->weights, false, nullptr, OnDisk::neurons);
    return model;
}

StoragePlan planned(Model& model, uint64_t budget, pi_model_params params) {
    model.budget = std::make_shared<Budget>("RAM", budget, true);
    model.storage.reset();
    model.storage = plan_storage(model, params);
    return *model.storage;
}

void test_budgets(uint32_t seed) {
    Random random(seed);
    const Shape shape = random_shape(random);
    Description d = tiny::describe(shape, seed);
    if (random.in(2)) add_rates(d, shape, random);
    tiny::write(d, folder / "planned.gguf");
    const pi_session_params session = random_session(random);
    const std::unique_ptr<Model> model = for_storage(folder / "planned.gguf", session);
    pi_model_params params = model_params(1, session);
    params.n_sessions = int32_t(random.from(1, 2));
    params.n_rows_kept = random.in(3) ? int32_t(random.from(1, 64)) : 0;

    const uint64_t least = planned(*model, 1, params).least;
    std::vector<uint64_t> budgets{least, least + 1};
    // Also beyond what the model takes without a disk.
    const uint64_t all = 2 * (least + model->file.gguf.tensors().back().offset);
    for (int i = 0; i < 20; i++) budgets.push_back(least + uint64_t(random.share() * double(all)));
    for (int i = 0; i < 10; i++) budgets.push_back(budgets.back() + uint64_t(random.from(1, 4096)));
    std::sort(budgets.begin(), budgets.end());
    double before = std::numeric_limits<double>::infinity();
    for (const uint64_t budget : budgets) {
        const StoragePlan plan = planned(*model, budget, params);
        CHECK(plan.least == least);
        CHECK(plan.read_seconds >= 0 && plan.read_seconds <= before * (1 + 1e-12));
        before = plan.read_seconds;
        // What the model and its sessions will reserve.
        const uint64_t weights =
            total(model->plan.parts, Tier::ram) + total(storage_parts(plan), Tier::ram);
        const pi_session_params one = session_params_for(*model, session);
        const uint64_t sessions =
            uint64_t(params.n_sessions) * total(session_parts(*model, one, 0, true), Tier::ram);
        CHECK(weights + sessions <= budget);
    }
    CHECK(before == 0);
}

}  // namespace

int main() {
    const uint32_t shapes = full_circle() ? 1000 : 120;
    for (uint32_t seed = 1; seed <= shapes; seed++) {
        const int failed = check::failures;
        test_budgets(seed);
        if (check::failures > failed) std::printf("of seed %u\n", seed);
    }
    return check::summary("storage plans");
}
