// Activations of neurons, many at a time.
#include <cmath>

#include "ggml/math.h"
#include "ops/ffn_parts.h"

namespace ggml::cpu {

namespace {

template <typename F>
void activate(float* v, int64_t n, const F& f) {
    for (int64_t i = 0; i < n; i++) v[i] = f(v[i]);
}

}  // namespace

void activate(const Neurons& w, float* v, int64_t n) {
    const float threshold = w.threshold;
    const auto keep = [=](float a) { return std::fabs(a) < threshold ? 0.0f : a; };
    switch (w.act) {
        case Activation::relu:
        case Activation::drelu:
            return activate(v, n, [=](float x) { return x <= threshold ? 0.0f : x; });
        case Activation::relu2:
            return activate(v, n, [=](float x) { return x <= threshold ? 0.0f : x * x; });
        case Activation::silu:
            return activate(v, n, [=](float x) { return keep(silu(x)); });
        case Activation::gelu:
            return activate(v, n, [=](float x) { return keep(gelu(x)); });
        case Activation::gelu_tanh:
            return activate(v, n, [=](float x) { return keep(gelu_tanh(x)); });
    }
}

void values(const Neurons& w, const float* gate, float* up, int64_t n, float* h) {
    if (w.act == Activation::drelu) activate(w, up, n);
    for (int64_t i = 0; i < n; i++) {
        const float product = gate[i] * up[i];
        h[i] = gate[i] != 0 ? product : 0.0f;
    }
}

}  // namespace ggml::cpu
