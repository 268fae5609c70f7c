// Shared by the files of the C API: handles that several of them use, and the function that turns
// exceptions into status codes.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "ggml/status.h"
#include "model/adapter.h"
#include "model/model.h"
#include "sampler/sampler.h"

struct pi_gguf {
    const ggml::Gguf* gguf;
    const std::vector<std::unique_ptr<ggml::File>>* files;
    powerinfer::ModelFile own;  // empty if a model owns the file
};

struct pi_model {
    std::shared_ptr<const powerinfer::Model> model;
    pi_gguf header;
};

struct pi_adapter {
    std::shared_ptr<const powerinfer::Adapter> adapter;
};

struct pi_sampler {
    powerinfer::Sampler sampler;
};

namespace powerinfer::api {

// Keeps the message for pi_last_error() of this thread.
pi_status fail(ggml::Code code, const char* message) noexcept;

// Runs the body of a call and turns exceptions into a status.
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

// The same for calls that return a value: `otherwise` if the body throws.
template <typename T, typename F>
T guarded_or(T otherwise, F body) noexcept {
    T result = otherwise;
    return guarded([&] { result = body(); }) == PI_OK ? result : otherwise;
}

inline void require(bool condition, const char* what) {
    if (!condition) throw ggml::Error(ggml::Code::argument, what);
}

constexpr const char* kNoOut = "the pointer for the result must not be NULL";

// Structs of callers begin with their size, which is smaller if they were built with an older
// header.
template <typename S>
size_t known_size(const S& of_caller) {
    static_assert(offsetof(S, struct_size) == 0 && std::is_trivially_copyable_v<S>);
    const size_t size = of_caller.struct_size;
    require(size >= sizeof(size), "struct_size is not set: it is the size of the struct");
    require(size <= sizeof(S),
            "struct_size is larger than this version's struct: the program was built for a newer "
            "powerinfer.h");
    return size;
}

// A copy of a caller's parameters. NULL gives the defaults; so do members that an older header does
// not have.
template <typename P>
P params_or(const P* params, P defaults) {
    if (!params) return defaults;
    std::memcpy(&defaults, params, known_size(*params));
    defaults.struct_size = sizeof(P);
    return defaults;
}

// Writes a result, or the part of it that the caller's header knows.
template <typename S>
void give(S* out, S result) {
    require(out, kNoOut);
    result.struct_size = known_size(*out);
    std::memcpy(out, &result, result.struct_size);
}

}  // namespace powerinfer::api
