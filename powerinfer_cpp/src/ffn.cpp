#include "ffn.h"

#include <algorithm>
#include <cmath>

namespace powerinfer {

using ggml::Input;

void ffn(Session& s, const Ffn& w, const float* x, int64_t n, float* y) {
    const Config& c = s.model->config;
    Scratch& b = s.scratch;
    const bool q8 = w.up.quantised() || w.gate.quantised();
    const Input input = b.input.prepare(s.context, x, n, c.n_embd, q8);
    if (w.gate) {
        ggml::matmul(s.context, input, {{w.gate, b.gate, w.gate_bias}, {w.up, b.up, w.up_bias}});
        ggml::gated_activation(s.context, c.activation, b.gate, b.up, n * c.n_ff);
    } else {
        ggml::matmul(s.context, input, {{w.up, b.gate, w.up_bias}});
        ggml::activation(s.context, c.activation, b.gate, n * c.n_ff);
    }
    if (w.down_t) {
        ggml::matmul_transposed(s.context, w.down_t, b.gate, n, y, w.down_bias);
    } else {
        const Input fired = b.input.prepare(s.context, b.gate, n, c.n_ff, w.down.quantised());
        ggml::matmul(s.context, fired, {{w.down, y, w.down_bias}});
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
            score[e] = c.gating == Config::Gating::sigmoid ? 1 / (1 + std::exp(-score[e]))
                                                           : std::exp(score[e] - top);
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

void mixture(Session& s, const Layer& l, const float* x, int64_t n, float* y) {
    const Config& c = s.model->config;
    Scratch& b = s.scratch;
    std::fill_n(y, n * c.n_embd, 0.0f);
    for (int64_t e = 0; e < c.n_expert; e++) {
        const auto share = [&](int64_t t) { return b.share[t * c.n_expert + e]; };
        int64_t n_rows =
            0;  // rows that chose this expert, side by side so that its weights are read once
        for (int64_t t = 0; t < n; t++) {
            if (share(t) > 0)
                std::copy_n(x + t * c.n_embd, c.n_embd, b.gathered + n_rows++ * c.n_embd);
        }
        if (!n_rows) continue;
        ffn(s, l.experts[size_t(e)], b.gathered, n_rows, b.expert_out);
        const float* out = b.expert_out;
        for (int64_t t = 0; t < n; t++) {
            if (!(share(t) > 0)) continue;
            for (int64_t i = 0; i < c.n_embd; i++) y[t * c.n_embd + i] += share(t) * out[i];
            out += c.n_embd;
        }
    }
}

}  // namespace powerinfer
