// What puts products into a stream: of matrices, and of a mixture's experts.
#pragma once

#include "cuda/launch.h"
#include "cuda/ops/products.h"

namespace ggml::GGML_GPU {

// n products of one type: a block for a few rows of weights and of activations, or tiles of 64 of
// each. The bits are the same. pairs: of a mixture.
void launch_few(DeviceStream* stream, const DeviceInput& x, const SameInput& products, int n,
                const Mixture& mixture, int pairs);
void launch_tiles(DeviceStream* stream, const DeviceInput& x, const SameInput& products, int n,
                  const Mixture& mixture, int pairs);

// Calls multiply(products, n) for products that stand side by side and have one type.
template <typename Multiply>
void by_type(const DeviceProduct* products, int n, const Multiply& multiply) {
    for (int i = 0; i < n;) {
        SameInput same;
        int count = 0;
        const DType type = products[i].w.type;
        while (i < n && count < kTogether && products[i].w.type == type) {
            same.p[count] = products[i++];
            if (!same.p[count].y_row) same.p[count].y_row = same.p[count].w.rows;
            count++;
        }
        multiply(same, count);
    }
}

}  // namespace ggml::GGML_GPU
