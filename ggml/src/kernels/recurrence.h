// What all kernels of scan and delta have in common: steps. A step of a head is e^(a dt), by which
// its state decays, and a factor of what is added.
//
// A state is what is stored times its head's scale, and most steps multiply only that: a quarter to
// a third of the operations are saved. A scale that becomes small is folded into what is stored.
// That depends on the steps before it alone, since states keep their scales from call to call.
#pragma once

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml::cpu {

namespace {

constexpr int64_t kSteps = 16;  // computed at a time, at most
constexpr float kLeastScale = 0x1p-20f;
struct Steps {
    float factor[kSteps];
    float decayed[kSteps];  // the scale before the step, times the step's decay
    bool folded[kSteps];    // that multiplies what is stored, and the scale is 1
    float scale[kSteps];    // after the step
};

// The step after one with this scale, which becomes its own.
[[gnu::always_inline]] inline void decay(Steps& steps, int64_t i, float by, float& scale) {
    scale *= by;
    steps.decayed[i] = scale;
    steps.folded[i] = !(scale >= kLeastScale && scale <= 1);  // or NaN
    if (steps.folded[i]) scale = 1;
    steps.scale[i] = scale;
}

// The values of a head in a row.
[[gnu::always_inline]] inline float* values(const Heads& of, int64_t row, int64_t head) {
    return of.x + row * of.row + head * of.head;
}

// x[i] = f(x[i]). Not inlined, so that it is vectorised for many rows.
template <typename F>
[[gnu::noinline]] void apply(float* x, int64_t n, F f) {
    for (int64_t i = 0; i < n; i++) x[i] = f(x[i]);
}

// Of n rows, after a step with this scale, which becomes that of the last one: dt = softplus(`of` +
// bias), and the decays e^(a dt).
[[gnu::always_inline]] inline void find_decays(const Heads& of, int64_t head, const int32_t* rows,
                                               int64_t n, float bias, float a, float* dt,
                                               Steps& steps, float& scale) {
    for (int64_t i = 0; i < n; i++) dt[i] = *values(of, rows[i], head);
    apply(dt, n, [=](float v) { return float(softplus_f64(double(v) + double(bias))); });
    float decays[kSteps];
    for (int64_t i = 0; i < n; i++) decays[i] = a * dt[i];
    apply(decays, n, [](float v) { return exp_f32(v); });
    for (int64_t i = 0; i < n; i++) decay(steps, i, decays[i], scale);
}

// The factor is dt.
[[gnu::always_inline]] inline void find_steps(const Mamba2Scan& how, int64_t head,
                                              const int32_t* rows, int64_t n, Steps& steps,
                                              float& scale) {
    find_decays(how.dt, head, rows, n, how.dt_bias[head], how.a[head], steps.factor, steps, scale);
}

// Alpha of a head in n rows becomes the decays of the rows of its state.
template <typename F>
[[gnu::noinline]] void find_row_decays(const DeltaRule& how, int64_t head, const int32_t* rows,
                                       int64_t n, F f) {
    const float* const bias = how.dt_bias + head * how.head_dim;
    for (int64_t i = 0; i < n; i++) {
        float* const x = values(how.alpha, rows[i], head);
        for (int64_t r = 0; r < how.head_dim; r++) x[r] = f(double(x[r]) + double(bias[r]));
    }
}

// Such a state has no scale: it is 1.
[[gnu::always_inline]] inline void decay_by_row(const DeltaRule& how, int64_t head,
                                                const int32_t* rows, int64_t n, Steps& steps,
                                                float& scale) {
    const float a = ::fabsf(how.a[head]), bound = how.lower_bound;
    if (bound < 0) {
        find_row_decays(how, head, rows, n,
                        [=](double x) { return bounded_row_decay(x, a, bound); });
    } else {
        find_row_decays(how, head, rows, n, [=](double x) { return row_decay(x, a); });
    }
    scale = 1;
    for (int64_t i = 0; i < n; i++) decay(steps, i, 1, scale);
}

// The factor is beta_scale sigmoid(beta).
[[gnu::always_inline]] inline void find_steps(const DeltaRule& how, int64_t head,
                                              const int32_t* rows, int64_t n, Steps& steps,
                                              float& scale) {
    if (how.by_row) {
        decay_by_row(how, head, rows, n, steps, scale);
    } else {
        float dt[kSteps];
        find_decays(how.alpha, head, rows, n, how.dt_bias[head], how.a[head], dt, steps, scale);
    }
    for (int64_t i = 0; i < n; i++) steps.factor[i] = *values(how.beta, rows[i], head);
    apply(steps.factor, n, [by = how.beta_scale](float v) { return by * sigmoid(v); });
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
