// Placements in files.
//
// There are three kinds, and the first that is there counts:
//   embedded      blk.N.ffn_tier of the model itself, I8 [n_ff], of experts ffn_tier_exps
//                 [n_ff, n_expert]: 0 storage, 1 RAM, 2 GPU, with keys powerinfer.placement.*
//   a sidecar     MODEL.placement.gguf beside it, with the same tensors and keys
//   PowerInfer's  MODEL.generated.gpuidx (gpu_index.h): ids of the neurons on the GPU
// The first two say which statistics they were solved for (stats_hash, over every rate), a sidecar
// also for which model (model_hash, over names, shapes, types and first bytes of all tensors): both
// are checked. PowerInfer's says neither, so only its shapes tell.
#pragma once

#include <optional>
#include <string>

#include "model.h"
#include "placement.h"

namespace powerinfer {

// The placement of a model whose tensors have been found; nothing where there is none.
// params.use_gpu_index: whether PowerInfer's counts. A sidecar for another model or other
// statistics comes back with no homes and the reason (Placement::stale). Throws Error(io),
// Error(format) naming file and tensor or key: a damaged placement, or an embedded one for other
// statistics.
std::optional<Placement> read_placement(const Model& model, const pi_model_params& params);

// The name of the tensor that holds a layer's tiers.
std::string tier_tensor(int64_t layer, bool experts);

// 64 hexadecimal digits each, as python/powerinfer_cpp/placement/statistics.py has them.
std::string model_hash(const ModelFile& file);
std::string statistics_hash(const Model& model);

}  // namespace powerinfer
