// Scores from the signs of weights (ggml/sketch.h). A kernel makes bit planes of the input, another
// counts over the rows. The counts are integers and the unit is summed in the CPU's order, so the
// bits are the CPU's.
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "formats/sketch_levels.h"

namespace ggml::GGML_GPU {

namespace {

// ---- the input ----------------------------------------------------------------------------------

constexpr int kThreads = int(kSketchSums);
constexpr int kWarps = kThreads / kWarp;

// The sum of a value over the block, the same in every thread: in the order of sketch_levels.h.
__device__ inline double block_sum(double value, double* shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    double sums[kWarps];
    for (int w = 0; w < kWarps; w++) sums[w] = shared[w * kWarp + threadIdx.x % kWarp];
    for (int apart = kWarps / 2; apart > 0; apart /= 2) {
        for (int w = 0; w < apart; w++) sums[w] += sums[w + apart];
    }
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
        sums[0] += __shfl_xor_sync(kAll, sums[0], apart);
    }
    return sums[0];
}

// One block an input: its planes, word by word. A warp's ballots are the words of 32 columns.
__global__ void split_kernel(const float* x, int cols, DeviceSketchScratch s) {
    GGML_SHARED(double, sums, kThreads);
    GGML_SHARED(int, totals, kWarps);
    const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int words = device_sketch_words(cols);
    x += int64_t(blockIdx.x) * cols;
    uint32_t* planes = s.planes + int64_t(blockIdx.x) * 4 * words;
    double sum = 0;
    for (int i = thread; i < cols; i += kThreads) sum += double(fabsf(x[i]));
    const float unit = sketch_unit(block_sum(sum, sums), cols);
    const float inverse = sketch_inverse(unit);
    int total = 0;
    for (int word = warp; word < words; word += kWarps) {
        const int i = word * kWarp + lane;
        const int bits = i < cols ? sketch_bits(x[i], inverse) : 0;
        for (int p = 0; p < 4; p++) {
            const unsigned plane = __ballot_sync(kAll, bits >> p & 1);
            if (p > 0) total += __popc(plane) << (p - 1);
            if (lane == p) planes[p * words + word] = plane;
        }
    }
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    if (thread == 0) {
        for (int w = 1; w < kWarps; w++) total += totals[w];
        s.unit[blockIdx.x] = unit;
        s.total[blockIdx.x] = total;
    }
}

// ---- the rows -----------------------------------------------------------------------------------

constexpr int kRowWarps = 4;
constexpr int kRows = 4;  // rows of a warp, which share a reading of the planes

// The sum of the levels where signs differ.
__device__ inline int count(unsigned signs, unsigned x, unsigned bits0, unsigned bits1,
                            unsigned bits2) {
    const unsigned differ = signs ^ x;
    return __popc(differ & bits0) + (__popc(differ & bits1) << 1) + (__popc(differ & bits2) << 2);
}
__device__ inline int count(const uint4& signs, const uint4& x, const uint4& bits0,
                            const uint4& bits1, const uint4& bits2) {
    return count(signs.x, x.x, bits0.x, bits1.x, bits2.x) +
           count(signs.y, x.y, bits0.y, bits1.y, bits2.y) +
           count(signs.z, x.z, bits0.z, bits1.z, bits2.z) +
           count(signs.w, x.w, bits0.w, bits1.w, bits2.w);
}

// Rows are whole Parts, of which a lane reads one at a time. Block y is of input y.
template <typename Part>
__global__ void score_kernel(DeviceSketch w, DeviceSketchScratch s, float* score) {
    const int lane = int(threadIdx.x) % kWarp, t = int(blockIdx.y);
    const int first = (int(blockIdx.x) * kRowWarps + int(threadIdx.x) / kWarp) * kRows;
    const int words = device_sketch_words(w.cols), parts = w.cols / 8 / int(sizeof(Part));
    const Part* planes[4];
    for (int p = 0; p < 4; p++) {
        planes[p] = reinterpret_cast<const Part*>(s.planes + (int64_t(t) * 4 + p) * words);
    }
    const Part* rows[kRows];  // the last one again beyond the end, so that all loads start at once
    int differing[kRows];
    for (int r = 0; r < kRows; r++) {
        const int row = first + r < w.rows ? first + r : w.rows - 1;
        rows[r] = reinterpret_cast<const Part*>(w.signs) + int64_t(row) * parts;
        differing[r] = 0;
    }
    for (int i = lane; i < parts; i += kWarp) {
        const Part x = planes[0][i], b0 = planes[1][i], b1 = planes[2][i], b2 = planes[3][i];
        for (int r = 0; r < kRows; r++) differing[r] += count(rows[r][i], x, b0, b1, b2);
    }
    for (int r = 0; r < kRows; r++) {
        if (first + r >= w.rows) break;  // a whole warp
        int sum = differing[r];
        for (int apart = kWarp / 2; apart > 0; apart /= 2) {
            sum += __shfl_xor_sync(kAll, sum, apart);
        }
        float value = s.unit[t] * float(s.total[t] - 2 * sum);
        if (w.offset) value += w.offset[first + r];
        if (lane == 0) score[int64_t(t) * w.rows + first + r] = value;
    }
}

}  // namespace

void sketch_scores(DeviceStream* stream, const DeviceSketch& w, const float* x, int n,
                   const DeviceSketchScratch& s, float* score) {
    launch<split_kernel>(stream, unsigned(n), kThreads, x, w.cols, s);
    const dim3 grid(blocks_for(w.rows, kRowWarps * kRows), unsigned(n));
    if (w.cols % 128 == 0) {
        launch<score_kernel<uint4>>(stream, grid, kRowWarps * kWarp, w, s, score);
    } else if (w.cols % 32 == 0) {
        launch<score_kernel<unsigned>>(stream, grid, kRowWarps * kWarp, w, s, score);
    } else {
        launch<score_kernel<uint8_t>>(stream, grid, kRowWarps * kWarp, w, s, score);
    }
}

}  // namespace ggml::GGML_GPU
