#include "forward/forward.h"

#include <algorithm>

#include "forward/cpu_layer.h"
#include "forward/device_forward.h"
#include "forward/embed.h"
#include "forward/nextn.h"
#include "forward/parts/streams.h"

namespace powerinfer {

namespace {

using ggml::Input;

// What the head reads of n rows of the stream.
void last_norm(const Pass& p, const float* x, int64_t n, float* y) {
    const Model& m = p.model;
    if (m.output_mix) return read_streams(p, *m.output_mix, x, n, y, nullptr);
    if (!m.output_norm.weight) {
        std::copy_n(x, n * m.config.n_embd, y);
        return;
    }
    p.norm(x, m.output_norm, n, y);
}

// Logits or embeddings of the rows to keep.
void head(const Pass& p) {
    const Model& m = p.model;
    const Config& c = m.config;
    Workspace& b = p.work;
    float* const* result = b.batch.result;
    const int64_t n = b.batch.n, width = p.params.embedding ? c.n_embd : c.n_vocab;
    p.context.profile.part = name(Part::head);
    if (p.record.sums_squares()) {
        last_norm(p, b.x, n, b.normed);
        p.record.squares(p.context, PI_INPUT_HEAD, 0, 0, b.normed, n);
    }
    for (int64_t t = 0; t < n;) {
        // Adjacent rows with adjacent results share one product.
        int64_t end = t;
        while (end < n && result[end] && result[end] == result[t] + (end - t) * width) end++;
        if (end > t) {
            float* normed = p.params.embedding ? result[t] : b.normed;
            last_norm(p, b.x + t * c.stream_width(), end - t, normed);
            if (!p.params.embedding) {
                const Input input =
                    b.input.prepare(p.context, normed, end - t, c.n_embd, m.output.quantised());
                p.multiply(input, {{m.output, result[t], m.output_bias}});
                if (c.logit_scale != 1) {
                    ggml::scale(p.context, result[t], c.logit_scale, (end - t) * width);
                }
                if (c.logit_softcap > 0) {
                    ggml::softcap(p.context, result[t], c.logit_softcap, (end - t) * width);
                }
            }
        }
        t = std::max(end, t + 1);
    }
}

}  // namespace

void forward(const Pass& p) {
    embed(p);
    for (int64_t i = 0; i < p.model.config.n_layer - p.model.device_layers(); i++) {
        p.check_stop();
        compute_layer(p, i);
    }
    if (p.device) p.device->run(p);
    if (!p.device || !p.device->computes_head()) head(p);
    if (!p.model.guesses()) return;
    keep_for_guesses(p);
}

}  // namespace powerinfer
