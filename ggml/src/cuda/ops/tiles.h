// Products with many rows of activations.
#pragma once

#include "cuda/launch.h"

namespace ggml::GGML_GPU {

// p.y[t][n] = p.w[n] . x[t] + p.bias[n], with the bits of matmul() for a few rows.
void matmul_tiles(DeviceStream* stream, const DeviceInput& x, const DeviceProduct& p);

}  // namespace ggml::GGML_GPU
