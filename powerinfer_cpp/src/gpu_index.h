// PowerInfer's placements: MODEL.generated.gpuidx beside a model says which neurons of each layer
// its solver put on the GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace powerinfer {

// Of the model file; whether it is there is for the caller to see.
std::string gpu_index_path(const std::string& model_path);

// Ids, ascending, of the neurons of each layer that the file marks for the GPU. Throws Error(io),
// Error(format) naming file and tensor: another kind of file, or one of a model with other layers
// or widths.
std::vector<std::vector<int32_t>> read_gpu_index(const std::string& path, int64_t n_layer,
                                                 int64_t n_ff);

}  // namespace powerinfer
