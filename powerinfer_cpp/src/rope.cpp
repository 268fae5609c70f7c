#include "rope.h"

#include <algorithm>
#include <cmath>

#include "ggml/math.h"

namespace powerinfer {

namespace {

constexpr double kPi = 3.14159265358979323846;  // not every system's cmath has M_PI

// YaRN (arXiv 2309.00071): frequencies that turn often within the trained context are kept, slow
// ones are divided by the factor, those between are interpolated.
void stretch_yarn(const Config& c, RopeTable& table) {
    const RopeScaling& s = c.rope_scaling;
    const double dims = double(c.n_rot);
    // The dimension whose frequency makes `rotations` turns within the trained context.
    const auto dimension = [&](double rotations) {
        return dims * ggml::log_f64(s.original_ctx / (rotations * 2 * kPi)) /
               (2 * ggml::log_f64(c.rope_base));
    };
    const double low = std::max(std::floor(dimension(s.beta_fast)), 0.0);
    double high = std::min(std::ceil(dimension(s.beta_slow)), dims - 1);
    if (high == low) high += 0.001;
    for (size_t i = 0; i < table.frequency.size(); i++) {
        const double stretched = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
        table.frequency[i] *= (1 - stretched) + stretched / s.factor;
    }
    const double longer = s.factor > 1 ? 0.1 * ggml::log_f64(s.factor) + 1 : 1;
    table.magnitude *= longer * s.attention_factor;
}

// The logarithm of the base.
double log_base(const Config& c, int64_t n_ctx) {
    const double trained = ggml::log_f64(c.rope_base);
    if (c.rope_scaling.kind != RopeScaling::Kind::dynamic || n_ctx <= c.n_ctx) return trained;
    // Neural tangent kernel ("NTK") scaling: fast frequencies hardly change, the slowest is divided
    // by `longer`.
    const double factor = c.rope_scaling.factor, dims = double(c.n_rot);
    const double longer = factor * double(n_ctx) / double(c.n_ctx) - (factor - 1);
    return trained + ggml::log_f64(longer) * dims / (dims - 2);
}

const float* factors(const Model& m, int64_t n_ctx) {
    if (m.config.rope_scaling.kind != RopeScaling::Kind::longrope) return m.rope_factors;
    return double(n_ctx) > m.config.rope_scaling.original_ctx ? m.rope_long : m.rope_short;
}

}  // namespace

uint32_t RopeTable::variant(const Config& c, int64_t n_ctx) {
    switch (c.rope_scaling.kind) {
        case RopeScaling::Kind::longrope:
            return double(n_ctx) > c.rope_scaling.original_ctx;
        case RopeScaling::Kind::dynamic:
            return n_ctx > c.n_ctx ? uint32_t(n_ctx) : 0;
        default:
            return 0;
    }
}

RopeTable::RopeTable(const Model& model, int64_t n_ctx)
    : magnitude(model.config.rope_scaling.magnitude) {
    const Config& c = model.config;
    const double base = log_base(c, n_ctx);
    const float* const divisors = factors(model, n_ctx);
    for (int64_t i = 0; i < c.n_rot / 2; i++) {
        frequency.push_back(ggml::exp_f64(-2.0 * double(i) / double(c.n_rot) * base));
        if (divisors) frequency.back() /= double(divisors[i]);
    }
    switch (c.rope_scaling.kind) {
        case RopeScaling::Kind::none:
        case RopeScaling::Kind::longrope:
        case RopeScaling::Kind::dynamic:
            break;
        case RopeScaling::Kind::linear:
            for (double& f : frequency) f /= c.rope_scaling.factor;
            break;
        case RopeScaling::Kind::yarn:
            stretch_yarn(c, *this);
            break;
    }
}

}  // namespace powerinfer
