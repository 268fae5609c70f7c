// powerinfer.h in C++: owning handles, parameters from options, texts and tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "options/options.h"
#include "powerinfer.h"

template <auto release>
struct Release {
    template <class T>
    void operator()(T* handle) const {
        release(handle);
    }
};
using Model = std::unique_ptr<pi_model, Release<pi_model_free>>;
using Session = std::unique_ptr<pi_session, Release<pi_session_free>>;
using Sampler = std::unique_ptr<pi_sampler, Release<pi_sampler_free>>;
using Adapter = std::unique_ptr<pi_adapter, Release<pi_adapter_free>>;
using Breakers = std::unique_ptr<pi_breakers, Release<pi_breakers_free>>;
using Plan = std::unique_ptr<pi_plan, Release<pi_plan_free>>;

// Parameters of a model, with what they point to.
struct ModelParams {
    pi_model_params params;
    std::vector<pi_override> overrides;
};
// session: which the model's device keeps room for; used by the call that gets these parameters.
ModelParams model_params(Options& options, const pi_session_params& session);
// Does the model get a GPU?
bool wants_gpu(const Options& options);
// Positions that a model was trained with, from its header.
int32_t trained_positions(Options& options);
pi_session_params session_params(const Options& options, int32_t trained_for);
Sampler new_sampler(const Options& options, const pi_model* model);
std::string isa();  // throws if GGML_ISA cannot run here
// Ids of a text. special: texts of control tokens become those tokens.
std::vector<int32_t> tokenize(const pi_model* model, const std::string& text, bool special);
std::string_view token_text(const pi_model* model, int32_t token, bool special);
