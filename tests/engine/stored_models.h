// Shared by the tests of models whose neurons stay on the disk.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "files/write_bundle.h"
#include "load/open_store.h"
#include "sessions.h"

namespace stored {

using namespace sessions;

constexpr uint64_t kNoLimit = uint64_t(1) << 40;

inline pi_model_params model_params(uint64_t budget, const pi_session_params& session) {
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

inline Bounds bounds_of(const std::string& path, const pi_session_params& session) {
    Bounds bounds{0, 0};
    for (const PlanPart& p :
         make_plan(*Model::inspect(path, model_params(kNoLimit, session)), session).parts)
        bounds.all += p.bytes;
    const auto least = Model::inspect(path, model_params(1, session));
    const std::optional<StoragePlan>& plan = least->storage ? least->storage : least->anyway;
    CHECK(plan);
    if (plan) bounds.least = plan->least;
    return bounds;
}

inline std::string bundled(const Shape& shape) {
    tiny::write(tiny::describe(shape), folder / "model.gguf");
    for (const char* end : {"", ".resident"}) std::remove((folder / "bundled.gguf" + end).c_str());
    write_bundled(folder / "model.gguf", folder / "bundled.gguf", pi_bundle_default_params());
    return folder / "bundled.gguf";
}

// A prompt of n tokens in one call, and 20 more: generated ones, one by one and in threes, and two.
inline Floats answer(std::shared_ptr<const Model> model, const pi_session_params& params,
                     size_t n = 40) {
    Session session(std::move(model), params);
    const Tokens tokens = random_tokens(n + 20, 3);
    Floats out;
    const auto rows = [&](size_t begin, size_t end, bool generated) {
        append_rows(session, tokens, begin, end, generated, out);
    };
    rows(0, n, false);
    for (size_t i = n; i < n + 12; i++) rows(i, i + 1, true);
    for (size_t i = n + 12; i < n + 18; i += 3) rows(i, i + 3, true);
    rows(n + 18, n + 20, false);
    return out;
}

// A loaded model whose store reads through `reader`.
inline std::shared_ptr<const Model> with_reader(const std::string& path,
                                                const pi_model_params& params,
                                                std::unique_ptr<ggml::Reader> reader) {
    const std::shared_ptr<const Model> model = Model::load(path, params);
    CHECK(model->store);
    const_cast<Model&>(*model).store = open_store(*model, params, std::move(reader));
    return model;
}

inline Shape wide() {
    Shape shape;
    shape.activation = "relu", shape.down_t = true, shape.type = DType::Q8_0;
    shape.n_ff = 1500, shape.n_embd = 128, shape.n_layer = 3;
    return shape;
}

// A prompt that is more than a few rows for neurons.cpp.
constexpr size_t kFew = 12;

// The ways of reading that this system allows.
inline std::vector<std::string> ways() {
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

}  // namespace stored
