// Reads placements from files.
//
// There are three kinds; the first one found is used:
//   embedded      tensors blk.N.ffn_tier of the model itself: I8 [n_ff], for experts
//                 ffn_tier_exps [n_ff, n_expert]; 0 storage, 1 RAM, 2 GPU; with keys
//                 powerinfer.placement.*
//   sidecar       MODEL.placement.gguf next to the model, with the same tensors and keys
//   PowerInfer's  MODEL.generated.gpuidx (gpu_index.h): ids of the neurons on the GPU
//
// The first two name the statistics that they were solved for (stats_hash, over all rates). A
// sidecar also names its model (model_hash, over names, shapes, types and first bytes of all
// tensors). Both are checked. PowerInfer's files have neither, so only shapes can be checked.
// MODEL.bundle.gguf uses the files beside MODEL if it has none of its own; its model_hash is a key.
#pragma once

#include <optional>
#include <string>

#include "base/placement.h"
#include "model/model.h"

namespace powerinfer {

// The placement of a model whose tensors have been found, or nothing. params.use_gpu_index: whether
// to read PowerInfer's. For a sidecar of another model or other statistics, only the reason is
// returned (Placement::stale), without tiers. Throws Error(io). Throws Error(format) naming file
// and tensor or key for a damaged placement, or an embedded one for other statistics.
std::optional<Placement> read_placement(const Model& model, const pi_model_params& params);

// The name of the tensor with a layer's tiers.
std::string tier_tensor(int64_t layer, bool experts);

// 64 hexadecimal digits each. Must agree with python/powerinfer_cpp/placement/statistics.py.
std::string model_hash(const ModelFile& file);
std::string statistics_hash(const Model& model);

}  // namespace powerinfer
