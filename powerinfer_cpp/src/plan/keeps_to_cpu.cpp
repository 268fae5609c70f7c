// A device computes layers of attention and one feed-forward block (device_layers.cpp). What it
// cannot do is refused by construction: every field of a part is named below, so a new kind of part
// or a new field does not compile here until it is said whether a device computes it. A new member
// of the structs in layer.h belongs into its list, with a reason if it keeps a layer to the CPU.
#include "plan/keeps_to_cpu.h"

#include <algorithm>

#include "ggml/device_ops.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

using ggml::format;

constexpr char kScaled[] = "products with a scale of their own keep to the CPU";

// Does the model have the weights of this vector? They are not read yet.
bool has(const Model& m, const float* const& vector) {
    for (const WeightSpec& w : m.weights) {
        const auto* v = std::get_if<Vector>(&w.target);
        if (v && v->to == &vector) return true;
    }
    return false;
}

// A norm without bias is an RMSNorm on a device.
bool lacks_norm_bias(const Model& m) {
    return m.config.norm == Config::Norm::layer && !m.config.norm_bias;
}

std::string reason(const Model& m, const Attention& attention) {
    const auto& [n_head, n_head_kv, head_dim, v_head_dim, rope, window, first, growth, growth_ctx,
                 v_norm, kv_of, scale, softcap, sinks, q, k, v, o, q_bias, k_bias, v_bias, o_bias,
                 q_scale, k_scale, v_scale, o_scale, gated, latent, q_norm, k_norm, norms,
                 out_norm] = attention;
    if (first > 0) return "layers that guess tokens keep to the CPU";
    if (gated) return "attention whose results are gated keeps to the CPU";
    if (latent) return "attention over latents keeps to the CPU";
    // The arrays of attention in shared memory have a fixed size.
    if (head_dim > ggml::kDeviceHeadDim) {
        return format(
            "heads of %lld values keep to the CPU: the device's attention has room for %lld",
            (long long)head_dim, (long long)ggml::kDeviceHeadDim);
    }
    if (v_head_dim != head_dim) return "keys and values of different widths keep to the CPU";
    if (norms != Attention::Norms::by_head && (has(m, q_norm) || has(m, k_norm))) {
        return "models with norms over all heads, or behind RoPE, keep to the CPU";
    }
    if (has(m, sinks)) return "models with attention sinks keep to the CPU";
    if (has(m, out_norm)) return "models with norms inside attention keep to the CPU";
    for (const float* const* factor : {&q_scale, &k_scale, &v_scale, &o_scale}) {
        if (has(m, *factor)) return kScaled;
    }
    if (softcap > 0) return "models that cap the scores of attention keep to the CPU";
    if (v_norm) return "models with norms of values, or without a matrix of them, keep to the CPU";
    if (kv_of >= 0) return "layers that read another layer's keys and values keep to the CPU";
    if (growth != 0) return "models whose queries grow with the position keep to the CPU";
    // A pass has one table of rotations there.
    if (rope > 0) return "layers that rotate heads by a base of their own keep to the CPU";
    // Norms of heads are RMS norms there, one weight for all heads.
    if (m.config.norm == Config::Norm::layer && (has(m, q_norm) || has(m, k_norm))) {
        return "models with a LayerNorm over each head keep to the CPU";
    }
    return "";
}

std::string reason(const Model&, const Router&) {
    return "mixtures of experts keep to the CPU";
}

std::string reason(const Model& m, const FeedForward& ffn) {
    const auto& [n_ff, n_used, blocks, share, width, narrow, widen, xielu, norms_values,
                 sparse_threshold, recall, layer, index, first_block] = ffn;
    if (xielu) return "models with xIELU keep to the CPU";
    if (n_used > 0 || blocks.size() != 1) return "mixtures of experts keep to the CPU";
    if (m.config.activation == ggml::Activation::swiglu_oai) {
        return "models with the activation swiglu_oai keep to the CPU";
    }
    if (norms_values) return "models with norms inside feed-forward blocks keep to the CPU";
    [[maybe_unused]] const auto& [gate, up, down, gate_bias, up_bias, down_bias, gate_scale,
                                  up_scale, down_scale, value_norm, gates, bundle, neurons, stored,
                                  fc1, fc2, signs, sketch_offset, rate, unpredicted] = blocks[0];
    for (const float* const* factor : {&gate_scale, &up_scale, &down_scale}) {
        if (has(m, *factor)) return kScaled;
    }
    return "";
}

std::string reason(const Model&, const LayerEmbedding&) {
    return "models with embeddings of each layer keep to the CPU";
}

constexpr char kWithState[] = "layers with a state keep to the CPU";

std::string reason(const Model&, const ShortConvolution&) {
    return kWithState;
}

std::string reason(const Model&, const Mamba2&) {
    return kWithState;
}

std::string reason(const Model&, const DeltaNet&) {
    return kWithState;
}

// index: of the part in its layer, 0 or 1.
std::string reason(const Model& m, const LayerPart& part, size_t index) {
    const auto& [input, norm, post_norm, scale, add, sum_norm, op] = part;
    if (lacks_norm_bias(m)) return "models with a LayerNorm without bias keep to the CPU";
    if (scale != 1) return "models that scale what attention and FFN give keep to the CPU";
    if (post_norm || sum_norm) return "models with norms after attention and FFN keep to the CPU";
    const std::string why = std::visit([&](const auto& kind) { return reason(m, kind); }, op);
    if (!why.empty()) return why;
    const bool expected = index == 0 ? std::holds_alternative<Attention>(op)
                                     : std::holds_alternative<FeedForward>(op);
    const bool waits = add == LayerPart::Add::with_next;
    const bool alone = input == LayerPart::Input::stream && norm;
    if (expected && alone && !(index == 1 && waits)) return "";
    return "layers other than attention and a feed-forward block, each behind a norm, keep to the "
           "CPU";
}

}  // namespace

std::string keeps_to_cpu(const Model& m, int64_t layer) {
    const auto& [parts, scale, hidden] = m.layers[size_t(layer)];
    if (hidden) return "layers that guess tokens keep to the CPU";
    if (has(m, scale)) return "layers that scale the stream keep to the CPU";
    for (size_t i = 0; i < parts.size(); i++) {
        if (std::string why = reason(m, parts[i], i); !why.empty()) return why;
    }
    if (parts.size() != 2) return "layers of other than two parts keep to the CPU";
    for (const WeightSpec& w : m.weights) {
        if (layer_of(w.name) == layer && !w.suits_device()) {
            return "there is no operator on the device for tensor \"" + w.name + "\"";
        }
    }
    return "";
}

bool keeps_head_to_cpu(const Model& m) {
    const bool biased = has(m, m.output_bias);
    const bool suits = std::all_of(m.weights.begin(), m.weights.end(), [](const WeightSpec& w) {
        return !w.of_head() || w.suits_device();
    });
    return m.config.logit_softcap > 0 || m.config.logit_scale != 1 || biased ||
           lacks_norm_bias(m) || !suits;
}

}  // namespace powerinfer
