// Gated delta nets (model/layer.h): convolutions, the delta rule and a gated norm between products.
#include "forward/parts/recurrent.h"

namespace powerinfer {

namespace {

// z of all rows, [n, v_dim].
float* gates(const Workspace& w, const DeltaNet& s) {
    return w.state.beside + w.batch.max_rows * (s.n_alpha() + s.n_v_head);
}

// Copies queries, keys, values and gates, of which the file has those of each head of keys
// together.
void take_by_head(const Pass& p, const DeltaNet& s, const Entering& to) {
    Workspace& w = p.work;
    const int64_t row = s.by_head_dim(), head = row / s.n_k_head, d = s.head_dim;
    const int64_t values = s.v_dim() / s.n_k_head;
    float* const x = to[DeltaNet::kQueries].x;
    int64_t at = 0;
    const auto take = [&](int64_t width, float* to_x, int64_t to_row) {
        ggml::copy_heads(p.context, {w.state.folded + at, row, head}, w.batch.n, s.n_k_head, width,
                         {to_x, to_row, width});
        at += width;
    };
    take(d, x, s.channels());
    take(d, x + s.k_dim(), s.channels());
    take(values, x + 2 * s.k_dim(), s.channels());
    take(values, gates(w, s), s.v_dim());
}

// The same of beta and alpha, in this order.
void take_steps(const Pass& p, const DeltaNet& s, float* both, const Entering& to) {
    const int64_t n_head = s.n_k_head, width = s.n_v_head / n_head, row = 2 * s.n_v_head;
    for (const DeltaNet::Enters what : {DeltaNet::kBeta, DeltaNet::kAlpha}) {
        ggml::copy_heads(p.context, {both, row, 2 * width}, p.work.batch.n, n_head, width,
                         {to[what].x, to[what].width, width});
        both += width;
    }
}

// Alpha and gates from what they read in the place of x: [n, rank] each, one behind the other.
void multiply_low(const Pass& p, const DeltaNet& s, const float* low, float* alpha) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n;
    const auto read = [&](const float* x, const ggml::Matrix& by) {
        return w.input.prepare(p.context, x, n, s.rank, by.quantised());
    };
    p.multiply(read(low, s.alpha), {{s.alpha, alpha}});
    p.multiply(read(low + n * s.rank, s.gate), {{s.gate, gates(w, s)}});
}

// Queries, keys and values of all rows.
struct Convolved {
    ggml::Heads q, k, v;
};
Convolved convolved(const Folding& f, const DeltaNet& s, const Entering& of, int64_t& at) {
    const auto convolve = [&](const Columns& x, const float* weight) {
        at = convolve_in_place(f, {x.width, s.taps, weight, nullptr, true}, x.x, at);
    };
    const int64_t d = s.head_dim, channels = s.channels();
    float *const q = of[DeltaNet::kQueries].x, *const k = of[DeltaNet::kKeys].x;
    if (!s.q) {
        convolve(of[DeltaNet::kQueries], s.conv);
        return {{q, channels, d},
                {q + s.k_dim(), channels, d},
                {q + 2 * s.k_dim(), channels, s.v_head_dim}};
    }
    convolve(of[DeltaNet::kQueries], s.q_conv);
    convolve(of[DeltaNet::kKeys], s.k_conv);
    convolve(of[DeltaNet::kValues], s.v_conv);
    return {
        {q, s.k_dim(), d}, {k, s.k_dim(), d}, {of[DeltaNet::kValues].x, s.v_dim(), s.v_head_dim}};
}

}  // namespace

void project(const Pass& p, const DeltaNet& s, ggml::SharedInput& x) {
    Workspace& w = p.work;
    const int64_t n = w.batch.n;
    bool q8 = false;
    for (const auto* m : {&s.qkv, &s.q, &s.k, &s.v, &s.by_head, &s.beta, &s.beta_alpha}) {
        q8 |= m->quantised();
    }
    const bool low = s.rank > 0;
    const ggml::Matrix &alpha = low ? s.alpha_low : s.alpha, &gate = low ? s.gate_low : s.gate;
    q8 |= alpha.quantised() || gate.quantised();
    // A file has some of these matrices. What is copied or read once more needs no region of its
    // own.
    const Entering to = entering(w, s);
    float* const room = w.state.folded;
    float* const both = room + n * s.by_head_dim();
    p.multiply(x.get(p.context, q8), {{s.qkv, to[DeltaNet::kQueries].x},
                                      {s.q, to[DeltaNet::kQueries].x},
                                      {s.k, to[DeltaNet::kKeys].x},
                                      {s.v, to[DeltaNet::kValues].x},
                                      {gate, low ? room + n * s.rank : gates(w, s)},
                                      {s.by_head, room},
                                      {s.beta, to[DeltaNet::kBeta].x},
                                      {alpha, low ? room : to[DeltaNet::kAlpha].x},
                                      {s.beta_alpha, both}});
    if (low) multiply_low(p, s, room, to[DeltaNet::kAlpha].x);
    if (s.by_head) take_by_head(p, s, to);
    if (s.beta_alpha) take_steps(p, s, both, to);
}

// Their places must not depend on the number of rows, which is another one when states are computed
// once more.
Entering entering(const Workspace& work, const DeltaNet& s) {
    const int64_t most = work.batch.max_rows;
    float *const steps = work.state.beside, *const q = work.state.entering;
    const Columns alpha{steps, s.n_alpha()}, beta{steps + most * s.n_alpha(), s.n_v_head};
    if (!s.q) return {{alpha, beta, {q, s.channels()}}};
    float *const k = q + most * s.k_dim(), *const v = k + most * s.k_dim();
    return {{alpha, beta, {q, s.k_dim()}, {k, s.k_dim()}, {v, s.v_dim()}}};
}

void fold(const Folding& f, const DeltaNet& s) {
    const Entering of = entering(f.work, s);
    int64_t at = f.at;
    const Convolved x = convolved(f, s, of, at);
    ggml::DeltaRule rule;
    rule.n_k_head = s.n_k_head;
    rule.n_v_head = s.n_v_head;
    rule.head_dim = s.head_dim;
    rule.v_head_dim = s.v_head_dim;
    rule.tiled = s.tiled;
    rule.by_row = s.by_row;
    rule.lower_bound = s.lower_bound;
    rule.dt_bias = s.dt_bias;
    rule.a = s.a;
    rule.eps = kUnitEps;
    rule.beta_scale = s.beta_scale;
    rule.q = x.q;
    rule.k = x.k;
    rule.v = x.v;
    rule.alpha = {of[DeltaNet::kAlpha].x, s.n_alpha(), s.n_decays()};
    rule.beta = {of[DeltaNet::kBeta].x, s.n_v_head, 1};
    const RowsBySequence& rows = f.work.state.by_sequence;
    ggml::delta_rule(f.context, rule, rows.at(at), rows.n,
                     {f.work.state.folded, s.v_dim(), s.v_head_dim});
}

void finish(const Pass& p, const DeltaNet& s, float* y) {
    ggml::GatedNorm norm;
    norm.n_group = s.n_v_head;
    norm.group = s.v_head_dim;
    norm.weight = s.norm;
    norm.eps = s.norm_eps;
    norm.gate_first = false;
    norm.sigmoid = s.sigmoid_gate;
    finish_gated(p, norm, gates(p.work, s), s.out, y);
}

}  // namespace powerinfer
