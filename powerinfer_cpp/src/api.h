// What the parts of the C face share: the handles that more than one of them opens, and the one
// place where exceptions become status codes.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "ggml/status.h"
#include "model.h"

struct pi_gguf {
    const ggml::Gguf* gguf;
    const std::vector<std::unique_ptr<ggml::File>>* files;
    powerinfer::ModelFile own;  // empty when it is a model's
};

struct pi_model {
    std::shared_ptr<const powerinfer::Model> model;
    pi_gguf header;
};

namespace powerinfer::api {

// Keeps the message for pi_last_error() of this thread.
pi_status fail(ggml::Code code, const char* message) noexcept;

// Runs the body of a call; what it throws becomes a status.
template <typename F>
pi_status guarded(F body) noexcept {
    try {
        body();
        return PI_OK;
    } catch (const ggml::Error& e) {
        return fail(e.code(), e.what());
    } catch (const std::bad_alloc&) {
        return fail(ggml::Code::memory, "out of memory");
    } catch (const std::exception& e) {
        return fail(ggml::Code::internal, e.what());
    }
}

inline void require(bool condition, const char* what) {
    if (!condition) throw ggml::Error(ggml::Code::argument, what);
}

// A copy of a caller's parameters; NULL stands for the defaults.
template <typename P>
P params_or(const P* params, P defaults) {
    if (!params) return defaults;
    require(params->struct_size == sizeof(P),
            "struct_size of the parameters is not this version's");
    return *params;
}

constexpr const char* kNoOut = "NULL where the result is to go";

}  // namespace powerinfer::api
