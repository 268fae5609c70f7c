// Models that a device and the CPU share, for the tests of whole models.
#pragma once

#include <algorithm>

#include "device/device_model.h"
#include "engine/sessions.h"
#include "gpu/device_arrays.h"

namespace splits {

using namespace sessions;

inline pi_model_params on_device(uint64_t vram_budget, const pi_session_params& session) {
    pi_model_params params = pi_model_default_params();
    params.n_threads = 1;
    params.device = gpu_test::kDevice;
    params.vram_budget = vram_budget;
    params.session = &session;
    params.op_offload = false;
    return params;
}

inline std::shared_ptr<const Model> load_on(const std::string& path, uint64_t vram_budget,
                                            const pi_session_params& session,
                                            int32_t n_gpu_layers = -1, bool op_offload = false) {
    pi_model_params params = on_device(vram_budget, session);
    params.n_gpu_layers = n_gpu_layers;
    params.op_offload = op_offload;
    return Model::load(path, params);
}

inline int64_t neurons_on_device(const Model& m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m.config.n_layer; i++) n += m.device_neurons(i);
    return n;
}

// Bytes on the device with everything there, and with one layer without neurons.
struct Range {
    uint64_t least, most;
};
inline Range budgets(const std::string& path, const pi_session_params& session) {
    const auto all = Model::inspect(path, on_device(1 << 30, session));
    const Plan plan = make_plan(*all, session);
    const uint64_t most = total(plan.parts, Tier::gpu);
    uint64_t low = 0, high = most;  // refused, and loaded
    while (high - low > 256) {
        const uint64_t middle = (low + high) / 2;
        try {
            Model::inspect(path, on_device(middle, session));
            high = middle;
        } catch (const Error& e) {
            CHECK(e.code() == Code::memory);
            low = middle;
        }
    }
    return {high, most};
}

inline Shape by_neuron(DType type) {
    Shape s;
    s.activation = "relu", s.down_t = true, s.type = type, s.predictor_rank = 32, s.n_layer = 3;
    return s;
}

// Eight experts, of which a row computes two.
inline Shape mixture(DType type) {
    Shape s;
    s.n_expert = 8, s.n_layer = 3, s.type = type, s.n_head_kv = 2;
    if (info(type).block == 256) s.n_embd = s.n_ff = 256, s.head_dim = 64;
    if (info(type).block == 64) s.n_ff = 128;
    return s;
}

// A session over a model that is split in the middle.
struct Split {
    explicit Split(uint64_t room = 0, const Shape& shape = by_neuron(DType::F32)) {
        tiny::write(tiny::describe(shape), path);
        params.type_k = params.type_v = uint32_t(DType::F32);
        params.n_seq = 2;
        const Range range = budgets(path, params);
        budget = (range.least + range.most) / 2 + room;
        model = load_on(path, budget, params);
    }
    const std::string path = folder / "split.gguf";
    pi_session_params params = session_params();
    uint64_t budget = 0;
    std::shared_ptr<const Model> model;
};

}  // namespace splits
