#include "forward/parts/recurrent.h"

#include <algorithm>

namespace powerinfer {

void keep_entering(const RowsBySequence& rows, const StateLayout& layout, int64_t at,
                   const Entering& entering) {
    for (int64_t i = 0; i < rows.n; i++) {
        const SequenceRows& s = rows.sequences[i];
        if (!s.entered) continue;
        for (int64_t k = 0; k < s.n; k++) {
            const int64_t t = rows.rows[s.first + k];
            float* to = s.entered + k * layout.n_entering + at;
            for (const Columns& c : entering) {
                if (c.x) to = std::copy_n(c.x + t * c.width, c.width, to);
            }
        }
    }
}

namespace {

template <typename T>
void fold_kept(const Folding& f, const T& part, const float* entered, int64_t stride) {
    const Entering columns = entering(f.work, part);
    for (int64_t t = 0; t < f.n; t++) {
        const float* from = entered + t * stride;
        for (const Columns& c : columns) {
            if (!c.x) continue;
            std::copy_n(from, c.width, c.x + t * c.width);
            from += c.width;
        }
    }
    fold(f, part);
}

}  // namespace

void replay(ggml::Context& context, const Model& model, const StateLayout& layout, Workspace& work,
            int64_t at_once, const float* entered, int64_t n, const float* before, float* after) {
    context.profile.part = name(Part::attention);
    RowsBySequence& rows = work.state.by_sequence;
    for (int64_t begin = 0; begin < n; begin += at_once) {
        const int64_t here = std::min(at_once, n - begin);
        for (int64_t t = 0; t < here; t++) rows.rows[t] = int32_t(t);
        rows.n = 1;
        SequenceRows& all = rows.sequences[0];
        all = {};
        all.n = here;
        all.before = begin ? after : before;
        all.after = after;
        for (size_t i = 0; i < model.layers.size(); i++) {
            if (!layout.has(i)) continue;
            const float* from = entered + begin * layout.n_entering + layout.entering[i];
            for_state_parts(model.layers[i], [&](const auto& part, const StateSizes& before) {
                const int64_t at = layout.state[i] + before.state;
                fold_kept({context, model, work, here, at}, part, from + before.entering,
                          layout.n_entering);
            });
            const int64_t hidden = model.layers[i].hidden;
            std::copy_n(from + (here - 1) * layout.n_entering, hidden, after + layout.state[i]);
        }
    }
}

int64_t convolve_in_place(const Folding& f, const ggml::Convolution& conv, float* x, int64_t at) {
    const RowsBySequence& rows = f.work.state.by_sequence;
    ggml::convolve(f.context, conv, rows.at(at), rows.n, x, conv.channels, x, conv.channels);
    return at + conv.state();
}

void finish_gated(const Pass& p, ggml::GatedNorm norm, float* gates, const ggml::Matrix& out,
                  float* y) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n, width = norm.n_group * norm.group;
    const ggml::Heads values{w.state.folded, width, norm.group};
    ggml::gated_norm(p.context, norm, n, values, {gates, width, norm.group}, values);
    const ggml::Input input = w.input.prepare(p.context, w.state.folded, n, width, out.quantised());
    p.multiply(input, {{out, y}});
}

void project(const Pass& p, const ShortConvolution& s, ggml::SharedInput& x) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n;
    const bool q8 = s.b.quantised() || s.c.quantised() || s.u.quantised();
    const ggml::Input& input = x.get(p.context, q8);
    float* const u = w.state.beside + n * s.channels;
    p.multiply(
        input,
        {{s.b, w.state.entering, nullptr}, {s.c, w.state.beside, nullptr}, {s.u, u, nullptr}});
    ggml::multiply(p.context, w.state.entering, u, n * s.channels);
}

Entering entering(const Workspace& work, const ShortConvolution& s) {
    return {{{work.state.entering, s.channels}}};
}

void fold(const Folding& f, const ShortConvolution& s) {
    const RowsBySequence& rows = f.work.state.by_sequence;
    ggml::convolve(f.context, {s.channels, s.taps, s.conv}, rows.at(f.at), rows.n,
                   f.work.state.entering, s.channels, f.work.state.folded, s.channels);
}

void finish(const Pass& p, const ShortConvolution& s, float* y) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n;
    ggml::multiply(p.context, w.state.folded, w.state.beside, n * s.channels);
    const ggml::Input input =
        w.input.prepare(p.context, w.state.folded, n, s.channels, s.out.quantised());
    p.multiply(input, {{s.out, y, nullptr}});
}

}  // namespace powerinfer
