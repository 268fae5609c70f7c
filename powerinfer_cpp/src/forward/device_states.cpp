// Parts with a state on a device: products, an operator that folds what they give into the state,
// and further products, as forward/parts/recurrent.h has them for the CPU, with the same bits.
#include <algorithm>
#include <numeric>

#include "forward/device_forward.h"

namespace powerinfer {

using ggml::DeviceColumns;
using ggml::DeviceInput;
using ggml::DeviceProduct;
using ggml::DeviceRows;
using ggml::DeviceSequence;
using ggml::DeviceSequences;
using ggml::Heads;

namespace {

// What enters a state, in this order (state_sizes).
using Widths = std::array<int64_t, ggml::kDeviceColumns>;
Widths widths(const ShortConvolution& s) {
    return {s.channels};
}
Widths widths(const Mamba2& s) {
    return {s.channels(), s.n_head};
}
Widths widths(const DeltaNet& s) {
    if (!s.q) return {s.n_alpha(), s.n_v_head, s.channels()};
    return {s.n_alpha(), s.n_v_head, s.k_dim(), s.k_dim(), s.v_dim()};
}

}  // namespace

// The sequences of rows [begin, end) of a pass. Those whose rows are cut go on with the states that
// the rows before have left.
void DeviceForward::fill_states(const Pass& p, int64_t begin, int64_t end, const DeviceStep& step) {
    if (!states_.layout) return;
    const RowsBySequence& groups = p.work.state.by_sequence;
    int32_t n = 0, at = 0;
    for (int64_t i = 0; i < groups.n; i++) {
        const SequenceRows& s = groups.sequences[i];
        DeviceSequence here{at, 0, s.from < 0 ? nullptr : states_.slot(s.from), states_.slot(s.to)};
        for (int64_t k = 0; k < s.n; k++) {
            const int64_t t = groups.rows[s.first + k];
            if (t < begin) here.before = here.after;
            if (t < begin || t >= end) continue;
            step.by_sequence[at++] = int32_t(t - begin);
            step.entered[t - begin] = s.kept < 0 ? nullptr : states_.entered(s.seq, s.kept + k);
        }
        here.n = at - here.first;
        if (here.n) step.sequences[n++] = here;
    }
    *step.n_sequences = n;
}

DeviceSequences DeviceForward::sequences(int64_t n, int64_t at) const {
    const DeviceStep& step = scratch_.step;
    return {step.sequences,   step.n_sequences,
            step.by_sequence, int(std::min<int64_t>(n, params_.n_seq)),
            int(n),           at};
}

// Where launch_project() puts what enters.
template <typename T>
DeviceForward::Entering DeviceForward::entering(const T& part, int64_t n) const {
    Entering columns;
    float* x = scratch_.entering;
    for (size_t k = 0; k < columns.size(); k++) {
        const int64_t width = widths(part)[k];
        columns[k] = {x, width, width};
        x += n * width;
    }
    return columns;
}

template <typename T>
void DeviceForward::launch_state(int64_t i, const T& part, const DeviceInput& x, float* y,
                                 const Kind& kind) {
    const Entering of = entering(part, kind.rows);
    launch_project(part, x);
    if (kind.keeps) {
        DeviceColumns columns;
        for (size_t k = 0; k < of.size(); k++) {
            columns.x[k] = of[k].x;
            columns.width[k] = int(of[k].width);
        }
        ops_.keep_rows(stream_.get(), columns, kind.rows, scratch_.step.entered,
                       states_.layout.entering[size_t(i)]);
    }
    launch_fold(i, part, of, kind.rows);
    const DeviceInput folded = scratch_.folded.as(kind.rows, part.folded());
    launch_finish(part, folded);
    launch_products(folded, {{on_.matrix(&part.out), y, nullptr}});
}
template void DeviceForward::launch_state(int64_t, const ShortConvolution&, const DeviceInput&,
                                          float*, const Kind&);
template void DeviceForward::launch_state(int64_t, const Mamba2&, const DeviceInput&, float*,
                                          const Kind&);
template void DeviceForward::launch_state(int64_t, const DeltaNet&, const DeviceInput&, float*,
                                          const Kind&);

void DeviceForward::replay(int32_t seq, int64_t n, int32_t from, int32_t to) {
    if (!states_.layout) return;
    const std::lock_guard<ggml::DeviceCard> lock(on_.card);
    device_.enter();
    const float* before = from < 0 ? nullptr : states_.slot(from);
    for (int64_t begin = 0, here = 0; begin < n; begin += here) {
        here = std::min(device_rows(params_), n - begin);
        if (scratch_.residual.rows != here) carve(here);
        const int64_t n_layers = model_.device_layers();
        const uint64_t bytes = ggml::carved_bytes<DeviceStep>(model_, params_, n_layers, here);
        ggml::Carver carver(host_step_, bytes);
        const DeviceStep step(carver, model_, params_, n_layers, here);
        *step.n_sequences = 1;
        step.sequences[0] = {0, int32_t(here), before, states_.slot(to)};
        std::iota(step.by_sequence, step.by_sequence + here, 0);
        device_.copy_in(stream_.get(), scratch_.step.epoch, host_step_, bytes);
        for (int64_t i = first_; i < model_.config.n_layer; i++) {
            float* x = states_.entered(seq, begin) + states_.layout.entering[size_t(i)];
            const auto fold = [&](const auto& part, const StateSizes&) {
                Entering of;
                for (size_t k = 0; k < of.size(); k++) {
                    of[k] = {x, states_.layout.n_entering, widths(part)[k]};
                    x += of[k].width;
                }
                launch_fold(i, part, of, here);
            };
            const auto none = [](const NGrams&, const StateSizes&) {};  // they keep to the CPU
            for_state_parts(model_.layers[size_t(i)], ByKind{fold, none});
        }
        device_.wait(stream_.get());  // before the next step is written
        before = states_.slot(to);
    }
}

void DeviceForward::read_state(int32_t slot, uint8_t* out) {
    const std::lock_guard<ggml::DeviceCard> lock(on_.card);
    device_.enter();
    device_.copy_out(stream_.get(), out, states_.slot(slot), states_.layout.bytes());
    device_.wait(stream_.get());
}

void DeviceForward::write_state(int32_t slot, const uint8_t* from) {
    const std::lock_guard<ggml::DeviceCard> lock(on_.card);
    device_.enter();
    device_.copy_in(stream_.get(), states_.slot(slot), from, states_.layout.bytes());
    device_.wait(stream_.get());
}

// ---- Short convolutions -------------------------------------------------------------------------

// c in `beside`, and u behind it.
void DeviceForward::launch_project(const ShortConvolution& s, const DeviceInput& x) {
    float* const u = scratch_.beside + x.rows * s.channels;
    const DeviceInput b{scratch_.entering, nullptr, nullptr, x.rows, int(s.channels)};
    launch_products(x, {{on_.matrix(&s.b), b.x, nullptr},
                        {on_.matrix(&s.c), scratch_.beside, nullptr},
                        {on_.matrix(&s.u), u, nullptr}});
    ops_.multiply(stream_.get(), b, u);
}

void DeviceForward::launch_fold(int64_t i, const ShortConvolution& s, const Entering& of,
                                int64_t n) {
    const ggml::Convolution conv{s.channels, s.taps, on_.vector(&s.conv)};
    ops_.convolve(stream_.get(), conv, sequences(n, states_.layout.state[size_t(i)]), of[0].x,
                  of[0].row, scratch_.folded.x, s.channels);
}

void DeviceForward::launch_finish(const ShortConvolution&, const DeviceInput& folded) {
    ops_.multiply(stream_.get(), folded, scratch_.beside);
}

// ---- Mamba-2 ------------------------------------------------------------------------------------

void DeviceForward::launch_project(const Mamba2& s, const DeviceInput& x) {
    const Entering of = entering(s, x.rows);
    launch_products(x, {{on_.matrix(&s.z), scratch_.beside, nullptr},
                        {on_.matrix(&s.ubc), of[0].x, nullptr},
                        {on_.matrix(&s.dt), of[1].x, nullptr}});
}

void DeviceForward::launch_fold(int64_t i, const Mamba2& s, const Entering& of, int64_t n) {
    const int64_t channels = s.channels(), inner = s.inner(), shared = s.n_group * s.n_state;
    const int64_t at = states_.layout.state[size_t(i)];
    float* const u = scratch_.entering;
    const ggml::Convolution conv{channels, s.taps, on_.vector(&s.conv), on_.vector(&s.conv_bias),
                                 true};
    ops_.convolve(stream_.get(), conv, sequences(n, at), of[0].x, of[0].row, u, channels);
    ggml::Mamba2Scan scan;
    scan.n_head = s.n_head;
    scan.head_dim = s.head_dim;
    scan.n_group = s.n_group;
    scan.n_state = s.n_state;
    scan.dt_bias = on_.vector(&s.dt_bias);
    scan.a = on_.vector(&s.a);
    scan.d = on_.vector(&s.d);
    scan.x = {u, channels, s.head_dim};
    scan.b = {u + inner, channels, s.n_state};
    scan.c = {u + inner + shared, channels, s.n_state};
    scan.dt = {of[1].x, of[1].row, 1};
    ops_.mamba2_scan(stream_.get(), scan, sequences(n, at + conv.state()), scratch_.states,
                     {scratch_.folded.x, inner, s.head_dim});
}

void DeviceForward::launch_finish(const Mamba2& s, const DeviceInput& folded) {
    const int64_t inner = s.inner(), group = s.norm ? s.norm_group : inner;
    ggml::GatedNorm norm;
    norm.n_group = norm.n_weights = inner / group;
    norm.group = group;
    norm.weight = on_.vector(&s.norm);
    norm.eps = s.norm_eps;
    ops_.gated_norm(stream_.get(), norm, folded, scratch_.beside);
}

// ---- Gated delta nets ---------------------------------------------------------------------------

// A file has some of these matrices.
void DeviceForward::launch_project(const DeltaNet& s, const DeviceInput& x) {
    const Entering of = entering(s, x.rows);
    float* const by_head = scratch_.folded.x;
    float* const steps = by_head + x.rows * s.by_head_dim();
    const auto to = [&](const ggml::Matrix& w, float* y) {
        return DeviceProduct{on_.matrix(&w), y, nullptr};
    };
    if (s.by_head) {
        launch_products(x, {to(s.by_head, by_head)});
    } else if (s.q) {
        launch_products(x, {to(s.q, of[DeltaNet::kQueries].x), to(s.k, of[DeltaNet::kKeys].x),
                            to(s.v, of[DeltaNet::kValues].x)});
    } else {
        launch_products(x, {to(s.qkv, of[DeltaNet::kQueries].x), to(s.gate, scratch_.beside)});
    }
    if (s.beta_alpha) {
        launch_products(x, {to(s.beta_alpha, steps)});
    } else if (s.rank) {
        launch_products(x, {to(s.beta, of[DeltaNet::kBeta].x)});
        launch_low(x, s.alpha_low, s.alpha, of[DeltaNet::kAlpha].x);
        launch_low(x, s.gate_low, s.gate, scratch_.beside);
    } else if (s.q) {
        launch_products(x, {to(s.alpha, of[DeltaNet::kAlpha].x), to(s.beta, of[DeltaNet::kBeta].x),
                            to(s.gate, scratch_.beside)});
    } else {
        launch_products(x,
                        {to(s.alpha, of[DeltaNet::kAlpha].x), to(s.beta, of[DeltaNet::kBeta].x)});
    }
    take_by_head(s, of, x.rows);
}

// Copies what these matrices give of each head of keys together.
void DeviceForward::take_by_head(const DeltaNet& s, const Entering& to, int n) {
    float* from = scratch_.folded.x;
    int64_t row = s.by_head_dim();
    const auto take = [&](int64_t width, float* y, int64_t y_row) {
        ops_.copy_heads(stream_.get(), {from, row, row / s.n_k_head}, n, int(s.n_k_head),
                        int(width), {y, y_row, width});
        from += width;
    };
    if (s.by_head) {
        const int64_t values = s.v_dim() / s.n_k_head, channels = s.channels();
        take(s.head_dim, to[DeltaNet::kQueries].x, channels);
        take(s.head_dim, to[DeltaNet::kQueries].x + s.k_dim(), channels);
        take(values, to[DeltaNet::kQueries].x + 2 * s.k_dim(), channels);
        take(values, scratch_.beside, s.v_dim());
    }
    if (s.beta_alpha) {
        from = scratch_.folded.x + n * s.by_head_dim();
        row = 2 * s.n_v_head;
        for (const DeltaNet::Enters what : {DeltaNet::kBeta, DeltaNet::kAlpha}) {
            take(s.n_v_head / s.n_k_head, to[what].x, s.n_v_head);
        }
    }
}

// y = w . (low . x)
void DeviceForward::launch_low(const DeviceInput& x, const ggml::Matrix& low, const ggml::Matrix& w,
                               float* y) {
    const ggml::DeviceRows first = on_.matrix(&low);
    const DeviceInput between = scratch_.folded.as(x.rows, first.rows);
    launch_products(x, {{first, between.x, nullptr}});
    ops_.quantise(stream_.get(), between);
    launch_products(between, {{on_.matrix(&w), y, nullptr}});
}

void DeviceForward::launch_fold(int64_t i, const DeltaNet& s, const Entering& of, int64_t n) {
    int64_t at = states_.layout.state[size_t(i)];
    const Entering here = entering(s, n);
    const auto convolve = [&](DeltaNet::Enters what, const float* const& weight) {
        const ggml::Convolution conv{of[what].width, s.taps, on_.vector(&weight), nullptr, true};
        ops_.convolve(stream_.get(), conv, sequences(n, at), of[what].x, of[what].row, here[what].x,
                      here[what].width);
        at += conv.state();
    };
    const int64_t channels = s.channels();
    float* const q = here[DeltaNet::kQueries].x;
    ggml::DeltaRule rule;
    if (s.q) {
        convolve(DeltaNet::kQueries, s.q_conv);
        convolve(DeltaNet::kKeys, s.k_conv);
        convolve(DeltaNet::kValues, s.v_conv);
        rule.q = {q, s.k_dim(), s.head_dim};
        rule.k = {here[DeltaNet::kKeys].x, s.k_dim(), s.head_dim};
        rule.v = {here[DeltaNet::kValues].x, s.v_dim(), s.v_head_dim};
    } else {
        convolve(DeltaNet::kQueries, s.conv);
        rule.q = {q, channels, s.head_dim};
        rule.k = {q + s.k_dim(), channels, s.head_dim};
        rule.v = {q + 2 * s.k_dim(), channels, s.v_head_dim};
    }
    rule.n_k_head = s.n_k_head;
    rule.n_v_head = s.n_v_head;
    rule.head_dim = s.head_dim;
    rule.v_head_dim = s.v_head_dim;
    rule.tiled = s.tiled;
    rule.by_row = s.by_row;
    rule.lower_bound = s.lower_bound;
    rule.dt_bias = on_.vector(&s.dt_bias);
    rule.a = on_.vector(&s.a);
    rule.eps = kUnitEps;
    rule.beta_scale = s.beta_scale;
    rule.alpha = {of[DeltaNet::kAlpha].x, of[DeltaNet::kAlpha].row, s.n_decays()};
    rule.beta = {of[DeltaNet::kBeta].x, of[DeltaNet::kBeta].row, 1};
    ops_.delta_rule(stream_.get(), rule, sequences(n, at), scratch_.states,
                    {scratch_.folded.x, s.v_dim(), s.v_head_dim});
}

void DeviceForward::launch_finish(const DeltaNet& s, const DeviceInput& folded) {
    ggml::GatedNorm norm;
    norm.n_group = s.n_v_head;
    norm.group = s.v_head_dim;
    norm.weight = on_.vector(&s.norm);
    norm.eps = s.norm_eps;
    norm.gate_first = false;
    norm.sigmoid = s.sigmoid_gate;
    ops_.gated_norm(stream_.get(), norm, folded, scratch_.beside);
}

}  // namespace powerinfer
