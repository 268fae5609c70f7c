// The inputs of a forward pass: weights, rows, and the memory of a session.
#pragma once

#include "audit.h"
#include "counts.h"
#include "ggml/context.h"
#include "kv_pages.h"
#include "model.h"
#include "record.h"
#include "rope.h"
#include "workspace.h"

namespace powerinfer {

struct Pass {
    const Model& model;
    const pi_session_params& params;  // resolved
    ggml::Context& context;
    const KvPages& kv;
    const RopeTable& rope;
    Workspace& work;  // with the batch to compute
    Recorder& record;
    Audit& audit;
    Counts& counts;
};

}  // namespace powerinfer
