// Chooses what a device holds of a model.
#pragma once

#include "model/model.h"
#include "plan/plan.h"

namespace powerinfer {

// What the device of the model holds when a session with these parameters shall fit beside it: as
// many of the last layers as fit (attention, norms, predictors, keys and values; whole FFNs if they
// are matrices), then the head, then the neurons that fire most often (those of the model's
// placement first, if it applies). This is the order of bytes that a token reads per byte that they
// take. params: n_gpu_layers, placement, n_sessions and beside. Throws Error(memory) if
// n_gpu_layers, or with a budget that was given not even one layer, exceed it.
DeviceSplit split_with_device(const Model& model, const pi_model_params& params,
                              const pi_session_params& session);

// The frames for the experts of the layers from `first` on, in so many bytes of the device's
// memory: the same share of the experts of every size. Without room for any, a shape without
// frames. params: op_offload, for which there is room for experts that come for a prompt, and
// n_cpu_moe: those of so many layers of the model, the first ones, have none.
FrameShape frame_shape(const Model& model, int64_t first, uint64_t bytes,
                       const pi_model_params& params);

}  // namespace powerinfer
