// Where weights and neurons live: how much of a budget is used, which neurons a placement, the
// firing rates or neither put on a device, and that the text does not depend on it.
#include <algorithm>
#include <cmath>
#include <set>

#include "device/device_model.h"
#include "files/placement_file.h"
#include "forward/device_forward.h"
#include "gpu/splits.h"

using namespace splits;

namespace {

// Scratch memory for more rows at a time would be most of these budgets.
pi_session_params few_rows() {
    return session_params(1, 4);
}

constexpr int64_t kNeurons = 96;

pi_model_params on_device(uint64_t vram_budget, const pi_session_params& session,
                          int32_t placement = PI_PLACEMENT_FILE) {
    pi_model_params params = pi_model_default_params();
    params.n_threads = 1;
    params.device = gpu_test::kDevice;
    params.vram_budget = vram_budget;
    params.session = &session;
    params.placement = placement;
    return params;
}

std::string name(int64_t layer, const char* what) {
    return "blk." + std::to_string(layer) + "." + what;
}

// How often neuron n of a layer fires: hot ones are spread over the layer, and hotter later.
float rate_of(int64_t layer, int64_t n) {
    return float((n * 37 + 11) % kNeurons + layer) / (kNeurons + 4);
}

Description with_rates(const Shape& shape) {
    Description d = tiny::describe(shape);
    for (int64_t l = 0; l < shape.n_layer; l++) {
        std::vector<float> rates;
        for (int64_t n = 0; n < kNeurons; n++) rates.push_back(rate_of(l, n));
        const auto* bytes = reinterpret_cast<const uint8_t*>(rates.data());
        d.tensors.push_back(
            {name(l, "ffn_rate"), DType::F32, {kNeurons}, {bytes, bytes + 4 * kNeurons}});
    }
    return d;
}

Shape neurons(DType type = DType::F32) {
    Shape s;
    s.activation = "relu", s.down_t = true, s.type = type, s.n_layer = 4, s.predictor_rank = 32;
    return s;
}

// Marks for a GPU every neuron for which wanted(layer, neuron) is true.
template <typename F>
void add_placement(Description& d, int64_t n_layer, const std::string& hash, uint32_t vram_budget,
                   const F& wanted) {
    d.keys["powerinfer.placement.stats_hash"] = hash;
    d.keys["powerinfer.placement.vram_budget"] = vram_budget;
    for (int64_t l = 0; l < n_layer; l++) {
        std::vector<uint8_t> tiers;
        for (int64_t n = 0; n < kNeurons; n++) tiers.push_back(wanted(l, n) ? 2 : 1);
        d.tensors.push_back({name(l, "ffn_tier"), DType::I8, {kNeurons}, tiers});
    }
}

using Neurons = std::set<std::pair<int64_t, int64_t>>;  // layer, neuron

Neurons on_device(const Model& m) {
    Neurons found;
    for (int64_t l = m.device->split.first_layer; l < m.config.n_layer; l++) {
        const std::vector<int32_t>& slot = m.device->split.slot[size_t(l)];
        for (int64_t n = 0; n < m.ffns[0]->n_ff; n++) {
            if (slot.empty() || slot[size_t(n)] >= 0) found.insert({l, n});
        }
    }
    return found;
}

uint64_t used(const Model& m, const pi_session_params& session) {
    return total(make_plan(m, session).parts, Tier::gpu);
}

// At least 95% of what could be used is used, at 60 budgets from the least to more than everything.
// What is left is less than the next layer or the head would take, and every neuron is there.
void test_budgets(const Shape& shape) {
    const std::string path = folder / "budgets.gguf";
    tiny::write(tiny::describe(shape), path);
    const pi_session_params session = few_rows();
    const auto all = Model::inspect(path, on_device(1 << 30, session));
    const uint64_t most = used(*all, session);
    CHECK(all->device_layers() == shape.n_layer && all->device->split.head);
    int refused = 0, below = 0;
    uint64_t before = 0;
    for (uint64_t budget = most / 40; budget < most * 5 / 4; budget += most / 48) {
        std::unique_ptr<Model> m;
        try {
            m = Model::inspect(path, on_device(budget, session));
        } catch (const Error& e) {
            CHECK(e.code() == Code::memory && !before);
            refused++;
            continue;
        }
        const uint64_t now = used(*m, session);
        CHECK(now <= budget && now >= before);
        before = now;
        if (double(now) >= 0.95 * double(std::min(budget, most))) continue;
        below++;
        for (const std::vector<int32_t>& slot : m->device->split.slot) CHECK(slot.empty());
        const int32_t more = int32_t(m->device_layers()) + 1;
        pi_model_params params = on_device(budget, session);
        params.n_gpu_layers = more;
        if (more <= shape.n_layer) CHECK_THROWS(memory, Model::inspect(path, params));
    }
    CHECK(before == most && refused > 0);
    // Neurons fill what layers leave; matrices do not.
    CHECK(shape.down_t ? below <= 4 : below > 5);
}

// Which neurons a device gets, and that this is followed again when the budget changes.
void test_homes() {
    const std::string path = folder / "homes.gguf";
    const Shape shape = neurons();
    const pi_session_params session = few_rows();
    const Description plain = with_rates(shape);
    tiny::write(plain, path);
    const uint64_t most = used(*Model::inspect(path, on_device(1 << 30, session)), session);
    const uint32_t budget = uint32_t(most * 4 / 5);
    const auto by_rate = Model::inspect(path, on_device(budget, session));
    const Neurons hottest = on_device(*by_rate);
    CHECK(by_rate->device_layers() == shape.n_layer && hottest.size() > 40);
    float coldest = 1, missed = 0;
    for (int64_t l = 0; l < shape.n_layer; l++) {
        for (int64_t n = 0; n < kNeurons; n++) {
            float& bound = hottest.count({l, n}) ? coldest : missed;
            bound = hottest.count({l, n}) ? std::min(bound, rate_of(l, n))
                                          : std::max(bound, rate_of(l, n));
        }
    }
    CHECK(coldest >= missed);

    // A placement for this budget or for no certain one decides, one for another budget does not.
    const std::string hash = statistics_hash(*by_rate);
    const auto odd = [](int64_t layer, int64_t n) { return (n + layer) % 2 == 1; };
    for (uint32_t solved_for : {budget, uint32_t(0), budget + 1000}) {
        Description placed = plain;
        add_placement(placed, shape.n_layer, hash, solved_for, odd);
        tiny::write(placed, path);
        const auto m = Model::inspect(path, on_device(budget, session));
        const Neurons there = on_device(*m);
        CHECK(there.size() == hottest.size());
        if (solved_for == budget + 1000) {
            CHECK(there == hottest);
            continue;
        }
        for (const auto& [l, n] : there) CHECK(odd(l, n) || hottest.size() > 2 * kNeurons);
        CHECK(there != hottest);
        // Chosen again, and nothing.
        CHECK(on_device(*Model::inspect(path, on_device(budget, session, PI_PLACEMENT_RATES))) ==
              hottest);
        const auto none = Model::inspect(path, on_device(budget, session, PI_PLACEMENT_NONE));
        CHECK(on_device(*none).empty() && none->device_layers() == shape.n_layer);
        CHECK(none->device_neurons(0) == 0 && m->device_neurons(0) > 0);
    }
    // For other statistics: refused, on a device as on the CPU.
    Description wrong = plain;
    add_placement(wrong, shape.n_layer, std::string(64, '0'), budget, odd);
    tiny::write(wrong, path);
    CHECK_THROWS(format, Model::inspect(path, on_device(budget, session)));
    CHECK(on_device(*Model::inspect(path, on_device(budget, session, PI_PLACEMENT_RATES))) ==
          hottest);

    // PowerInfer's file: followed as far as the budget reaches; one of another model is refused.
    tiny::write(plain, path);
    const std::string index = path + ".generated.gpuidx";
    for (int64_t n_layer : {shape.n_layer, shape.n_layer - 1}) {
        Description d;
        for (int64_t l = 0; l < n_layer; l++) {
            std::vector<int32_t> flags, ids;
            for (int32_t n = 0; n < kNeurons; n++) {
                flags.push_back(n < 20);
                if (n < 20) ids.push_back(n);
            }
            for (const auto& [what, values] :
                 {std::pair{"gpu_idx", &flags}, {"gpu_bucket", &ids}}) {
                const auto* bytes = reinterpret_cast<const uint8_t*>(values->data());
                d.tensors.push_back({name(l, what),
                                     DType::I32,
                                     {int64_t(values->size())},
                                     {bytes, bytes + values->size() * 4}});
            }
        }
        tiny::write(d, index, 0, d.tensors.size(), false,
                    {{"general.architecture", std::string("generic.gpu_index")},
                     {"split.vram_capacity", uint32_t(1000)}});
        if (n_layer != shape.n_layer) continue;
        const Neurons there = on_device(*Model::inspect(path, on_device(budget, session)));
        for (int64_t l = 0; l < shape.n_layer; l++) {
            for (int64_t n = 0; n < 20; n++) CHECK(there.count({l, n}));
        }
    }
    CHECK_THROWS(format, Model::inspect(path, on_device(budget, session)));
    CHECK(on_device(*Model::inspect(path, on_device(budget, session, PI_PLACEMENT_RATES))) ==
          hottest);
    std::filesystem::remove(index);
}

// In exact mode: no neurons on the device, random ones and the hottest ones give the same logits
// but for rounding, each the same bits twice.
void test_placements_agree() {
    const std::string path = folder / "agree.gguf";
    const Shape shape = neurons();
    pi_session_params session = few_rows();
    session.sparse = PI_SPARSE_EXACT;
    session.type_k = session.type_v = uint32_t(DType::F32);
    Description d = with_rates(shape);
    tiny::write(d, path);
    const Range range = budgets(path, session);
    const uint64_t budget = range.most - (range.most - range.least) / 4;
    const std::string hash = statistics_hash(*load(path));
    std::mt19937 rng(7);
    add_placement(d, shape.n_layer, hash, 0, [&](int64_t, int64_t) { return rng() % 2 == 0; });
    tiny::write(d, path);
    const Tokens tokens = random_tokens(10, 3);
    const Floats expected = logits(load(path), tokens, session);
    size_t n_neurons = 0;
    for (int32_t placement : {PI_PLACEMENT_FILE, PI_PLACEMENT_RATES, PI_PLACEMENT_NONE}) {
        Floats first;
        for (int32_t threads : {1, 3}) {
#ifdef GGML_SHIM
            shim::set_memory(1 << 28);
#endif
            pi_session_params params = session;
            params.n_threads = params.n_threads_batch = threads;
            params.stepwise = threads == 3;
            const std::shared_ptr<const Model> m =
                Model::load(path, on_device(budget, session, placement));
            const size_t n = on_device(*m).size();
            if (placement == PI_PLACEMENT_FILE) n_neurons = n;
            CHECK(n == (placement == PI_PLACEMENT_NONE ? 0 : n_neurons));
            const Floats got = logits(m, tokens, params);
            CHECK(distance(got, expected) < 1e-5);
            CHECK(first.empty() || same(got, first));
            first = got;
#ifdef GGML_SHIM
            CHECK(shim::most_allocated() <= budget);
#endif
        }
    }
    CHECK(n_neurons > 40);
}

}  // namespace

int main() {
    if (gpu_test::kShim) {  // a card's context would be most of these budgets
        for (DType type : {DType::F32, DType::Q4_0}) test_budgets(neurons(type));
        Shape matrices;
        matrices.n_layer = 6, matrices.biases = true;
        test_budgets(matrices);
        test_homes();
    }
    test_placements_agree();
    return check::summary("test_homes");
}
