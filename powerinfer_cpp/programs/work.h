// The work of a session: neurons, and bytes of weights and cache.
#pragma once

#include <cstdint>
#include <vector>

#include "console/console.h"
#include "powerinfer.h"

struct Work {
    pi_work sum = sized<pi_work>();          // rows, bytes
    std::vector<pi_neuron_counts> by_layer;  // empty: nothing done yet

    uint64_t bytes() const { return sum.attention + sum.predictor + sum.ffn + sum.head + sum.kv; }
    // Share of the neurons of a layer, or of all layers for layer -1; 0 if no row was computed.
    double share(int64_t pi_neuron_counts::*count, int layer = -1) const;
    // Sum over the layers.
    int64_t total(int64_t pi_neuron_counts::*count) const;
};

// Adds the session's work in this scope to `total`.
class WorkSpan {
 public:
    WorkSpan(Work& total, const pi_session* session, const pi_model* model);
    ~WorkSpan();
    WorkSpan(const WorkSpan&) = delete;
    WorkSpan& operator=(const WorkSpan&) = delete;

 private:
    Work now() const;

    Work& total_;
    const pi_session* session_;
    size_t n_layer_;
    Work begin_;
};
