// The feed-forward block of many rows that compute every neuron: products with gate and up in
// tiles, then what fires is added. The sums of a row have the order, hence the bits, of ffn.cu's.
#include "cuda/ops.h"
#include "cuda/ops/ffn.h"
#include "cuda/ops/tiles.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;

// Block (x, y): places [256 x, 256 x + 256) of the list, row y. gate, and up where there is a gate:
// products without bias. gate becomes h.
__global__ void value_kernel(DeviceNeurons w, DeviceLists lists, float* gate, const float* up,
                             FfnCounts counts) {
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x), n = w.up.rows;
    const int64_t at = int64_t(blockIdx.y) * n + i;
    bool computed = false, fired = false;
    if (i < n) {
        const int neuron = lists.hot[i];
        const float* bias = up ? w.gate_bias : w.up_bias;
        float value = activate(w, gate[at] + (bias ? bias[neuron] : 0.0f));
        computed = value != 0;
        if (up && computed) {
            const float product = up[at] + (w.up_bias ? w.up_bias[neuron] : 0.0f);
            value *= w.act == Activation::drelu ? activate(w, product) : product;
        }
        gate[at] = value;
        fired = value != 0;
    }
    if (!counts.proposed) return;
    const int n_computed = __syncthreads_count(computed), n_fired = __syncthreads_count(fired);
    if (threadIdx.x != 0) return;
    atomicAdd(counts.computed, (unsigned long long)n_computed);
    atomicAdd(counts.fired, (unsigned long long)n_fired);
    if (blockIdx.x == 0) atomicAdd(counts.proposed, (unsigned long long)n);
}

// How many columns a lane of down_rows_kernel has, and rows.
constexpr int columns_of(DType type) {
    return is_float_type(type) ? 8 : kQ;
}
constexpr int rows_of(DType type) {
    return is_float_type(type) ? 8 : 4;
}

// Block (x, y): some rows from rows_of(type) x on, and a warp's columns from y on. Its warps share
// out the neurons of a part; after each part their sums are added.
template <DType type>
__global__ void down_rows_kernel(DeviceNeurons w, DeviceLists lists, int n_rows, const float* h,
                                 float* sums) {
    constexpr int wide = columns_of(type), most = rows_of(type), columns = kWarp * wide;
    constexpr int kOwn = columns / (kDownWarps * kWarp);  // columns a thread adds up
    GGML_SHARED(float, shared, kDownWarps* of_warp(wide));
    const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int cols = w.down.cols, first = int(blockIdx.y) * columns;
    const int n = w.up.rows, t0 = int(blockIdx.x) * most;
    const int rows = n_rows - t0 < most ? n_rows - t0 : most;
    const bool inside = first + wide * lane < cols;
    h += int64_t(t0) * n;
    float total[most][kOwn] = {};
    for (int part = 0; part < kDeviceParts; part++) {
        const int begin = int(int64_t(n) * part / kDeviceParts);
        const int end = int(int64_t(n) * (part + 1) / kDeviceParts);
        float sum[most][wide] = {};
        for (int i = begin + warp; i < end; i += kDownWarps) {
            float value[most];
            bool any = false;
            for (int t = 0; t < most; t++) {
                value[t] = t < rows ? h[int64_t(t) * n + i] : 0.0f;
                any = any || value[t] != 0;
            }
            if (!any) continue;
            if (!inside) continue;
            const uint8_t* row = w.down.data + row_of(w, lists.hot[i]) * w.down.stride;
            float weight[wide];
            if constexpr (is_float_type(type)) {
                load8<type>(row, first / 8 + lane, weight);
            } else {
                const PlaneOffsets at(plane_bytes(type), cols);
                const Group g = load_group<type>(row, at, first / kQ + lane);
                for (int c = 0; c < wide; c++) weight[c] = group_value<type>(g, c);
            }
            for (int t = 0; t < most; t++) {
                if (value[t] == 0) continue;
                for (int c = 0; c < wide; c++) sum[t][c] = fmaf(value[t], weight[c], sum[t][c]);
            }
        }
        for (int t = 0; t < most; t++) {
            __syncthreads();  // the row before has been added
            for (int c = 0; c < wide; c++) {
                shared[warp * of_warp(wide) + at_bank(wide, lane, c)] = sum[t][c];
            }
            __syncthreads();
            for (int k = 0; k < kOwn; k++) {
                const int c = thread + k * kDownWarps * kWarp;
                const int at = at_bank(wide, c / wide, c % wide);
                float of_part = shared[at];
                for (int other = 1; other < kDownWarps; other++) {
                    of_part += shared[other * of_warp(wide) + at];
                }
                total[t][k] += of_part;
            }
        }
    }
    for (int t = 0; t < most; t++) {
        for (int k = 0; k < kOwn; k++) {
            const int c = first + thread + k * kDownWarps * kWarp;
            if (t < rows && c < cols) sums[int64_t(t0 + t) * cols + c] = total[t][k];
        }
    }
}

}  // namespace

void every_neuron(DeviceStream* stream, const DeviceNeurons& w, const DeviceInput& x,
                  const DeviceLists& lists, const DeviceFfnScratch& scratch) {
    const DeviceProduct products[] = {{w.up, w.gate ? scratch.up : scratch.h, nullptr},
                                      {w.gate, scratch.h, nullptr}};
    by_type(products, w.gate ? 2 : 1,
            [&](const SameInput& same, int count) { launch_tiles(stream, x, same, count, {}, 0); });
    launch<value_kernel>(stream, dim3(blocks_for(w.up.rows, kThreads), unsigned(x.rows)), kThreads,
                         w, lists, scratch.h, w.gate ? scratch.up : nullptr,
                         FfnCounts(scratch.counts));
    with_type(w.down.type, [&](auto tag) {
        constexpr DType type = decltype(tag)::type;
        const dim3 grid(blocks_for(x.rows, rows_of(type)),
                        blocks_for(w.down.cols, kWarp * columns_of(type)));
        launch<down_rows_kernel<type>>(stream, grid, kDownWarps * kWarp, w, lists, x.rows,
                                       scratch.h, scratch.sums);
    });
}

}  // namespace ggml::GGML_GPU
