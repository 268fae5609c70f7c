#include "forward/parts/streams.h"

#include "ggml/streams.h"

namespace powerinfer {

using ggml::Input;

void read_streams(const Pass& p, const StreamMix& mix, const float* x, int64_t n, float* y,
                  float* scores) {
    const Config& c = p.model.config;
    const int64_t width = c.stream_width();
    MixedRows& b = p.work.mixed;
    ggml::rms_norm(p.context, x, mix.norm, mix.norm_eps, n * c.n_streams, c.n_embd, b.normed, 0,
                   c.n_streams);
    const bool injects = scores && mix.inject;
    const bool q8 = mix.down.quantised() || (injects && mix.inject.quantised());
    const Input normed = p.work.input.prepare(p.context, b.normed, n, width, q8);
    if (injects) {
        p.multiply(normed, {{mix.down, b.low}, {mix.inject, scores}});
    } else {
        p.multiply(normed, {{mix.down, b.low}});
    }
    ggml::scale(p.context, b.low, 1 / float(c.n_streams), n * mix.rank);
    ggml::activation(p.context, ggml::Activation::silu, b.low, n * mix.rank);
    const Input low = p.work.input.prepare(p.context, b.low, n, mix.rank, mix.up.quantised());
    p.multiply(low, {{mix.up, b.gate}});
    ggml::mix_streams(p.context, {n, c.n_streams, c.n_embd}, b.normed, b.gate, y);
}

}  // namespace powerinfer
