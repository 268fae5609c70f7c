// Where neurons are to live, as a placement says that was solved for a model and a machine.
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

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "names.h"
#include "powerinfer.h"

namespace powerinfer {

struct Model;
struct ModelFile;

// Homes of the neurons of a layer, or of one expert.
struct NeuronHomes {
    std::vector<Tier> tier;  // [n_ff]

    int64_t count(Tier home) const;
    std::vector<int32_t> ids(Tier home) const;  // ascending
};

struct Placement {
    std::string path;  // of the file that says so
    // What it was solved for; 0 and "" where it does not say.
    int64_t vram_budget = 0, ram_budget = 0;  // bytes
    std::string device;
    std::vector<std::vector<NeuronHomes>> layers;  // [n_layer][max(1, n_expert)]

    int64_t count(Tier home) const;  // of all layers
};

// The placement of a model whose tensors have been found; nothing where there is none.
// params.use_gpu_index: whether PowerInfer's counts. Throws Error(io), Error(format) naming file
// and tensor or key: a damaged placement, or one for another model or other statistics.
std::optional<Placement> read_placement(const Model& model, const pi_model_params& params);

// The name of the tensor that holds a layer's tiers.
std::string tier_tensor(int64_t layer, bool experts);

// 64 hexadecimal digits each, as python/powerinfer_cpp/placement/statistics.py has them.
std::string model_hash(const ModelFile& file);
std::string statistics_hash(const Model& model);

}  // namespace powerinfer
