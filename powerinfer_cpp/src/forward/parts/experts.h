// Mixtures: a router chooses experts for each row, and what they give is added up.
#pragma once

#include <functional>

#include "forward/pass.h"

namespace powerinfer {

// A part that is computed with the experts (part_beside()), its input and its results: x, y [n,
// n_embd]. Null: none.
struct Beside {
    const FeedForward* part = nullptr;
    ggml::SharedInput* x = nullptr;
    float* y = nullptr;
};

// Chooses the experts of the batch's rows x, and leaves them in the workspace.
void route(const Pass& p, const Router& router, ggml::SharedInput& x);

// For routers that run long before mixture(): requests from the disk what the chosen experts are
// known to need after route().
void request_experts(const Pass& p, const FeedForward& part);

// y[t] = the sum of expert_weight * ffn(expert, x[t]) over the chosen experts, in ascending order.
void mixture(const Pass& p, const FeedForward& part, ggml::SharedInput& x, float* y,
             const Beside& beside);

// For a device that computes the other experts: y[i] = ffn(expert, its row
// of x) for each pair i of a row and one of its experts that wanted(expert) says. chosen: [rows,
// n_used], the pairs' experts; y: [rows * n_used, width].
void answer_experts(const Pass& p, const FeedForward& part, const int32_t* chosen,
                    const std::function<bool(int64_t)>& wanted, ggml::SharedInput& x, float* y);

}  // namespace powerinfer
