// Products of weights with a few rows of activations: a warp per row of weights.
#include "cuda/ops.h"
#include "cuda/ops/rows.h"
#include "cuda/ops/tiles.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kRows = 4;  // rows of weights in a block, one a warp
constexpr int kMost = 8;  // rows of activations that share a reading of the weights

// Block x takes kRows rows of weights, block y `most` rows of activations.
template <DType type, int most>
__global__ void matmul_kernel(DeviceInput x, DeviceProduct p) {
    const int lane = int(threadIdx.x) % kWarp;
    const int row = int(blockIdx.x) * kRows + int(threadIdx.x) / kWarp;
    if (row >= p.w.rows) return;  // a whole warp
    const int first = int(blockIdx.y) * most;
    const int n = x.rows - first < most ? x.rows - first : most;
    float sum[most];
    row_dot<type, most>(p.w.data + row * p.w.stride, x, first, n, lane, sum);
    const float bias = p.bias ? p.bias[row] : 0.0f;
    for (int t = 0; t < most; t++) {
        if (t >= n) break;
        const float total = lanes_sum(sum[t]);
        if (lane == 0) p.y[int64_t(first + t) * p.w.rows + row] = total + bias;
    }
}

template <DType type, int most>
void launch_product(DeviceStream* stream, const DeviceInput& x, const DeviceProduct& p) {
    const dim3 grid(blocks_for(p.w.rows, kRows), blocks_for(x.rows, most));
    launch<matmul_kernel<type, most>>(stream, grid, kRows * kWarp, x, p);
}

}  // namespace

void matmul(DeviceStream* stream, const DeviceInput& x, const DeviceProduct* products, int n) {
    for (int i = 0; i < n; i++) {
        if (x.rows >= kDeviceTileRows) {
            matmul_tiles(stream, x, products[i]);
            continue;
        }
        with_type(products[i].w.type, [&](auto tag) {
            constexpr DType type = decltype(tag)::type;
            if (x.rows == 1) {
                launch_product<type, 1>(stream, x, products[i]);
            } else {
                launch_product<type, kMost>(stream, x, products[i]);
            }
        });
    }
}

}  // namespace ggml::GGML_GPU
