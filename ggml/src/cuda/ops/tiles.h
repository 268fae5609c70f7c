// Products with many rows of activations.
#pragma once

#include "cuda/launch.h"
#include "cuda/ops/products.h"

namespace ggml::GGML_GPU {

// n products of one type, with the bits of those of a few rows. pairs: of a mixture.
void launch_tiles(DeviceStream* stream, const DeviceInput& x, const SameInput& products, int n,
                  const Mixture& mixture, int pairs);

// p.y[t][n] = p.w[n] . x[t] + p.bias[n], with the bits of matmul() for a few rows.
inline void matmul_tiles(DeviceStream* stream, const DeviceInput& x, const DeviceProduct& p) {
    launch_tiles(stream, x, {{p, {}, {}}}, 1, {}, 0);
}

}  // namespace ggml::GGML_GPU
