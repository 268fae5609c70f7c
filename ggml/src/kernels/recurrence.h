// What all kernels of scan and delta have in common: steps. A step of a head is e^(a dt), by which
// its state decays, and a factor of what is added.
#pragma once

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml::cpu {

namespace {

constexpr int64_t kSteps = 16;  // computed at a time, at most
struct Steps {
    float decay[kSteps], factor[kSteps];
};

// The values of a head in a row.
[[gnu::always_inline]] inline float* values(const Heads& of, int64_t row, int64_t head) {
    return of.x + row * of.row + head * of.head;
}

[[gnu::always_inline]] inline float time_step(float value, float bias) {
    return float(softplus_f64(double(value) + double(bias)));
}

// Of n rows. The factor is dt.
[[gnu::always_inline]] inline void find_steps(const Mamba2Scan& how, int64_t head,
                                              const int32_t* rows, int64_t n, Steps& steps) {
    for (int64_t i = 0; i < n; i++) {
        steps.factor[i] = time_step(*values(how.dt, rows[i], head), how.dt_bias[head]);
        steps.decay[i] = exp_f32(steps.factor[i] * how.a[head]);
    }
}

// The factor is sigmoid(beta).
[[gnu::always_inline]] inline void find_steps(const DeltaRule& how, int64_t head,
                                              const int32_t* rows, int64_t n, Steps& steps) {
    for (int64_t i = 0; i < n; i++) {
        const float dt = time_step(*values(how.alpha, rows[i], head), how.dt_bias[head]);
        steps.decay[i] = exp_f32(dt * how.a[head]);
        steps.factor[i] = sigmoid(*values(how.beta, rows[i], head));
    }
}

// Which head of k, or group of heads, serves a head.
[[gnu::always_inline]] inline int64_t served_by(const DeltaRule& how, int64_t head) {
    return how.tiled ? head % how.n_k_head : head / (how.n_v_head / how.n_k_head);
}
[[gnu::always_inline]] inline int64_t served_by(const Mamba2Scan& how, int64_t head) {
    return head / (how.n_head / how.n_group);
}

}  // namespace

}  // namespace ggml::cpu
