// Causal attention of a few rows over cached keys and values, with the bits of the CPU's
// (ops/attention.cpp): blocks of 256 positions by themselves, then their sums in order. A thread a
// position for the scores, which add column after column, and a thread a column for the values,
// which add position after position. (Flash decoding; the running softmax is Milakov and
// Gimelshein's, arXiv 1805.02867.)
#include "cuda/ops.h"
#include "cuda/ops/quantise.h"
#include "cuda/ops/rows.h"
#include "formats/value_weights.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kBlock = int(kDeviceAttentionBlock), kPage = int(kKvPage);
constexpr int kThreads = kBlock, kWarps = kThreads / kWarp;
constexpr int kPages = kBlock / kPage;
constexpr int kMostDim = int(kDeviceHeadDim), kMostBlocks = kMostDim / kQ;
constexpr int kLanes = 16;  // of the sum of weights
static_assert(kBlock == kAttentionBlock && kMostDim <= kThreads && kMostBlocks <= kWarps);

// Of the positions in shared memory: a page of the widest blocks.
constexpr int kStageBytes = kPage * kMostBlocks * int(sizeof(BlockQ8_0));

// Some positions of a block at a time in shared memory, as they lie in the cache: `step`, a power
// of two up to a page's, of `bytes` each. The next ones are on their way in registers meanwhile.
struct Stage {
    static constexpr int kUnits = (kStageBytes / 16 + kThreads - 1) / kThreads;  // of a thread
    uint4* shared;
    const uint8_t* base;
    const int64_t* page;
    int bytes, step, from, to;  // the positions that are wanted
    uint4 next[kUnits];
    int begin, end;  // of the units that are

    // Positions `first` to first + step - 1; nothing where no position of theirs is wanted.
    __device__ void fetch(int first) {
        if (first >= to) return;  // the whole block
        const int skipped = first < from ? from - first : 0;
        const int n = to - first < step ? to - first : step;
        begin = skipped * bytes / 16;
        end = (n * bytes + 15) / 16;
        const uint8_t* run = base + page[first / kPage] + first % kPage * int64_t(bytes);
        for (int k = 0; k < kUnits; k++) {
            const int i = begin + k * kThreads + int(threadIdx.x);
            if (i < end) next[k] = load16(run + 16 * int64_t(i));
        }
    }
    // Calls use(first, begin, end) for all positions, by tiles: those from `first` on are in shared
    // memory, and of them those from `begin` on and before `end` are wanted. The first ones have
    // been fetched.
    template <typename Use>
    __device__ void each(const Use& use) {
        for (int first = from / step * step; first < to; first += step) {
            __syncthreads();  // those before have been read
            for (int k = 0; k < kUnits; k++) {
                const int i = begin + k * kThreads + int(threadIdx.x);
                if (i < end) shared[i] = next[k];
            }
            __syncthreads();
            fetch(first + step);
            use(first, first < from ? from : first, first + step < to ? first + step : to);
        }
    }
    __device__ const uint8_t* at(int i) const {
        return reinterpret_cast<const uint8_t*>(shared) + i * bytes;
    }
    // Not by load(), which is for global memory.
    template <typename T>
    __device__ T read(int i, int offset) const {
        return *reinterpret_cast<const T*>(at(i) + offset);
    }
};

// ---- scores -------------------------------------------------------------------------------------

// The product of a query with a key of floats.
template <DType type, bool odd>
__device__ inline float score_of(const float* query, const uint8_t* key, int dim) {
    float sum = 0;
    if constexpr (odd) {
        for (int c = 0; c < dim; c++) {
            const float k = type == DType::F32 ? load<float>(key + 4 * c)
                                               : half_to_float(load<f16_t>(key + 2 * c));
            sum = fmaf(query[c], k, sum);
        }
        return sum;
    }
    // Lanes read their own rows, a cache line at a time, so that all of it is used while it is in
    // the L1 cache.
    constexpr int wide = 8, together = 4;
    for (int c = 0; c < dim; c += together * wide) {
        float some[together][wide];
        for (int i = 0; i < together; i++) {
            if (c + i * wide < dim) load8<type>(key, c / wide + i, some[i]);
        }
        for (int i = 0; i < together; i++) {
            if (c + i * wide >= dim) break;
            for (int k = 0; k < wide; k++) {
                sum = fmaf(query[c + i * wide + k], some[i][k], sum);
            }
        }
    }
    return sum;
}

// Block b of key i in shared memory, by a block of the query and its scale.
struct BlockProduct {
    float scale, exact;
};
__device__ inline BlockProduct block_product(const Stage& keys, int i, int b, const unsigned* query,
                                             float d) {
    // Blocks of 34 bytes begin in the middle of every second word.
    const int at = i * keys.bytes + b * int(sizeof(BlockQ8_0));
    const bool middle = at & 2;
    const unsigned* words = reinterpret_cast<const unsigned*>(keys.shared) + at / 4;
    unsigned word = words[0];
    const auto scale = f16_t(middle ? word >> 16 : word);
    int sum = 0;
    for (int k = 0; k < kQ / 4; k++) {
        const unsigned following = words[k + 1];
        const unsigned four = __byte_perm(word, following, middle ? 0x7654 : 0x5432);
        sum = __dp4a(int(four), int(query[b * kQ / 4 + k]), sum);
        word = following;
    }
    return {half_to_float(scale) * d, float(sum)};
}

// ---- the blocks ---------------------------------------------------------------------------------

// The integer weights of a page's positions for a block of 32 columns (kernels/generic/weigh.cpp),
// and what they are multiples of, by a warp.
__device__ inline void weigh_block(const Stage& values, int first, int begin, int end, int b,
                                   const float* weight, int* integers, float* unit) {
    const int lane = int(threadIdx.x) % kWarp;
    float a[2], d[2];
    for (int h = 0; h < 2; h++) {
        const int p = first + h * kWarp + lane;
        a[h] = d[h] = 0;
        if (p < begin || p >= end) continue;
        a[h] = weight[p] > 0 ? weight[p] : 0.0f;
        d[h] = half_to_float(values.read<f16_t>(p - first, b * int(sizeof(BlockQ8_0))));
    }
    const bool fit = fabsf(d[0]) < INFINITY && fabsf(d[1]) < INFINITY;
    const bool numbers = !__any_sync(kAll, !fit);
    const float most = warp_max(a[0] > a[1] ? a[0] : a[1]);
    const float largest = warp_max(fmaxf(fmaxf(d[0], d[1]), 0.0f));
    const bool some = numbers && largest > 0;
    const float inverse = most > 0 ? 1 / most : 0.0f;
    const float factor = some ? kMostWeight / largest : 0.0f;
    for (int h = 0; h < 2; h++) {
        const float share = some ? a[h] * inverse * (d[h] * factor) : 0.0f;
        integers[h * kWarp + lane] = int(rintf(share));
    }
    if (lane == 0) *unit = numbers ? most * largest * (1 / kMostWeight) : nanf("");
}

// Block (x, y, z): positions [256 x, 256 x + 256) of query head y of row z. Its sums: the weighted
// values, then the largest score and the sum of weights. Positions count from the block's first.
template <DType type, bool odd>
__global__ void attention_kernel(KvLayer layer, int position_bytes, int step, int n_head,
                                 AttentionScores how, const DeviceAttentionRow* rows,
                                 const float* q, float* sums) {
    constexpr bool quantised = type == DType::Q8_0;
    GGML_SHARED(uint4, staged, kStageBytes / 16);
    GGML_SHARED(int64_t, page, kPages);
    GGML_SHARED(float, query, quantised ? 1 : kMostDim);
    GGML_SHARED(unsigned, query8, quantised ? kMostDim / 4 : 1);
    GGML_SHARED(DeviceQ8Scale, query_scale, quantised ? kMostBlocks : 1);
    GGML_SHARED(BlockProduct, products, quantised ? kMostBlocks * kPage : 1);
    GGML_SHARED(int, integers, quantised ? kMostBlocks* kPage : 1);
    GGML_SHARED(float, unit, quantised ? kMostBlocks : 1);
    GGML_SHARED(float, weight, kBlock);
    GGML_SHARED(float, of_warp, kWarps);
    const DeviceAttentionRow row = rows[blockIdx.z];
    const int block_begin = int(blockIdx.x) * kBlock;
    const int from = row.first > block_begin ? row.first - block_begin : 0;
    const int to = row.end - block_begin < kBlock ? row.end - block_begin : kBlock;
    if (from >= to) return;  // the whole block
    const int thread = int(threadIdx.x), dim = int(layer.head_dim), head = int(blockIdx.y);
    const int column_blocks = dim / kQ;

    // Where the pages of the block begin, as far as they are read.
    if (thread < kPages) {
        const int first = thread * kPage;
        const int known = block_begin + (first < from ? from : first < to ? first : to - 1);
        page[thread] = row.pages[known / kPage] * layer.page_stride +
                       head / (n_head / int(layer.n_head_kv)) * kPage * int64_t(position_bytes);
    }
    q += (int64_t(blockIdx.z) * n_head + head) * dim;
    if (thread < dim) {
        const float value = q[thread] * how.scale;
        if constexpr (quantised) {
            DeviceInput to8;
            to8.q = reinterpret_cast<int8_t*>(query8);
            to8.s = query_scale;
            quantise_group(to8, thread, value);
        } else {
            query[thread] = value;
        }
    }
    __syncthreads();

    Stage values{staged, layer.v, page, position_bytes, step, from, to, {}, 0, 0};
    const bool inside = thread >= from && thread < to;
    float score = -INFINITY;
    if constexpr (quantised) {
        Stage keys = values;
        keys.base = layer.k;
        keys.fetch(from / step * step);
        keys.each([&](int first, int begin, int end) {
            // A product of blocks a thread; then a thread a position adds them.
            for (int i = thread; i < column_blocks * kPage; i += kThreads) {
                const int b = i / kPage, p = i % kPage;
                if (first + p < begin || first + p >= end) continue;
                products[i] = block_product(keys, p, b, query8, query_scale[b].d);
            }
            __syncthreads();
            if (thread < begin || thread >= end) return;
            score = 0;
            for (int b = 0; b < column_blocks; b++) {
                const BlockProduct part = products[b * kPage + thread - first];
                score = fmaf(part.scale, part.exact, score);
            }
        });
        values.fetch(from / step * step);
    } else {
        values.fetch(from / step * step);
        if (inside) {
            const uint8_t* key =
                layer.k + page[thread / kPage] + thread % kPage * int64_t(position_bytes);
            score = score_of<type, odd>(query, key, dim);
        }
    }
    if (how.softcap != 0 && inside) score = how.softcap * tanh_f32(score);

    // Scores that are no numbers are none of the largest.
    float top = warp_max(score > -INFINITY ? score : -INFINITY);
    if (thread % kWarp == 0) of_warp[thread / kWarp] = top;
    __syncthreads();
    for (int w = 0; w < kWarps; w++) top = of_warp[w] > top ? of_warp[w] : top;
    weight[thread] = inside ? exp_of_negative(score - top) : 0.0f;
    __syncthreads();
    float total = 0;
    if (thread < kWarp) {  // sixteen lanes, then by halves
        for (int i = thread % kLanes; i < kBlock; i += kLanes) total += weight[i];
        for (int half = kLanes / 2; half > 0; half /= 2) {
            total += __shfl_down_sync(kAll, total, unsigned(half));
        }
    }

    float sum = 0;
    values.each([&](int first, int begin, int end) {
        if constexpr (quantised) {
            const int warp = thread / kWarp;
            if (warp < column_blocks) {
                weigh_block(values, first, begin, end, warp, weight, integers + warp * kPage,
                            unit + warp);
            }
            __syncthreads();
            const int b = thread / kQ;
            if (b >= column_blocks) return;
            const int* by = integers + b * kPage - first;
            const uint8_t* codes =
                values.at(0) + b * int(sizeof(BlockQ8_0)) + offsetof(BlockQ8_0, qs) + thread % kQ;
            int exact = 0;
            for (int p = begin; p < end; p++) {
                exact += by[p] * int(int8_t(codes[(p - first) * position_bytes]));
            }
            sum = fmaf(unit[b], float(exact), sum);
        } else {
            if (thread >= dim) return;
            for (int p = begin; p < end; p++) {
                const float v = type == DType::F32
                                    ? values.read<float>(p - first, 4 * thread)
                                    : half_to_float(values.read<f16_t>(p - first, 2 * thread));
                sum = fmaf(weight[p], v, sum);
            }
        }
    });
    float* out =
        sums + ((int64_t(blockIdx.z) * n_head + head) * gridDim.x + blockIdx.x) * (dim + 2);
    if (thread < dim) out[thread] = sum;
    if (thread == 0) {
        out[dim] = top;
        out[dim + 1] = total;
    }
}

// ---- their sums ---------------------------------------------------------------------------------

__device__ inline float larger(float a, float b) {
    return a < b ? b : a;
}

// Block (x, y): query head x of row y. Adds the blocks' sums, ascending; then the head's sink
// joins.
__global__ void attention_sum_kernel(int head_dim, AttentionScores how,
                                     const DeviceAttentionRow* rows, int blocks, const float* sums,
                                     DeviceInput out) {
    GGML_SHARED(float, tops, kThreads);
    GGML_SHARED(float, shrink, kThreads);
    GGML_SHARED(float, weight, kThreads);
    const DeviceAttentionRow row = rows[blockIdx.y];
    const int begin = row.first / kBlock, end = (row.end + kBlock - 1) / kBlock;
    const int thread = int(threadIdx.x), width = head_dim + 2;
    const int64_t head = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
    sums += head * blocks * width;
    float top = -INFINITY, total = 0, value = 0;
    for (int first = begin; first < end; first += kThreads) {
        const int n = end - first < kThreads ? end - first : kThreads;
        const float* some = sums + int64_t(first) * width;
        __syncthreads();  // those before have been read
        if (thread < n) tops[thread] = some[int64_t(thread) * width + head_dim];
        __syncthreads();
        if (thread < n) {  // by how much block `thread` changes the scale of what is before it
            float before = top;
            for (int b = 0; b < thread; b++) before = larger(before, tops[b]);
            const float now = larger(before, tops[thread]);
            shrink[thread] = exp_f32(before - now);
            weight[thread] = exp_f32(tops[thread] - now);
        }
        __syncthreads();
        for (int b = 0; b < n; b++) {
            const float* part = some + int64_t(b) * width;
            top = larger(top, tops[b]);
            total = total * shrink[b] + part[head_dim + 1] * weight[b];
            if (thread < head_dim) value = shrink[b] * value + weight[b] * part[thread];
        }
    }
    if (how.sinks) {
        const float sink = how.sinks[blockIdx.x], most = larger(top, sink);
        const float less = exp_f32(top - most);
        total = total * less + exp_f32(sink - most);
        value *= less;
    }
    if (thread >= head_dim) return;
    const int64_t i = head * head_dim + thread;
    value /= total;
    out.x[i] = value;
    if (out.q) quantise_group(out, i, value);
}

}  // namespace

void attention(DeviceStream* stream, const KvLayer& layer, int n_head, const AttentionScores& how,
               const DeviceAttentionRow* rows, int n, const float* q,
               const DeviceAttentionScratch& scratch, const DeviceInput& out) {
    const int bytes = int(layer.key_bytes());
    int step = kPage;
    while (step * bytes > kStageBytes) step /= 2;
    AttentionScores scaled = how;
    if (how.softcap != 0) scaled.scale = how.scale / how.softcap;
    const auto run = [&](auto chosen) {
        const dim3 grid(unsigned(scratch.blocks), unsigned(n_head), unsigned(n));
        launch<decltype(chosen)::value>(stream, grid, kThreads, layer, bytes, step, n_head, scaled,
                                        rows, q, scratch.sums);
    };
    const bool odd = layer.head_dim % 8;
    if (layer.type == DType::Q8_0) {
        run(Kernel<attention_kernel<DType::Q8_0, false>>());
    } else if (layer.type == DType::F16) {
        odd ? run(Kernel<attention_kernel<DType::F16, true>>())
            : run(Kernel<attention_kernel<DType::F16, false>>());
    } else {
        odd ? run(Kernel<attention_kernel<DType::F32, true>>())
            : run(Kernel<attention_kernel<DType::F32, false>>());
    }
    // Heads of whole groups of 32 are made 8 bits by the way.
    const bool later = out.q && layer.head_dim % kQ;
    DeviceInput summed = out;
    if (later) summed.q = nullptr;
    launch<attention_sum_kernel>(stream, dim3(unsigned(n_head), unsigned(n)), kThreads,
                                 int(layer.head_dim), how, rows, scratch.blocks, scratch.sums,
                                 summed);
    if (later) quantise(stream, out);
}

}  // namespace ggml::GGML_GPU
