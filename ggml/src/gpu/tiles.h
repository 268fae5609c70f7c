// Products with many rows of activations.
#pragma once

#include "gpu/launch.h"

namespace ggml::GGML_GPU {

// As many rows pay for a tile of 64; fewer are better off with matmul.cu's kernel.
constexpr int kTileRows = 16;

// p.y[t][n] = p.w[n] . x[t] + p.bias[n], with the bits of matmul() for a few rows.
void matmul_tiles(DeviceStream* stream, const DeviceInput& x, const DeviceProduct& p);

}  // namespace ggml::GGML_GPU
