#include "ffn.h"

#include <algorithm>
#include <cmath>

#include "ggml/math.h"

namespace powerinfer {

using ggml::Input;

namespace {

// Every neuron, of a file that stores matrices.
void dense_ffn(Session& s, const Ffn& w, const FfnInput& in, float* y) {
    const Config& c = s.model->config;
    Scratch& b = s.scratch;
    const bool q8 = w.up.quantised() || w.gate.quantised();
    const Input input = b.input.prepare(s.context, in.x, in.n, c.n_embd, q8);
    if (w.gate) {
        ggml::matmul(s.context, input, {{w.gate, b.gate, w.gate_bias}, {w.up, b.up, w.up_bias}});
        ggml::gated_activation(s.context, c.activation, b.gate, b.up, in.n * c.n_ff);
    } else {
        ggml::matmul(s.context, input, {{w.up, b.gate, w.up_bias}});
        ggml::activation(s.context, c.activation, b.gate, in.n * c.n_ff);
    }
    if (in.fired) {
        for (int64_t i = 0; i < in.n * c.n_ff; i++) in.fired[i] = b.gate[i] != 0;
    }
    const Input fired = b.input.prepare(s.context, b.gate, in.n, c.n_ff, w.down.quantised());
    ggml::matmul(s.context, fired, {{w.down, y, w.down_bias}});
}

// score = fc2 . relu(fc1 . x): raw logits, no bias (PowerInfer's semantics); of a sketch the sum of
// the inputs under the signs of the row.
void predict(Session& s, const Ffn& w, const float* x, int64_t n) {
    const Config& c = s.model->config;
    Scratch& b = s.scratch;
    s.context.profile.part = "predictor";
    if (w.signs) {
        const ggml::Sketch sketch{c.n_ff, c.n_embd, w.signs.data, w.sketch_offset};
        ggml::sketch_scores(s.context, sketch, x, n, b.sketch, b.score);
        s.context.profile.part = "ffn";
        return;
    }
    const Input input = b.input.prepare(s.context, x, n, c.n_embd, w.fc1.quantised());
    ggml::matmul(s.context, input, {{w.fc1, b.hidden}});
    ggml::activation(s.context, ggml::Activation::relu, b.hidden, n * w.fc1.rows);
    const Input hidden = b.input.prepare(s.context, b.hidden, n, w.fc1.rows, w.fc2.quantised());
    ggml::matmul(s.context, hidden, {{w.fc2, b.score}});
    s.context.profile.part = "ffn";
}

// Counts what fired of row t, computed in full, and how much of it the mask would have let through.
void audit_row(Session& s, int64_t layer, const ggml::NeuronMask& mask, int64_t t,
               const bool* fired) {
    const int64_t n_ff = s.model->config.n_ff;
    const float* score = mask.score + t * n_ff;
    int64_t n = 0, found = 0;
    for (int64_t i = 0; i < n_ff; i++) {
        n += fired[i];
        found += fired[i] && (score[i] >= mask.threshold || (mask.hot && mask.hot[i]));
    }
    s.audit.count(s, layer, n, found);
}

// The neurons that fire, of a file that stores neuron rows.
void neuron_ffn(Session& s, int64_t layer, const Ffn& w, const FfnInput& in, float* y) {
    const Config& c = s.model->config;
    Scratch& b = s.scratch;
    ggml::NeuronMask mask;
    const auto predicted = [](Masking m) { return m != Masking::none; };
    const int64_t n_predicted =
        w.fc1 || w.signs ? std::count_if(in.masking, in.masking + in.n, predicted) : 0;
    s.row_counts.predicted[size_t(layer)] += n_predicted;
    if (n_predicted) {
        predict(s, w, c.predict_from_normed ? in.x : in.residual, in.n);
        const float asked = s.params.sparse_threshold;
        for (int64_t t = 0; t < in.n; t++) b.masked[t] = in.masking[t] == Masking::predicted;
        mask.masked = b.masked;
        mask.score = b.score;
        mask.threshold =
            std::isnan(asked) ? s.model->layers[size_t(layer)].sparse_threshold : asked;
        if (s.params.sparse == PI_SPARSE_AUTO && !w.hot.empty()) mask.hot = w.hot.data();
    }
    ggml::Neurons neurons = w.neurons;
    // A threshold on a smooth activation (CATS) changes the result, so only `exact` applies it.
    if (!relu_family(neurons.act) && s.params.sparse != PI_SPARSE_EXACT) neurons.threshold = 0;
    const bool q8 = neurons.gate.wants_q8() || neurons.up.wants_q8();
    const Input input = b.input.prepare(s.context, in.x, in.n, c.n_embd, q8);
    const bool audit = mask.masked && std::find(in.masking, in.masking + in.n, Masking::audited) !=
                                          in.masking + in.n;
    bool* fired = audit ? s.audit.flags() : in.fired;
    ggml::sparse_ffn(s.context, neurons, input, mask, b.neurons, y, &s.counts[size_t(layer)],
                     fired);
    for (int64_t t = 0; audit && t < in.n; t++) {
        if (in.masking[t] == Masking::audited) audit_row(s, layer, mask, t, fired + t * c.n_ff);
    }
}

}  // namespace

bool relu_family(ggml::Activation act) {
    return act == ggml::Activation::relu || act == ggml::Activation::drelu ||
           act == ggml::Activation::relu2;
}

void ffn(Session& s, int64_t layer, const Ffn& w, const FfnInput& in, float* y) {
    if (w.neurons.n) {
        neuron_ffn(s, layer, w, in, y);
    } else {
        const int64_t all = in.n * s.model->config.n_ff;
        ggml::NeuronCounts& counts = s.counts[size_t(layer)];
        counts = {counts.rows + in.n, counts.proposed + all, counts.computed + all,
                  counts.fired + all};
        dense_ffn(s, w, in, y);
    }
}

void route(Session& s, const Layer& l, const float* x, int64_t n) {
    const Config& c = s.model->config;
    Scratch& b = s.scratch;
    const Input input = b.input.prepare(s.context, x, n, c.n_embd, l.router.quantised());
    ggml::matmul(s.context, input, {{l.router, b.router, nullptr}});
    for (int64_t t = 0; t < n; t++) {
        float* score = b.router + t * c.n_expert;
        const float top = *std::max_element(score, score + c.n_expert);
        for (int64_t e = 0; e < c.n_expert; e++) {
            score[e] = c.gating == Config::Gating::sigmoid ? ggml::sigmoid(score[e])
                                                           : ggml::exp_f32(score[e] - top);
        }
        // The chosen keep their score, the others get 0; then shares sum to 1.
        float chosen_sum = 0;
        float* share = b.share + t * c.n_expert;
        std::fill_n(share, c.n_expert, 0.0f);
        for (int64_t k = 0; k < c.n_expert_used; k++) {
            const int64_t best =
                std::max_element(score, score + c.n_expert) - score;  // first of equals
            share[best] = score[best];
            chosen_sum += score[best];
            score[best] = -1;
        }
        for (int64_t e = 0; e < c.n_expert; e++) share[e] /= chosen_sum;
    }
}

void mixture(Session& s, int64_t layer, const FfnInput& in, float* y) {
    const Config& c = s.model->config;
    const Layer& l = s.model->layers[size_t(layer)];
    Scratch& b = s.scratch;
    std::fill_n(y, in.n * c.n_embd, 0.0f);
    for (int64_t e = 0; e < c.n_expert; e++) {
        const auto share = [&](int64_t t) { return b.share[t * c.n_expert + e]; };
        // Rows that chose this expert, side by side so that its weights are read once.
        int64_t n = 0;
        for (int64_t t = 0; t < in.n; t++) {
            if (!(share(t) > 0)) continue;
            std::copy_n(in.x + t * c.n_embd, c.n_embd, b.gathered + n * c.n_embd);
            std::copy_n(in.residual + t * c.n_embd, c.n_embd, b.gathered_residual + n * c.n_embd);
            b.gathered_masking[n++] = in.masking[t];
        }
        if (!n) continue;
        const FfnInput gathered{b.gathered, b.gathered_residual, b.gathered_masking, n, in.fired};
        ffn(s, layer, l.experts[size_t(e)], gathered, b.expert_out);
        const float* out = b.expert_out;
        const bool* fired = in.fired;
        for (int64_t t = 0; t < in.n; t++) {
            if (!(share(t) > 0)) continue;
            for (int64_t i = 0; i < c.n_embd; i++) y[t * c.n_embd + i] += share(t) * out[i];
            out += c.n_embd;
            if (!fired) continue;
            s.record.fired(layer, e, t, fired);
            fired += c.n_ff;
        }
    }
}

}  // namespace powerinfer
