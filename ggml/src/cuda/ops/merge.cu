// Where the halves of a split layer meet: the device gives the CPU its half, and adds what both
// sent down.
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/ops/exchange.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;
constexpr int kPublished = 4;  // values a thread

__global__ void publish_kernel(DeviceInput x, DeviceLists lists, DeviceExchange to) {
    const int t = int(blockIdx.y), list = lists.rows == 1 ? 0 : t;
    const int n = lists.count[2 * list + 1];
    const int begin = int(blockIdx.x) * kThreads * kPublished + int(threadIdx.x);
    const int64_t row = int64_t(t) * x.cols, ids = int64_t(list) * lists.n;
    for (int k = 0; k < kPublished; k++) {
        const int i = begin + k * kThreads;
        if (n > 0 && i < x.cols) to.x[row + i] = x.x[row + i];
        if (to.ids && t == list && i < n) to.ids[ids + i] = lists.cold[ids + i];
    }
    if (begin == 0 && t == list) to.count[list] = n;
    publish_written(to);
}

// The parts of a row in order, then what other neurons sent down, then the bias.
__device__ inline float merged(const DeviceSums& here, int64_t row, const float* other,
                               const float* bias, int c) {
    float total = 0;
    const float* sums = here.sums ? here.sums + row * here.parts * here.cols + c : nullptr;
    for (int part = 0; sums && part < here.parts; part++) total += sums[int64_t(part) * here.cols];
    if (other) total = other[row * here.cols + c] + total;
    return bias ? total + bias[c] : total;
}

__global__ void merge_kernel(DeviceSums here, const float* other, const float* bias, float* y) {
    const int c = int(blockIdx.x) * kThreads + int(threadIdx.x);
    const int64_t row = blockIdx.y;
    if (c < here.cols) y[row * here.cols + c] = merged(here, row, other, bias, c);
}

// Few blocks (await_answer()).
constexpr int kMerged = 4;  // columns a thread
constexpr int kMergedRows = 8;

// Has any list rows that the CPU computes?
__device__ inline bool any_cold(const DeviceLists& lists) {
    for (int t = 0; t < lists.rows; t++) {
        if (lists.count[2 * t + 1] > 0) return true;
    }
    return false;
}

__global__ void merge_answer_kernel(DeviceSums here, DeviceLists lists, DeviceExchange from,
                                    const float* bias, float* y) {
    await_answer(from, threadIdx.x == 0 && any_cold(lists));
    for (int64_t row = blockIdx.y; row < here.rows; row += gridDim.y) {
        const int32_t* count = lists.count + (lists.rows == 1 ? 0 : 2 * row);
        DeviceSums hot = here;
        if (count[0] == 0) hot.sums = nullptr;
        const float* cold = count[1] > 0 ? from.sums : nullptr;
        for (int k = 0; k < kMerged; k++) {
            const int c = (int(blockIdx.x) * kMerged + k) * kThreads + int(threadIdx.x);
            if (c < here.cols) y[row * here.cols + c] = merged(hot, row, cold, bias, c);
        }
    }
}

}  // namespace

void publish(DeviceStream* stream, const DeviceInput& x, const DeviceLists& lists,
             const DeviceExchange& to) {
    const int most = to.ids && lists.n > x.cols ? lists.n : x.cols;
    const dim3 grid(blocks_for(most, kThreads * kPublished), unsigned(x.rows));
    launch<publish_kernel>(stream, grid, kThreads, x, lists, to);
}

void merge(DeviceStream* stream, const DeviceSums& here, const float* other, const float* bias,
           float* y) {
    const dim3 grid(blocks_for(here.cols, kThreads), unsigned(here.rows));
    launch<merge_kernel>(stream, grid, kThreads, here, other, bias, y);
}

void merge_answer(DeviceStream* stream, const DeviceSums& here, const DeviceLists& lists,
                  const DeviceExchange& from, const float* bias, float* y) {
    const dim3 grid(blocks_for(here.cols, kThreads * kMerged),
                    unsigned(here.rows < kMergedRows ? here.rows : kMergedRows));
    launch<merge_answer_kernel>(stream, grid, kThreads, here, lists, from, bias, y);
}

}  // namespace ggml::GGML_GPU
