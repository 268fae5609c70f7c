// PowerInfer's placements: the file MODEL.generated.gpuidx next to a model says which neurons of
// each layer PowerInfer's solver put on the GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace powerinfer {

// The path of the placement of a model file. The file may not exist.
std::string gpu_index_path(const std::string& model_path);

// Ids of the neurons of each layer that the file assigns to the GPU, ascending. n_ff: neurons of
// each layer. Throws Error(io). Throws Error(format) naming file and tensor if this is another kind
// of file, or one of a model with other layers or widths.
std::vector<std::vector<int32_t>> read_gpu_index(const std::string& path,
                                                 const std::vector<int64_t>& n_ff);

}  // namespace powerinfer
