#include "forward/ffn.h"

#include <algorithm>

#include "forward/block_rows.h"
#include "forward/neurons.h"
#include "forward/predictor.h"
#include "ggml/math.h"

namespace powerinfer {

using ggml::Input;

namespace {

int64_t width_of(const Pass& p, const FeedForward& part) {
    return part.columns(p.model.config.n_embd);
}

// Turns n products with up, and with gate if there is one, into the values that down reads. They
// are in b.gate: without gates the products with up are there.
void activate(const Pass& p, const FeedForward& part, bool gated, int64_t n) {
    Workspace& b = p.work;
    const ggml::Activation act = p.model.config.activation;
    if (gated) {
        ggml::gated_activation(p.context, act, b.gate, b.up, n);
    } else if (part.xielu) {
        ggml::xielu(p.context, *part.xielu, b.gate, n);
    } else {
        ggml::activation(p.context, act, b.gate, n);
    }
}

// Computes every neuron. For files that store the FFN as matrices.
void dense_ffn(const Pass& p, const BlockRows& in, float* y) {
    const Config& c = p.model.config;
    const Ffn& w = in.w();
    const NeuronSource::Matrices there = p.source.matrices(p.context, in.number(), w);
    const ggml::Matrix &gate = *there.gate, &up = *there.up, &down = *there.down;
    Workspace& b = p.work;
    const int64_t n_ff = in.part.n_ff, all = in.n * n_ff;
    const bool q8 = up.quantised() || gate.quantised();
    const Input input = b.input.prepare(p.context, in.x, in.n, width_of(p, in.part), q8);
    if (gate) {
        ggml::matmul(
            p.context, input,
            {{gate, b.gate, w.gate_bias, w.gate_scale}, {up, b.up, w.up_bias, w.up_scale}});
        p.adapters.add(p.context, input, &w.gate, b.gate);
        p.adapters.add(p.context, input, &w.up, b.up);
    } else {
        ggml::matmul(p.context, input, {{up, b.gate, w.up_bias, w.up_scale}});
        p.adapters.add(p.context, input, &w.up, b.gate);
    }
    activate(p, in.part, bool(gate), all);
    if (bool* flags = p.flags()) ggml::nonzero(p.context, b.gate, all, flags);
    if (in.part.norms_values) {
        ggml::rms_norm(p.context, b.gate, w.value_norm, c.norm_eps, in.n, n_ff, b.gate);
    }
    p.record.squares(p.context, PI_INPUT_FFN_DOWN, in.part.index, in.expert, b.gate, in.n);
    const Input fired = b.input.prepare(p.context, b.gate, in.n, n_ff, down.quantised());
    ggml::matmul(p.context, fired, {{down, y, w.down_bias, w.down_scale}});
    p.adapters.add(p.context, fired, &w.down, y);
    p.source.keep_expert(in.number(), in.n);
    ggml::NeuronCounts& counts = p.counts.neurons[size_t(in.part.index)];
    counts = {counts.rows + in.n, counts.proposed + all, counts.computed + all, counts.fired + all};
    p.counts.from_disk[size_t(in.part.index)] += there.read ? all : 0;
}

// Makes a bias for each row, [n, n_ff], in `room`: the bias of the weights, if there is one, plus
// what adapters add to the products.
void own_bias(const Pass& p, const Input& x, int64_t n_ff, const ggml::NeuronRows& rows,
              const float*& bias, float* room) {
    ggml::zero(p.context, room, x.rows * n_ff);
    for (int64_t t = 0; bias && t < x.rows; t++) {
        ggml::add(p.context, room + t * n_ff, bias, n_ff);
    }
    p.adapters.add(p.context, x, &rows, room);
    bias = room;
}

// Applies adapters to gate and up. What they add becomes a bias of each row, so that the operators
// decide by the adapted gates which neurons fire. Adapters of down need the neurons' values, which
// the operators keep for them.
void adapt(const Pass& p, const BlockRows& in, ggml::Neurons& neurons) {
    Workspace& b = p.work;
    const ggml::Neurons& w = in.w().neurons;
    if (p.adapters.change(&w.gate) || p.adapters.change(&w.up)) {
        const Input x{in.x, in.n, w.cols, {}};
        neurons.bias_stride = w.n;
        if (w.gate) own_bias(p, x, w.n, w.gate, neurons.gate_bias, b.gate);
        own_bias(p, x, w.n, w.up, neurons.up_bias, b.up);
    }
    b.neurons.values = p.adapters.change(&w.down) ? p.adapters.neuron_values()
                       : in.part.norms_values     ? b.values
                                                  : nullptr;
}

// Computes only the neurons that fire. For files that store the FFN as neuron rows.
void neuron_ffn(const Pass& p, const BlockRows& in, float* y) {
    const Config& c = p.model.config;
    ggml::Neurons neurons = in.w().neurons;
    neurons.threshold = activation_threshold(neurons, p.params.sparse);
    const ggml::NeuronMask mask = mask_of(p, in);
    NeuronBlock block = neurons_of(in, neurons, mask);
    block.audited = choose_audits(p, in, mask);
    // The store can begin to read the next block's neurons if the same rows will need all of them.
    // This is not known of experts, nor of a device's layers, which split the rows in their own
    // way.
    const FeedForward* const next = p.model.ffn_after(in.part);
    const bool all_of_next = next && next->blocks[0].neurons.n && !in.part.routed() &&
                             !next->routed() && next->layer < c.n_layer - p.model.device_layers();
    if (all_of_next) block.next = next->number(0);
    adapt(p, in, neurons);
    compute_neurons(p, block, y);
    const float* const values = p.work.neurons.values;
    if (in.part.norms_values) {
        ggml::divide_by_rms(p.context, values, c.norm_eps, in.n, neurons.n, neurons.cols, y);
    }
    if (values) p.adapters.add(p.context, {values, in.n, neurons.n, {}}, &in.w().neurons.down, y);
}

// y[t] = down . (act(gate . x[t]) * up . x[t]); without a gate, y[t] = down . act(up . x[t]).
void ffn(const Pass& p, const BlockRows& in, float* y) {
    p.record.squares(p.context, PI_INPUT_FFN, in.part.index, in.expert, in.x, in.n);
    if (in.w().neurons.n) {
        neuron_ffn(p, in, y);
    } else {
        dense_ffn(p, in, y);
    }
    p.record.fired(p.context, in.part.index, in.expert, in.rows, in.n, p.flags());
}

// An expert and the rows of the batch that chose it. If the batch is a single row, each of its
// experts has its own scores in the workspace.
BlockRows chosen_block(const Pass& p, const FeedForward& part, int64_t expert) {
    const ggml::ExpertRows& chosen = p.work.expert_rows;
    const int32_t first = chosen.first[expert];
    return {part,
            expert,
            p.work.gathered,
            p.work.gathered_residual,
            chosen.rows + first,
            chosen.first[expert + 1] - first,
            p.work.batch.n == 1 ? first : 0};
}

// Copies the rows of an expert side by side, so that its weights are read only once.
void gather(const Pass& p, const BlockRows& in, const float* x) {
    Workspace& b = p.work;
    ggml::gather_rows(p.context, x, in.rows, in.n, width_of(p, in.part), b.gathered);
    if (float* const residual = b.gathered_residual) {
        ggml::gather_rows(p.context, b.x, in.rows, in.n, p.model.config.n_embd, residual);
    }
}

// Calls use(block) for every expert from `first` on that some row chose.
template <typename F>
void for_chosen(const Pass& p, const FeedForward& part, int64_t first, const F& use) {
    for (int64_t e = first; e < part.n_blocks(); e++) {
        const BlockRows in = chosen_block(p, part, e);
        if (in.n) use(in);
    }
}

// Requests the predictors of the chosen experts from the disk, as many as fit.
void request_predictors(const Pass& p, const FeedForward& part, int64_t first) {
    if (!p.source.pages_predictors()) return;
    for_chosen(p, part, first, [&](const BlockRows& in) {
        if (n_masked(p, in)) p.source.request_predictor(in.number());
    });
}

// Requests the chosen experts from `first` on from the disk, as many as fit.
void request_whole(const Pass& p, const FeedForward& part, int64_t first) {
    if (!p.source.pages_experts()) return;
    bool room = true;
    for_chosen(p, part, first,
               [&](const BlockRows& in) { room = room && p.source.request_expert(in.number()); });
}

// Requests the neurons that the only row of an expert may need, by the mask.
void request_block(const Pass& p, const BlockRows& in) {
    request_neurons(p, neurons_of(in, in.w().neurons, mask_of(p, in)));
}

// For a batch of one row: runs the predictors of all its experts and requests their neurons before
// the first expert is computed, so that the disk has all reads in its queue.
void begin_experts(const Pass& p, const FeedForward& part, const float* x) {
    for_chosen(p, part, 0, [&](BlockRows in) {
        request_predictors(p, part, in.expert);
        gather(p, in, x);
        mask_of(p, in);
        in.predicted = true;
        request_block(p, in);
    });
}

// y += expert_weight * what an expert gave for its rows.
void add_expert(const Pass& p, const BlockRows& in, const float* out, float* y) {
    const ggml::ExpertRows& chosen = p.work.expert_rows;
    const float* const weights = chosen.expert_weights + chosen.first[in.expert];
    ggml::scatter_add(p.context, out, in.rows, weights, in.n, width_of(p, in.part), y);
}

// Where all experts keep what they give until add_kept().
float* kept(const Pass& p, const BlockRows& in) {
    const int64_t first = p.work.expert_rows.first[in.expert];
    return p.work.expert_out + first * width_of(p, in.part);
}

void add_kept(const Pass& p, const FeedForward& part, float* y) {
    for_chosen(p, part, 0, [&](const BlockRows& in) { add_expert(p, in, kept(p, in), y); });
}

// The same as mixture() where whole experts may be on the disk: those in memory are computed while
// the others are read. What they give is kept, and added in ascending order in the end.
void mixture_from_disk(const Pass& p, const FeedForward& part, const float* x, float* y) {
    request_whole(p, part, 0);
    for (const bool absent : {false, true}) {
        for_chosen(p, part, 0, [&](const BlockRows& in) {
            if (p.source.absent(in.number()) != absent) return;
            if (absent) request_whole(p, part, in.expert);
            gather(p, in, x);
            ffn(p, in, kept(p, in));
        });
    }
    add_kept(p, part, y);
}

// Can all experts of the only row be computed together? They must be in memory, as matrices or as
// rows of which all are computed, and nothing may be wanted of a single one.
bool together(const Pass& p, const FeedForward& part) {
    if (p.work.batch.n > 1 || p.source.pages_experts() || p.record.on() || p.adapters.in_layers() ||
        part.norms_values) {
        return false;
    }
    if (!part.blocks[0].neurons.n) return true;
    bool whole = !p.source.waits();
    for_chosen(p, part, 0, [&](const BlockRows& in) {
        whole = whole && ggml::can_be_whole(in.w().neurons) && n_masked(p, in) == 0;
    });
    return whole;
}

// What the experts of the only row give is kept: experts that are matrices; and neuron rows.
void dense_experts(const Pass& p, const FeedForward& part, const float* x) {
    Workspace& b = p.work;
    const int64_t n_ff = part.n_ff, width = width_of(p, part), all = part.n_used * n_ff;
    const bool gated = bool(part.blocks[0].gate);
    ggml::RowProduct* next = b.products;
    float *gate = b.gate, *up = gated ? b.up : b.gate;
    bool q8 = false, q8_down = false;
    for_chosen(p, part, 0, [&](const BlockRows& in) {
        const Ffn& w = in.w();
        if (gated) *next++ = {&w.gate, 0, gate, w.gate_bias, w.gate_scale};
        *next++ = {&w.up, 0, up, w.up_bias, w.up_scale};
        gate += n_ff;
        up += n_ff;
        q8 = q8 || w.up.quantised() || w.gate.quantised();
        q8_down = q8_down || w.down.quantised();
    });
    const Input input = b.input.prepare(p.context, x, 1, width, q8);
    ggml::matmul_rows(p.context, input, b.products, next - b.products);
    activate(p, part, gated, all);
    next = b.products;
    for_chosen(p, part, 0, [&](const BlockRows& in) {
        const Ffn& w = in.w();
        const int64_t i = next - b.products;
        *next++ = {&w.down, i, kept(p, in), w.down_bias, w.down_scale};
    });
    const Input fired = b.input.prepare(p.context, b.gate, part.n_used, n_ff, q8_down);
    ggml::matmul_rows(p.context, fired, b.products, part.n_used);
    ggml::NeuronCounts& counts = p.counts.neurons[size_t(part.index)];
    counts = {counts.rows + part.n_used, counts.proposed + all, counts.computed + all,
              counts.fired + all};
}
void neuron_experts(const Pass& p, const FeedForward& part, const float* x) {
    ggml::Neurons some[ggml::kMostWhole];
    float* out = p.work.expert_out;
    int64_t n = 0;
    const auto compute = [&] {
        if (n) compute_whole(p, part, some, n, x, out);
        out += n * width_of(p, part);
        n = 0;
    };
    for_chosen(p, part, 0, [&](const BlockRows& in) {
        some[n] = in.w().neurons;
        some[n].threshold = activation_threshold(some[n], p.params.sparse);
        if (++n == ggml::kMostWhole) compute();
    });
    compute();
}

// The same as mixture() for a row of which together() is true. An expert takes some tens of
// microseconds. So it counts how often threads begin a region and wait for each other: once for
// all experts here, not once for each.
void mixture_of_row(const Pass& p, const FeedForward& part, const float* x, float* y) {
    if (part.blocks[0].neurons.n) {
        neuron_experts(p, part, x);
    } else {
        dense_experts(p, part, x);
    }
    add_kept(p, part, y);
}

// y[t] = the sum of expert_weight * ffn(expert, x[t]) over the chosen experts, in ascending order.
void mixture(const Pass& p, const FeedForward& part, const float* x, float* y) {
    Workspace& b = p.work;
    ggml::zero(p.context, y, b.batch.n * width_of(p, part));
    const int64_t all = b.batch.n * part.n_used;
    if (p.source.pages_experts() && all <= std::max<int64_t>(p.params.n_ubatch, part.n_used)) {
        return mixture_from_disk(p, part, x, y);
    }
    if (together(p, part)) return mixture_of_row(p, part, x, y);
    const bool begun = p.source.waits() && b.batch.n == 1;
    if (begun) begin_experts(p, part, x);
    for_chosen(p, part, 0, [&](BlockRows in) {
        in.predicted = begun;
        request_whole(p, part, in.expert);
        if (begun) {
            // The staging area had no room for some experts until now.
            for_chosen(p, part, in.expert, [&](BlockRows later) {
                later.predicted = true;
                request_block(p, later);
            });
        } else {
            request_predictors(p, part, in.expert);
        }
        gather(p, in, x);
        ffn(p, in, b.expert_out);
        add_expert(p, in, b.expert_out, y);
    });
}

// y[t] = widen . mixture(narrow . x[t])
void narrow_mixture(const Pass& p, const FeedForward& part, const float* x, float* y) {
    Workspace& b = p.work;
    const int64_t n = b.batch.n, n_embd = p.model.config.n_embd;
    const Input full = b.input.prepare(p.context, x, n, n_embd, part.narrow.quantised());
    p.multiply(full, {{part.narrow, b.narrow}});
    if (p.model.config.predict_from_normed) p.record.inputs(part.index, b.narrow, n);
    mixture(p, part, b.narrow, b.narrow_sum);
    const Input sum =
        b.input.prepare(p.context, b.narrow_sum, n, part.width, part.widen.quantised());
    p.multiply(sum, {{part.widen, y}});
}

// y[t] *= sigmoid(share . x[t])
void weigh_by_share(const Pass& p, const FeedForward& part, const float* x, float* y) {
    Workspace& b = p.work;
    const int64_t n = b.batch.n, n_embd = p.model.config.n_embd;
    const Input input = b.input.prepare(p.context, x, n, n_embd, part.share.quantised());
    p.multiply(input, {{part.share, b.share, nullptr}});
    for (int64_t t = 0; t < n; t++) {
        ggml::scale(p.context, y + t * n_embd, ggml::sigmoid(b.share[t]), n_embd);
    }
}

}  // namespace

float activation_threshold(const ggml::Neurons& neurons, int32_t sparse) {
    return relu_family(neurons.act) || sparse == PI_SPARSE_EXACT ? neurons.threshold : 0;
}

void route(const Pass& p, const Router& router, const float* x) {
    Workspace& b = p.work;
    const int64_t n = b.batch.n;
    const Input input =
        b.input.prepare(p.context, x, n, p.model.config.n_embd, router.w.quantised());
    p.multiply(input, {{router.w, b.router, router.bias}});
    if (router.scale != 1) ggml::scale(p.context, b.router, router.scale, n * router.w.rows);
    ggml::route(p.context, router.how, b.router, n, b.routed, b.expert_rows);
}

void request_experts(const Pass& p, const FeedForward& experts) {
    request_whole(p, experts, 0);
    if (!p.source.waits()) return;
    request_predictors(p, experts, 0);
    if (p.work.batch.n > 1) return;
    for_chosen(p, experts, 0, [&](const BlockRows& in) {
        if (!n_masked(p, in)) request_block(p, in);
    });
}

void feed_forward(const Pass& p, const FeedForward& part, const float* x, float* y) {
    const float* residual = p.work.x;
    const int64_t n = p.work.batch.n;
    const bool normed = p.model.config.predict_from_normed;
    const bool narrow = part.routed() && part.width;
    if (!(narrow && normed)) p.record.inputs(part.index, normed ? x : residual, n);
    if (narrow) {
        narrow_mixture(p, part, x, y);
    } else if (part.routed()) {
        mixture(p, part, x, y);
    } else {
        ffn(p, {part, 0, x, residual, nullptr, n}, y);
    }
    if (part.share) weigh_by_share(p, part, x, y);
}

}  // namespace powerinfer
