#include "forward/cpu_layer.h"

#include "forward/parts/attention.h"
#include "forward/parts/ffn.h"
#include "forward/parts/recurrent.h"
#include "forward/parts/streams.h"
#include "forward/walk.h"
#include "ggml/streams.h"

namespace powerinfer {

namespace {

using ggml::Input;

// Asks for the experts that a layer will choose, if its router gets about the stream of the layer
// before. `room`: [n_embd].
void guess_experts(const Pass& p, int64_t layer, float* room) {
    const Model& m = p.model;
    if (!p.source.guesses_experts() || p.work.batch.n > 1) return;
    if (layer >= m.config.n_layer - m.device_layers()) return;
    const Layer& next = m.layers[size_t(layer)];
    const auto& parts = next.parts;
    for (size_t k = 0; k < parts.size(); k++) {
        const auto* router = std::get_if<Router>(&parts[k].op);
        if (!router) continue;
        const float* x = p.work.x;
        if (parts[k].norm) p.norm(x, *parts[k].norm, 1, room);
        if (parts[k].mix) read_streams(p, *parts[k].mix, x, 1, room, nullptr);
        if (parts[k].norm || parts[k].mix) x = room;
        const Input input =
            p.work.input.prepare(p.context, x, 1, m.config.n_embd, router->w.quantised());
        p.multiply(input, {{router->w, p.work.mixture.scores, router->bias}});
        if (router->scale != 1) {
            ggml::scale(p.context, p.work.mixture.scores, router->scale, router->w.rows);
        }
        ggml::choose_experts(router->how, p.work.mixture.scores, p.work.mixture.routed);
        p.source.guess_experts(experts_after(next, k), p.work.mixture.routed.chosen);
    }
}

// y = project . (act(gate . x) * the tokens' embeddings for layer i)
void embed_in_layer(const Pass& p, int64_t i, const LayerEmbedding& e, ggml::SharedInput& x,
                    float* y) {
    Workspace& b = p.work;
    const Config& c = p.model.config;
    const int64_t n = b.batch.n, width = e.gate.rows;
    p.multiply(x.get(p.context, e.gate.quantised()), {{e.gate, b.embedding.gate, nullptr}});
    for (int64_t t = 0; t < n; t++) {
        const float* const own = b.embedding.all + (t * c.n_layer + i) * width;
        ggml::gated_activation(p.context, e.activation, b.embedding.gate + t * width, own, width);
    }
    const Input gated =
        b.input.prepare(p.context, b.embedding.gate, n, width, e.project.quantised());
    p.multiply(gated, {{e.project, y, nullptr}});
}

// Layers with a state have it in the place of attention.
Part part_of(const LayerPart& part) {
    return std::visit(ByKind{[](const FeedForward&) { return Part::ffn; },
                             [](const Router&) { return Part::ffn; },
                             [](const LayerEmbedding&) { return Part::ffn; },
                             [](const NGrams&) { return Part::embedding; },
                             [](const auto&) { return Part::attention; }},
                      part.op);
}

// The steps of walk.h.
class CpuSteps {
 public:
    using Rows = float*;

    CpuSteps(const Pass& p, int64_t layer)
        : p_(p), b_(p.work), x_(p.work.read), layer_(layer), n_(p.work.batch.n) {}

    void begin(const LayerPart& part) { p_.context.profile.part = name(part_of(part)); }
    void read(const LayerPart& part) {
        mixed_ = part.mix.has_value();
        if (mixed_) {
            read_streams(p_, *part.mix, b_.x, n_, b_.normed, b_.mixed.score);
        } else if (part.norm) {
            p_.norm(b_.x, *part.norm, n_, b_.normed);
        }
        const bool normed = mixed_ || part.norm;
        x_.set(normed ? b_.normed : b_.x, n_, normed ? n_embd() : stream_width());
    }
    float* stream() const { return b_.x; }
    float* room(bool waits) const { return waits ? b_.ffn_out : b_.out; }

    void route(const Router& router, const FeedForward& experts, size_t k) {
        powerinfer::route(p_, router, x_);
        // What they need may be read while other parts are computed.
        const auto& parts = p_.model.layers[size_t(layer_)].parts;
        const bool later = &experts != std::get_if<FeedForward>(&parts[k + 1].op);
        if (later || p_.source.pages_experts()) request_experts(p_, experts);
        guess_experts(p_, layer_ + 1, b_.out);
    }
    void feed(const FeedForward& f, float* y, const FeedForward* beside, float* y_beside) {
        feed_forward(p_, f, x_, y, {beside, &x_, y_beside});
        for (int64_t t = 0; f.sum_bias && t < n_; t++) {
            ggml::add(p_.context, y + t * n_embd(), f.sum_bias, n_embd());
        }
    }
    void compute(const Attention& a, float* y) { attention(p_, layer_, a, x_, y); }
    void compute(const LayerEmbedding& e, float* y) { embed_in_layer(p_, layer_, e, x_, y); }
    template <typename T>
    void compute(const T& state, float* y) {
        recurrent(p_, layer_, state, x_, y);
    }

    void norm(float* y, const NormWeights& w) { p_.norm(y, w, n_, y); }
    void scale(float* y, float by) { ggml::scale(p_.context, y, by, n_ * n_embd()); }
    void scale_stream(const float* by) { ggml::scale(p_.context, b_.x, *by, n_ * stream_width()); }
    void add(float* to, const float* y) {
        if (to != b_.x) return ggml::add(p_.context, to, y, n_ * n_embd());
        if (!mixed_) return ggml::add(p_.context, to, y, n_ * stream_width());
        ggml::add_to_streams(p_.context, {n_, p_.model.config.n_streams, n_embd()}, to,
                             b_.mixed.score, y);
    }

 private:
    int64_t n_embd() const { return p_.model.config.n_embd; }
    int64_t stream_width() const { return p_.model.config.stream_width(); }

    const Pass& p_;
    Workspace& b_;
    ggml::SharedInput& x_;  // what parts read
    const int64_t layer_, n_;
    bool mixed_ = false;  // what parts give goes to the streams as StreamMix says
};

}  // namespace

void compute_layer(const Pass& p, int64_t i) {
    CpuSteps steps(p, i);
    walk(p.model.layers[size_t(i)], steps);
}

}  // namespace powerinfer
