// Parts whose layers have a state (model/layer.h): what enters it is computed by products, an
// operator folds it into the state, and further products make the part's result. What entered is
// kept for some rows, from which the states can be computed once more (replay).
//
// A kind of part is four functions: project(), entering(), fold() and finish().
#pragma once

#include <array>

#include "forward/pass.h"

namespace powerinfer {

// Values of all rows of a pass: [rows, width]. Null: none.
struct Columns {
    float* x = nullptr;
    int64_t width = 0;
};
// What enters a state, in this order; the widths are entering() of the part.
using Entering = std::array<Columns, 5>;

// What a fold reads and writes.
struct Folding {
    ggml::Context& context;
    const Model& model;
    Workspace& work;
    int64_t n;   // rows
    int64_t at;  // where the part's state begins in a slot
};

// What enters the state, and what finish() needs, of the input x [rows, n_embd].
void project(const Pass& p, const ShortConvolution& s, ggml::SharedInput& x);
void project(const Pass& p, const Mamba2& s, ggml::SharedInput& x);
void project(const Pass& p, const DeltaNet& s, ggml::SharedInput& x);
void project(const Pass& p, const NGrams& s, ggml::SharedInput& x);
// Where project() has put what enters.
Entering entering(const Workspace& work, const ShortConvolution& s);
Entering entering(const Workspace& work, const Mamba2& s);
Entering entering(const Workspace& work, const DeltaNet& s);
Entering entering(const Workspace& work, const NGrams& s);
// Computes the states of Workspace::by_sequence, and Workspace::folded, of what enters. May
// overwrite that.
void fold(const Folding& f, const ShortConvolution& s);
void fold(const Folding& f, const Mamba2& s);
void fold(const Folding& f, const DeltaNet& s);
void fold(const Folding& f, const NGrams& s);
// y [rows, n_embd] of Workspace::folded; of n-grams [rows, n_streams * n_embd].
void finish(const Pass& p, const ShortConvolution& s, float* y);
void finish(const Pass& p, const Mamba2& s, float* y);
void finish(const Pass& p, const DeltaNet& s, float* y);
void finish(const Pass& p, const NGrams& s, float* y);

// What kinds of part have in common. Convolves values of all rows in place; the states begin `at`
// floats into a slot. Returns where they end.
int64_t convolve_in_place(const Folding& f, const ggml::Convolution& conv, float* x, int64_t at);
// y of Workspace::folded, after a norm with these gates.
void finish_gated(const Pass& p, ggml::GatedNorm norm, float* gates, const ggml::Matrix& out,
                  float* y);

// Keeps what enters a part, of the rows of which it is kept: `at` floats into what of a row does.
void keep_entering(const RowsBySequence& rows, const StateLayout& layout, int64_t at,
                   const Entering& entering);
// Folds n rows of a sequence of which it was kept into the states of the layers in RAM, `at_once`
// of them at a time. They have the same bits as those of the call that computed the rows.
void replay(ggml::Context& context, const Model& model, const StateLayout& layout, Workspace& work,
            int64_t at_once, const float* entered, int64_t n, const float* before, float* after);

template <typename T>
void recurrent(const Pass& p, int64_t layer, const T& part, ggml::SharedInput& x, float* y) {
    const StateLayout& layout = p.states.layout();
    const auto i = size_t(layer);
    StateSizes at{layout.state[i], layout.entering[i]};
    for_state_parts(p.model.layers[i], [&](const auto& other, const StateSizes& before) {
        if (static_cast<const void*>(&other) != &part) return;
        at.state += before.state;
        at.entering += before.entering;
    });
    // What is beside attention reads its input, and has no place for squares of its own.
    const bool alone = part.folded() && !p.model.layers[i].find<Attention>();
    const int64_t n = p.work.batch.n;
    if (alone) p.record.squares(p.context, PI_INPUT_ATTENTION, layer, 0, x.x(), n);
    project(p, part, x);
    keep_entering(p.work.state.by_sequence, layout, at.entering, entering(p.work, part));
    fold({p.context, p.model, p.work, n, at.state}, part);
    finish(p, part, y);
    // finish() leaves there what its last product has read.
    if (!alone) return;
    p.record.squares(p.context, PI_INPUT_ATTENTION_OUTPUT, layer, 0, p.work.state.folded, n);
}

}  // namespace powerinfer
