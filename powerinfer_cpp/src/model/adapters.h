// The adapters that a session uses, and the products of their terms.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "ggml/context.h"
#include "ggml/ops.h"
#include "model/adapter.h"

namespace powerinfer {

struct ScaledAdapter {
    std::shared_ptr<const Adapter> adapter;
    float scale;
};

class Adapters {
 public:
    Adapters() = default;  // none
    // For batches of up to max_rows rows. Takes memory from the model's budget; throws
    // Error(memory).
    Adapters(const Model& model, std::vector<ScaledAdapter> used, int64_t max_rows);

    bool none() const { return used_.empty(); }
    // Do they change weights of layers, and not only the head?
    bool in_layers() const { return in_layers_; }
    // A number for them and their scales; 0 for none.
    uint64_t id() const { return id_; }

    bool change(const void* weight) const { return terms_.count(weight) != 0; }
    // y[t] += sum of scale * B (A x[t]) over the adapters that change the weight, in their order.
    // y: [x.rows, outputs]. `weight`: the address of the Matrix or NeuronRows in the model.
    void add(ggml::Context& context, const ggml::Input& x, const void* weight, float* y) const;
    // The same of rows of a table: y[t] += sum of scale * B (row ids[t] of A).
    void add_rows(ggml::Context& context, const int32_t* ids, int64_t n, const void* table,
                  float* y) const;
    // Room for the values of a layer's neurons, [max_rows, n_ff]; null if no term needs it.
    float* neuron_values() const { return scratch_.values; }

 private:
    struct Term {
        ggml::Matrix a, b;
        float scale;
    };
    struct Scratch {
        Scratch() = default;
        Scratch(ggml::Carver& carver, int64_t max_rows, int64_t rank, int64_t piece,
                int64_t n_values);
        float* down = nullptr;    // [max_rows, rank]: A x
        float* up = nullptr;      // [piece]: B (A x) of some rows
        float* values = nullptr;  // [max_rows, n_values]
    };
    // y += scale * B (Scratch::down), of n rows.
    void add_up(ggml::Context& context, const Term& term, int64_t n, float* y) const;

    std::vector<ScaledAdapter> used_;
    std::map<const void*, std::vector<Term>> terms_;
    bool in_layers_ = false;
    uint64_t id_ = 0;
    int64_t piece_ = 0;  // floats of Scratch::up
    Reservation reserved_;
    ggml::Memory memory_;
    Scratch scratch_;
};

}  // namespace powerinfer
