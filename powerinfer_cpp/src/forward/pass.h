// The inputs of a forward pass: weights, rows, and the memory of a session.
#pragma once

#include "forward/neuron_source.h"
#include "ggml/context.h"
#include "ggml/status.h"
#include "memory/kv_pages.h"
#include "memory/states.h"
#include "memory/workspace.h"
#include "model/adapters.h"
#include "model/model.h"
#include "model/rope.h"
#include "observe/audit.h"
#include "observe/counts.h"
#include "observe/recorder.h"
#include "storage/table_rows.h"

namespace powerinfer {

class DeviceForward;

// Readers of tables that stay on the disk; null: the model has none there.
struct RowReaders {
    TableRows* tokens = nullptr;  // Model::token_embd
    TableRows* own = nullptr;     // Model::own_rows
};

struct Pass {
    const Model& model;
    const pi_session_params& params;  // resolved
    ggml::Context& context;
    const KvPages& kv;
    const States& states;
    const std::vector<RopeTable>& ropes;  // of Config::ropes
    Workspace& work;                      // with the batch to compute
    Recorder& record;
    Audit& audit;
    Counts& counts;
    DeviceForward* device;  // has the last layers; or null
    NeuronSource& source;   // has the CPU's neurons
    const Adapters& adapters;
    RowReaders rows;

    // The products of weights of the model, with what adapters add to them.
    void multiply(const ggml::Input& x, std::initializer_list<ggml::Product> products) const {
        ggml::matmul(context, x, products);
        for (const ggml::Product& product : products) {
            adapters.add(context, x, &product.w, product.y);
        }
    }
    // y = norm(x), n rows of the stream.
    void norm(const float* x, const NormWeights& w, int64_t n, float* y) const {
        const int64_t n_embd = model.config.n_embd;
        if (w.kind == Norm::layer) {
            ggml::layer_norm(context, x, w.weight, w.bias, w.eps, n, n_embd, y);
        } else {
            ggml::rms_norm(context, x, w.weight, w.eps, n, n_embd, y);
        }
    }
    // Where operators note which neurons fire, [n, n_ff]; null if nobody wants to know.
    bool* flags() const { return record.notes_neurons() ? work.ffn.fired : nullptr; }
    // Throws Error(cancelled) if the caller asks to stop.
    void check_stop() const {
        if (params.should_stop && params.should_stop(params.should_stop_data)) {
            throw ggml::Error(ggml::Code::cancelled, "evaluation was cancelled");
        }
    }
};

}  // namespace powerinfer
