#include "model/rope.h"

#include <algorithm>
#include <cmath>

#include "ggml/math.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

using Kind = RopeScaling::Kind;

constexpr double kPi = 3.14159265358979323846;  // not every system's cmath has M_PI

// The model's scaling, or what a session has in place of it. As in llama.cpp a factor counts with
// every kind but `none`, and without YaRN nothing keeps a frequency as it is.
RopeScaling scaling_of(const Config& c, const pi_session_params& p) {
    RopeScaling s = c.rope_scaling;
    if (p.rope_scaling != PI_ROPE_FILE) {
        constexpr Kind kinds[] = {Kind::none, Kind::linear, Kind::yarn};
        s.kind = kinds[p.rope_scaling];
    }
    if (p.rope_freq_scale > 0) s.factor = 1 / double(p.rope_freq_scale);
    if (s.kind == Kind::none) s.factor = 1;
    if (p.yarn_orig_ctx > 0) s.original_ctx = p.yarn_orig_ctx;
    if (p.yarn_ext_factor >= 0) s.extension = double(p.yarn_ext_factor);
    if (s.extension < 0) s.extension = s.kind == Kind::yarn;
    if (p.yarn_attn_factor >= 0) {
        s.attention_factor = double(p.yarn_attn_factor);
    } else if (s.kind != Kind::yarn) {
        s.attention_factor = 1;
    }
    if (p.yarn_beta_fast >= 0) s.beta_fast = double(p.yarn_beta_fast);
    if (p.yarn_beta_slow >= 0) s.beta_slow = double(p.yarn_beta_slow);
    return s;
}

// YaRN (arXiv 2309.00071): frequencies that turn often within the trained context are kept, slow
// ones are divided by the factor, those between are interpolated.
void stretch_yarn(const RopeScaling& s, double log_base, double dims, RopeTable& table) {
    // The dimension whose frequency makes `rotations` turns within the trained context.
    const auto dimension = [&](double rotations) {
        return dims * ggml::log_f64(s.original_ctx / (rotations * 2 * kPi)) / (2 * log_base);
    };
    double low = dimension(s.beta_fast), high = dimension(s.beta_slow);
    if (s.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, dims - 1);
    if (high <= low) high = low + 0.001;
    for (size_t i = 0; i < table.frequency.size(); i++) {
        const double slow = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
        const double stretched = slow + (1 - slow) * (1 - s.extension);
        table.frequency[i] *= (1 - stretched) + stretched / s.factor;
    }
    const double longer = s.factor > 1 ? 0.1 * ggml::log_f64(s.factor) + 1 : 1;
    table.magnitude *= longer * s.attention_factor;
}

// The logarithm of the base, with dynamic scaling.
double log_base(const Config& c, const Rope& rope, const RopeScaling& s,
                const pi_session_params& p) {
    const double base = p.rope_freq_base > 0 ? double(p.rope_freq_base) : rope.base;
    const double trained = ggml::log_f64(base), n_ctx = double(p.n_ctx);
    if (s.kind != Kind::dynamic || n_ctx <= double(c.n_ctx)) return trained;
    // Neural tangent kernel ("NTK") scaling: fast frequencies hardly change, the slowest is divided
    // by `longer`.
    const double dims = double(rope.n_rot);
    const double longer = s.factor * n_ctx / double(c.n_ctx) - (s.factor - 1);
    return trained + ggml::log_f64(longer) * dims / (dims - 2);
}

const float* factors(const Model& m, const RopeScaling& s, int64_t n_ctx) {
    if (s.kind != Kind::longrope) return m.rope_factors;
    return double(n_ctx) > s.original_ctx ? m.rope_long : m.rope_short;
}

}  // namespace

uint32_t RopeTable::variant(const Config& c, const pi_session_params& params) {
    const RopeScaling s = scaling_of(c, params);
    switch (s.kind) {
        case Kind::longrope:
            return double(params.n_ctx) > s.original_ctx;
        case Kind::dynamic:
            return params.n_ctx > c.n_ctx ? uint32_t(params.n_ctx) : 0;
        default:
            return 0;
    }
}

RopeTable::RopeTable(const Model& model, const Rope& rope, const pi_session_params& params) {
    const Config& c = model.config;
    const RopeScaling s = scaling_of(c, params);
    const double base = rope.scaled ? log_base(c, rope, s, params) : ggml::log_f64(rope.base);
    const float* const divisors = rope.scaled ? factors(model, s, params.n_ctx) : nullptr;
    for (int64_t i = 0; i < rope.n_rot / 2; i++) {
        frequency.push_back(ggml::exp_f64(-2.0 * double(i) / double(rope.n_rot) * base));
        if (divisors) frequency.back() /= double(divisors[i]);
    }
    if (!rope.scaled) return;
    magnitude = s.magnitude;
    if (s.extension > 0) {
        stretch_yarn(s, base, double(rope.n_rot), *this);
        return;
    }
    magnitude *= s.attention_factor;
    if (s.kind == Kind::linear || s.kind == Kind::yarn)
        for (double& f : frequency) f /= s.factor;
}

std::vector<RopeTable> rope_tables(const Model& model, const pi_session_params& params) {
    std::vector<RopeTable> tables;
    for (const Rope& rope : model.config.ropes) tables.emplace_back(model, rope, params);
    return tables;
}

void check_rope(const Config& config, const pi_session_params& p) {
    const auto fail = [](const std::string& what) {
        throw ggml::Error(ggml::Code::argument, what);
    };
    // 0 or a negative number stands for the file's; NaN is none of them.
    const auto bound = [&](const char* name, float value, bool unset, double lo, double hi) {
        if (!unset && !(double(value) >= lo && double(value) <= hi))
            fail(ggml::format("%s must be between %g and %g, not %g", name, lo, hi, double(value)));
        return !unset;
    };
    if (p.rope_scaling < PI_ROPE_FILE || p.rope_scaling > PI_ROPE_YARN)
        fail("rope_scaling must be a pi_rope_scaling");
    if (p.yarn_orig_ctx < 0)
        fail(ggml::format("yarn_orig_ctx must not be negative, but is %d", int(p.yarn_orig_ctx)));
    bool scales = p.yarn_orig_ctx > 0, asked = p.rope_scaling != PI_ROPE_FILE;
    asked |= bound("rope_freq_base", p.rope_freq_base, p.rope_freq_base == 0, 1.001, 1e12);
    scales |= bound("rope_freq_scale", p.rope_freq_scale, p.rope_freq_scale == 0, 1e-6, 1e6);
    scales |= bound("yarn_ext_factor", p.yarn_ext_factor, p.yarn_ext_factor < 0, 0, 1);
    scales |= bound("yarn_attn_factor", p.yarn_attn_factor, p.yarn_attn_factor < 0, 1e-3, 1e3);
    scales |= bound("yarn_beta_fast", p.yarn_beta_fast, p.yarn_beta_fast < 0, 1e-3, 1e6);
    scales |= bound("yarn_beta_slow", p.yarn_beta_slow, p.yarn_beta_slow < 0, 1e-3, 1e6);
    if ((asked || scales) && config.ropes.empty())
        fail("the model has no RoPE that could be scaled");
    // Those kinds have no factor that could be another one.
    const Kind kind = scaling_of(config, p).kind;
    if (scales && (kind == Kind::longrope || kind == Kind::dynamic))
        fail("the model scales RoPE in a way of its own; rope_scaling says what is in its place");
}

}  // namespace powerinfer
