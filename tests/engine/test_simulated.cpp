// The simulator of the cache against a model that runs from storage: the same trace, the same
// misses.
#include <cstdlib>

#include "circle.h"
#include "files/write_bundle.h"
#include "load/open_store.h"
#include "sessions.h"
#include "storage/cache/simulate_cache.h"

namespace {

using namespace sessions;

// Bits of flags [n], as a CacheTrace has them.
void append_bits(const bool* flags, int64_t n, std::vector<uint8_t>& out) {
    const size_t begin = out.size();
    out.resize(begin + size_t(n + 7) / 8, 0);
    for (int64_t i = 0; i < n; i++) {
        if (flags[i]) out[begin + size_t(i / 8)] |= uint8_t(1 << i % 8);
    }
}

constexpr int32_t kTokens = 160, kWarmUp = 40;

pi_session_params one_by_one(int32_t sparse) {
    pi_session_params params = session_params(2, 1);
    params.sparse = sparse;
    params.n_ctx = kTokens;
    return params;
}

template <typename F>
void decode(Session& session, const F& after) {
    const bool generated = true;
    int32_t i = 0;
    for (int32_t token : random_tokens(kTokens, 7)) {
        eval(session, {token}, {nullptr, nullptr, &generated});
        after(i++);
    }
}

// share: of each kind of part that has a slot.
void test_misses(const std::string& path, int32_t sparse, double first_share, double rest_share) {
    pi_session_params params = one_by_one(sparse);
    const auto whole = load(path);
    const int64_t n = whole->ffns[0]->n_ff, n_layer = whole->config.n_layer;
    std::vector<uint8_t> first, rest;
    params.record = PI_RECORD_NEEDS;
    Session recorded(whole, params);
    decode(recorded, [&](int32_t) {
        for (int64_t layer = 0; layer < n_layer; layer++) {
            append_bits(recorded.record.proposed(layer), n, first);
            append_bits(recorded.record.computed(layer), n, rest);
        }
    });
    const int64_t parts = n * n_layer;
    ResidencyShape shape{int32_t(n_layer), int32_t(n), int64_t(first_share * double(parts)),
                         int64_t(rest_share * double(parts))};
    CacheStart start;
    start.warm_up = kWarmUp;
    const CacheCounts expected = simulate_cache(shape, {}, CachePolicy::residency,
                                                {kTokens, first.data(), rest.data()}, start);

    params.record = PI_RECORD_OFF;
    pi_model_params how = pi_model_default_params();
    how.session = &params;
    how.ram_budget = 1;
    how.ram_budget = Model::inspect(path, how)->storage->least;
    const auto model = Model::load(path, how);
    Model& m = const_cast<Model&>(*model);
    StoreShape& stored = m.storage->shape;
    stored.adapts = false;
    stored.gate_slots = shape.gate_slots, stored.up_down_slots = shape.up_down_slots;
    stored.cache_sectors =
        shape.gate_slots * stored.gate_sectors + shape.up_down_slots * stored.up_down_sectors;
    m.store.reset();
    std::remove((path + ".resident").c_str());  // the simulator begins with nothing, too
    m.store = open_store(m, how);
    Session session(model, params);
    StoreCounts begun, found;
    decode(session, [&](int32_t i) {
        if (i + 1 == kWarmUp) begun = sum(m.store->counts);
    });
    found.add(begun, sum(m.store->counts));
    for (size_t half = 0; half < 2; half++) {
        CHECK(int64_t(found.needed[half]) == expected.needed[half]);
        CHECK(std::fabs(double(found.missed[half]) - double(expected.missed[half])) <=
              0.02 * double(expected.missed[half]));
    }
    CHECK(expected.missed[0] + expected.missed[1] > 1000);
    CHECK(double(found.reads) <= 1.05 * double(expected.reads));
}

}  // namespace

int main() {
    Shape shape;
    shape.activation = "relu", shape.down_t = true, shape.type = DType::Q8_0;
    shape.n_ff = 700, shape.n_embd = 128, shape.n_layer = 12, shape.predictor_rank = 32;
    tiny::write(tiny::describe(shape), folder / "model.gguf");
    const std::string path = folder / "bundled.gguf";
    write_bundled(folder / "model.gguf", path, pi_bundle_default_params());
    test_misses(path, PI_SPARSE_PREDICTOR, 0.4, 0.25);
    if (!check::kSanitized && full_circle()) test_misses(path, PI_SPARSE_EXACT, 1, 0.6);
    return check::summary("test_simulated");
}
