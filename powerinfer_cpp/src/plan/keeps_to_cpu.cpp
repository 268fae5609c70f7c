// A device computes layers of any list of parts that it has operators for (device_layers.cpp). What
// it cannot do is refused by construction: every field of a part is named below, so a new kind of
// part or a new field does not compile here until it is said whether a device computes it. A new
// member of the structs in layer.h belongs into its list, with a reason if it keeps a layer to the
// CPU.
#include "plan/keeps_to_cpu.h"

#include <algorithm>

#include "ggml/device_ops.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

using ggml::format;

std::string without_operator(const std::string& tensor) {
    return "there is no operator on the device for tensor \"" + tensor + "\"";
}

// Has a device products for these weights? What stands beside experts has their operators.
bool suits(const Model& model, const WeightSpec& w) {
    if (!w.by_neuron() || !w.of || !model.beside_experts(*w.of)) return w.suits_device();
    const std::vector<DeviceMatrix> all = w.device_matrices();
    return std::all_of(all.begin(), all.end(), [](const DeviceMatrix& m) {
        return ggml::has_neuron_experts(m.type, m.cols);
    });
}

}  // namespace

KeptToCpu::KeptToCpu(const Model& model) : model_(model) {
    for (const WeightSpec& w : model.weights) {
        if (const auto* v = std::get_if<Vector>(&w.target)) given_.insert(v->to);
        if (const auto* product = std::get_if<Product>(&w.target)) given_.insert(product->to);
        if (const auto* signs = std::get_if<Signs>(&w.target)) given_.insert(signs->to);
        // Experts may stay with the CPU.
        if (suits(model, w) || w.chosen || w.expert_rows()) continue;
        if (w.of_head() && head_.empty()) head_ = without_operator(w.name);
        unsuited_.emplace(layer_of(w.name), w.name);
    }
}

std::string KeptToCpu::reason(const Attention& attention) const {
    const auto& [n_head, n_head_kv, head_dim, v_head_dim, rope, window, both, first, growth,
                 growth_ctx, v_norm, kv_of, scale, softcap, sinks, q, k, v, o, q_bias, k_bias,
                 v_bias, o_bias, gated, n_gate, gate, gate_by, latent, q_norm, k_norm, q_norm_bias,
                 k_norm_bias, norms, norm, norm_eps, out_norm] = attention;
    if (both) return "attention to both sides keeps to the CPU";
    if (has(q_norm_bias) || has(k_norm_bias)) {
        return "norms of queries and keys with a bias keep to the CPU";
    }
    if (first > 0) return "layers that guess tokens keep to the CPU";
    // No family has these (device_attention.cpp).
    if (gated && norms == Attention::Norms::whole_row && has(q_norm)) {
        return "attention with gates and norms over all heads keeps to the CPU";
    }
    if (latent && (gated || has(out_norm))) {
        return "attention over latents with gates or norms of its results keeps to the CPU";
    }
    for (size_t h = 0; latent && h < latent->k_b.size(); h++) {
        if (!has(latent->k_b[h].scale) && !has(latent->v_b[h].scale)) continue;
        return "matrices of heads with a scale keep to the CPU";
    }
    // The arrays of attention in shared memory have a fixed size.
    if (const int64_t widest = std::max(head_dim, v_head_dim); widest > ggml::kDeviceHeadDim) {
        return format(
            "heads of %lld values keep to the CPU: the device's attention has room for %lld",
            (long long)widest, (long long)ggml::kDeviceHeadDim);
    }
    return "";
}

std::string KeptToCpu::reason(const Router& router) const {
    const auto& [how, w, bias, scale] = router;
    if (how.n_expert > ggml::kDeviceExperts) {
        return format("routers of %lld experts keep to the CPU: the device's choose from %d",
                      (long long)how.n_expert, ggml::kDeviceExperts);
    }
    return "";
}

std::string KeptToCpu::reason(const FeedForward& ffn) const {
    const auto& [n_ff, n_used, blocks, share, gate_scale, up_scale, down_scale, width, narrow,
                 widen, sum_bias, activation, xielu, limit, norms_values, norm_eps,
                 sparse_threshold, recall, layer, index, first_block, first_neuron] = ffn;
    // The others have other operators for neuron rows.
    if (activation == ggml::Activation::swiglu_oai && blocks[0].neurons.n > 0) {
        return "neuron rows with the activation swiglu_oai keep to the CPU";
    }
    if (norms_values && blocks[0].neurons.n > 0) {
        return "neuron rows whose values are normed keep to the CPU";
    }
    if (has(sum_bias)) return "experts with a bias of their sum keep to the CPU";
    if (n_used > 0 && (xielu || norms_values)) {
        return "experts with norms or an activation of their own keep to the CPU";
    }
    for (const Ffn& block : blocks) {
        [[maybe_unused]] const auto& [gate, up, down, gate_bias, up_bias, down_bias, value_norm,
                                      gates, bundle, neurons, stored, fc1, fc2, signs,
                                      sketch_offset, rate, unpredicted] = block;
        // Whom they mask is not known to the operators of experts.
        if (n_used > 0 && (has(fc1) || has(signs))) {
            return "experts with predictors keep to the CPU";
        }
        for (const ggml::Matrix* matrix : {&gate, &up, &down}) {
            if (n_used == 0 || !has(matrix->scale)) continue;
            return "experts whose matrices are tensors with a scale each keep to the CPU";
        }
    }
    return "";
}

std::string KeptToCpu::reason(const ShortConvolution& convolution) const {
    [[maybe_unused]] const auto& [channels, taps, b, c, u, out, conv] = convolution;
    return "";
}

std::string KeptToCpu::reason(const Mamba2& mamba) const {
    [[maybe_unused]] const auto& [n_head, head_dim, n_group, n_state, taps, z, ubc, dt, out, conv,
                                  conv_bias, dt_bias, a, d, norm, norm_group, norm_eps] = mamba;
    if (n_state <= ggml::kDeviceScanRows) return "";
    return format("states of %lld values keep to the CPU: the device's scan has room for %lld",
                  (long long)n_state, (long long)ggml::kDeviceScanRows);
}

std::string KeptToCpu::reason(const DeltaNet& net) const {
    [[maybe_unused]] const auto& [n_k_head, n_v_head, head_dim, v_head_dim, taps, tiled, by_row,
                                  lower_bound, sigmoid_gate, qkv, gate, out, beta, alpha, by_head,
                                  beta_alpha, q, k, v, q_conv, k_conv, v_conv, rank, alpha_low,
                                  gate_low, conv, dt_bias, a, norm, norm_eps, beta_scale] = net;
    if (head_dim <= ggml::kDeviceDeltaRows) return "";
    return format("keys of %lld values keep to the CPU: the device's delta rule has room for %lld",
                  (long long)head_dim, (long long)ggml::kDeviceDeltaRows);
}

std::string KeptToCpu::reason(const LayerEmbedding&) const {
    return "";
}

std::string KeptToCpu::reason(const NGrams&) const {
    return "n-grams keep to the CPU";
}

std::string KeptToCpu::reason(const LayerPart& part) const {
    // All but `op` and `mix` are the walk's affair.
    const auto& [input, norm, mix, post_norm, norms_sum, scale, add, sum_norm, stream_norm, op] =
        part;
    if (mix) return "layers with several residual streams keep to the CPU";
    return std::visit([&](const auto& kind) { return reason(kind); }, op);
}

std::string KeptToCpu::layer(int64_t layer) const {
    const auto& [parts, scale, hidden] = model_.layers[size_t(layer)];
    if (hidden) return "layers that guess tokens keep to the CPU";
    int n_ffn = 0, in_rows = 0, routed = 0, predicted = 0;
    for (const LayerPart& part : parts) {
        if (std::string why = reason(part); !why.empty()) return why;
        const auto* const ffn = std::get_if<FeedForward>(&part.op);
        n_ffn += ffn != nullptr;
        if (!ffn) continue;
        routed += ffn->routed();
        in_rows += !ffn->routed() && ffn->blocks[0].neurons.n > 0;
        predicted += has(ffn->blocks[0].fc1) || has(ffn->blocks[0].signs);
    }
    if (in_rows && n_ffn > 1 && (!routed || predicted)) {
        return "several feed-forward parts in neuron rows keep to the CPU";
    }
    const auto unsuited = unsuited_.find(layer);
    return unsuited == unsuited_.end() ? "" : without_operator(unsuited->second);
}

std::string keeps_to_cpu(const Model& model, int64_t layer) {
    return KeptToCpu(model).layer(layer);
}

}  // namespace powerinfer
