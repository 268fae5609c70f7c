#include "forward/parts/experts.h"

#include <algorithm>

#include "forward/parts/blocks.h"
#include "forward/parts/neuron_ffn.h"
#include "forward/parts/predictor.h"

namespace powerinfer {

using ggml::Input;

namespace {

int64_t width_of(const Pass& p, const FeedForward& part) {
    return part.columns(p.model.config.n_embd);
}

// Rows of the batch with experts from `first` to before `end`, one after the other.
struct ChosenRows {
    int32_t first, n;
};
ChosenRows chosen_rows(const Pass& p, int64_t first, int64_t end) {
    const int32_t* const begins = p.work.mixture.chosen.first;
    return {begins[first], begins[end] - begins[first]};
}

// y += the weight of each expert * what it gave for its rows.
void add_experts(const Pass& p, const ChosenRows& rows, const float* out, int64_t width, float* y) {
    const ggml::ExpertRows& chosen = p.work.mixture.chosen;
    ggml::scatter_add(p.context, out, chosen.rows + rows.first, chosen.expert_weights + rows.first,
                      rows.n, width, y);
}

// ---- Experts that are matrices ----

// Requests the chosen experts from `first` on from the disk, as many as fit.
void request_whole(const Pass& p, const FeedForward& part, int64_t first) {
    if (!p.source.pages_experts()) return;
    for (int64_t e = first; e < part.n_blocks(); e++) {
        if (p.work.mixture.computed[e]) continue;
        if (!p.source.request_expert(part.number(e))) return;
    }
}

// Experts are computed in groups: those that are in memory together, one that the disk brings
// alone. If what all of them give has room, those in memory come first; otherwise they come in
// ascending order. A row's sum has the same order in any case.
class Groups {
 public:
    // pairs: null, or where the result of each chosen row goes instead of being added up.
    Groups(const Pass& p, const FeedForward& part, ggml::SharedInput& x,
           const int32_t* pairs = nullptr)
        : p_(p), part_(part), b_(p.work.mixture), x_(x), pairs_(pairs), one_row_(x.rows() == 1) {
        const int64_t all = x.rows() * part.n_used;
        room_ = std::max<int64_t>(p.params.n_ubatch, part.n_used);
        keeps_ = all <= room_;
    }

    // y += what all experts give.
    void run(float* y, const Beside& beside) {
        bool waits = beside.part;  // for the first group
        while (choose(waits)) {
            const bool any = !group_.empty();
            if (any) place();
            if (waits) add_beside(beside);
            waits = false;
            compute_blocks(p_, group_);
            group_.clear();  // ends the use of the weights
            if (any && !keeps_) add(here_, y);
        }
        if (keeps_) add(chosen_rows(p_, 0, part_.n_blocks()), y);
    }

 private:
    ChosenRows rows_of(int64_t expert) const { return chosen_rows(p_, expert, expert + 1); }

    void add(const ChosenRows& rows, float* y) {
        const int64_t width = width_of(p_, part_);
        if (!pairs_) return add_experts(p_, rows, b_.out, width, y);
        for (int64_t i = 0; i < rows.n; i++) {
            std::copy_n(b_.out + i * width, width, y + pairs_[rows.first + i] * width);
        }
    }

    // Opens the experts of the next group. If the disk has to bring the next one and something else
    // can be computed, the group is empty. false: all have been computed.
    bool choose(bool something_else) {
        request_whole(p_, part_, first_);  // room may have become free
        int64_t rows = 0, first = -1;
        for (int64_t e = first_; e < part_.n_blocks(); e++) {
            if (b_.computed[e]) {
                first_ += e == first_;
                continue;
            }
            if (first < 0) first = e;
            const bool ready = p_.source.ready(part_.number(e));
            if (ready ? rows + rows_of(e).n > room_ : !keeps_) break;
            if (!ready) continue;
            rows += rows_of(e).n;
            open(e);
        }
        if (first < 0) return false;
        if (group_.empty() && !something_else) open(first);
        return true;
    }
    void open(int64_t expert) {
        b_.computed[expert] = true;
        group_.emplace_back(p_, part_, expert, rows_of(expert).n);
    }

    // Gives the experts their rows and the places of their results.
    void place() {
        const int64_t width = x_.cols(), first = group_.front().expert, last = group_.back().expert;
        const Input& x = x_.get(p_.context, group_.front().wants_q8());
        if (!keeps_ || here_.n == 0) {
            here_ =
                keeps_ ? chosen_rows(p_, 0, part_.n_blocks()) : chosen_rows(p_, first, last + 1);
            if (!one_row_) gather(x);
        }
        for (FfnBlock& block : group_) {
            const ChosenRows rows = rows_of(block.expert);
            const int64_t at = (rows.first - here_.first) * width;
            block.x = one_row_ ? x : gathered_.part(at, rows.n, width);
            block.rows = b_.chosen.rows + rows.first;
            block.y = b_.out + at;
        }
    }
    // The rows of all experts of the group, or of all groups, side by side.
    void gather(const Input& x) {
        const FfnBlock& like = group_.front();
        const int32_t* const rows = b_.chosen.rows + here_.first;
        gathered_ = {nullptr, here_.n, x.cols, {}};
        if (like.wants_q8()) gathered_ = b_.gathered_q8.gather(p_.context, x, rows, here_.n);
        if (!like.wants_floats(p_)) return;
        ggml::gather_rows(p_.context, x.x, rows, here_.n, x.cols, b_.gathered);
        gathered_.x = b_.gathered;
    }
    void add_beside(const Beside& beside) {
        FfnBlock block(p_, *beside.part, 0, beside.x->rows());
        block.x = beside.x->get(p_.context, block.wants_q8());
        block.y = beside.y;
        group_.push_back(std::move(block));
    }

    const Pass& p_;
    const FeedForward& part_;
    MixtureRows& b_;
    ggml::SharedInput& x_;
    const int32_t* const pairs_;
    const bool one_row_;
    bool keeps_;
    int64_t room_, first_ = 0;  // rows of a group; the first expert that has not been computed
    std::vector<FfnBlock> group_;
    ChosenRows here_ = {};  // that are gathered
    Input gathered_;
};

// ---- Experts in neuron rows ----

// An expert and the rows of the batch that chose it. If the batch is a single row, each of its
// experts has its own scores in the workspace.
BlockRows chosen_block(const Pass& p, const FeedForward& part, int64_t expert) {
    const ggml::ExpertRows& chosen = p.work.mixture.chosen;
    const int32_t first = chosen.first[expert];
    return {part,
            expert,
            p.work.mixture.gathered,
            p.work.mixture.gathered_residual,
            chosen.rows + first,
            chosen.first[expert + 1] - first,
            p.work.batch.n == 1 ? first : 0};
}

// Copies the rows of an expert side by side, so that its weights are read only once.
void gather(const Pass& p, const BlockRows& in, const float* x) {
    const MixtureRows& b = p.work.mixture;
    ggml::gather_rows(p.context, x, in.rows, in.n, width_of(p, in.part), b.gathered);
    if (float* const residual = b.gathered_residual) {
        ggml::gather_rows(p.context, p.work.x, in.rows, in.n, p.model.config.n_embd, residual);
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

// Can all experts of the only row be computed together? They must be in memory, all of their
// neurons must be computed, and nothing may be wanted of a single one.
bool together(const Pass& p, const FeedForward& part) {
    if (p.work.batch.n > 1 || p.source.waits() || p.record.on() || p.adapters.in_layers() ||
        part.norms_values) {
        return false;
    }
    bool whole = true;
    for_chosen(p, part, 0, [&](const BlockRows& in) {
        whole = whole && ggml::can_be_whole(in.w().neurons) && n_masked(p, in) == 0;
    });
    return whole;
}

// An expert takes some tens of microseconds. So it counts how often threads begin a region and wait
// for each other: once for all experts here, not once for each.
void whole_experts(const Pass& p, const FeedForward& part, const float* x, float* y) {
    ggml::Neurons some[ggml::kMostWhole];
    float* const out = p.work.mixture.out;
    int64_t done = 0;
    int64_t n = 0;
    const auto compute = [&] {
        if (n) compute_whole(p, part, some, n, x, out + done * width_of(p, part));
        done += n;
        n = 0;
    };
    for_chosen(p, part, 0, [&](const BlockRows& in) {
        some[n] = in.w().neurons;
        some[n].threshold = activation_threshold(some[n], p.params.sparse);
        if (++n == ggml::kMostWhole) compute();
    });
    compute();
    add_experts(p, chosen_rows(p, 0, part.n_blocks()), out, width_of(p, part), y);
}

// One expert after the other.
void neuron_experts(const Pass& p, const FeedForward& part, const float* x, float* y) {
    const bool begun = p.source.waits() && p.work.batch.n == 1;
    if (begun) begin_experts(p, part, x);
    for_chosen(p, part, 0, [&](BlockRows in) {
        in.predicted = begun;
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
        float* const out = p.work.mixture.out;
        neuron_ffn(p, in, out);
        add_experts(p, chosen_rows(p, in.expert, in.expert + 1), out, width_of(p, part), y);
    });
}

// For a device: y[pairs[i]] = what the expert of the i-th chosen row gives for it. None of these
// has a predictor (plan/keeps_to_cpu.cpp), and nobody records what fires.
void answer_neurons(const Pass& p, const FeedForward& part, ggml::SharedInput& x,
                    const int32_t* pairs, float* y) {
    const MixtureRows& b = p.work.mixture;
    const int64_t width = width_of(p, part);
    p.work.neurons.scratch.computed = nullptr;
    p.work.neurons.scratch.values = nullptr;
    for_chosen(p, part, 0, [&](const BlockRows& in) {
        ggml::gather_rows(p.context, x.x(), in.rows, in.n, width, b.gathered);
        ggml::Neurons neurons = in.w().neurons;
        neurons.threshold = activation_threshold(neurons, p.params.sparse);
        const ggml::NeuronMask mask;
        compute_neurons(p, {part, in.expert, neurons, b.gathered, in.n, mask}, b.out);
        const int32_t* const to = pairs + b.chosen.first[in.expert];
        for (int64_t i = 0; i < in.n; i++) std::copy_n(b.out + i * width, width, y + to[i] * width);
    });
}

}  // namespace

void route(const Pass& p, const Router& router, ggml::SharedInput& x) {
    const MixtureRows& b = p.work.mixture;
    const int64_t n = x.rows(), n_expert = router.w.rows;
    p.multiply(x.get(p.context, router.w.quantised()), {{router.w, b.scores, router.bias}});
    if (router.scale != 1) ggml::scale(p.context, b.scores, router.scale, n * n_expert);
    ggml::route(p.context, router.how, b.scores, n, b.routed, b.chosen);
    for (int64_t e = 0; e < n_expert; e++) b.computed[e] = chosen_rows(p, e, e + 1).n == 0;
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

void mixture(const Pass& p, const FeedForward& part, ggml::SharedInput& x, float* y,
             const Beside& beside) {
    ggml::zero(p.context, y, x.rows() * width_of(p, part));
    if (!part.blocks[0].neurons.n) {
        Groups(p, part, x).run(y, beside);
    } else if (together(p, part)) {
        whole_experts(p, part, x.x(), y);
    } else {
        neuron_experts(p, part, x.x(), y);
    }
}

void answer_experts(const Pass& p, const FeedForward& part, const int32_t* chosen,
                    const std::function<bool(int64_t)>& wanted, ggml::SharedInput& x, float* y) {
    const MixtureRows& b = p.work.mixture;
    const int64_t n_expert = part.n_blocks(), n = x.rows() * part.n_used;
    int32_t* const first = b.chosen.first;
    int32_t* const pairs = b.routed.chosen;
    // Counted, and then placed, as in ggml::route().
    std::fill_n(first, n_expert + 1, 0);
    for (int64_t i = 0; i < n; i++) first[chosen[i] + 1] += wanted(chosen[i]);
    for (int64_t e = 0; e < n_expert; e++) {
        b.computed[e] = first[e + 1] == 0;
        first[e + 1] += first[e];
    }
    for (int64_t i = 0; i < n; i++) {
        if (b.computed[chosen[i]]) continue;
        const int32_t at = first[chosen[i]]++;
        b.chosen.rows[at] = int32_t(i / part.n_used);
        pairs[at] = int32_t(i);
    }
    for (int64_t e = n_expert; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
    if (part.blocks[0].neurons.n) return answer_neurons(p, part, x, pairs, y);
    Groups(p, part, x, pairs).run(y, {});
}

}  // namespace powerinfer
