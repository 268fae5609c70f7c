// What the kernels of attention share: over keys and values of floats (attention.cu) and of blocks
// of 8 bits (attention_q8.cu).
//
// A block of threads has 256 positions and some queries that share a KV head: those of the heads of
// a group, of one row or of neighbouring rows of a sequence. They read keys and values once. What
// each of them adds, and in which order, is as if it were alone: the CPU's (ops/attention.cpp).
#pragma once

#include <climits>

#include "cuda/ops/rows.h"

namespace ggml::GGML_GPU {

constexpr int kPositions = int(kDeviceAttentionBlock), kPage = int(kKvPage);
constexpr int kPages = kPositions / kPage;
constexpr int kAttentionThreads = 256, kAttentionWarps = kAttentionThreads / kWarp;
constexpr int kWeightLanes = 16;  // of the sum of weights
static_assert(kPositions == kAttentionBlock && kAttentionThreads == kPositions);

// The keys or the values of a layer: `width` bytes of each position, whose rows are `bytes` apart.
struct KvRows {
    const uint8_t* base;
    int64_t page_stride;
    int bytes, width, dim;
};

// A call of attention(). Grid: blocks of positions; parts of the heads of a group for each KV head;
// rows.
struct AttentionCall {
    KvRows keys, values;
    int n_head, group;  // heads of a KV head
    int heads, tile;    // of a block of threads: heads of a group, and rows at most
    float scale, softcap;
    const DeviceAttentionRow* rows;
    const float* q;
    float* sums;

    __device__ int parts() const { return (group + heads - 1) / heads; }
    // Sums of a query for this block of positions.
    __device__ float* sums_of(int number) const {
        return sums + (int64_t(number) * gridDim.x + blockIdx.x) * (values.dim + 2);
    }
};

// Which queries a block of threads has. Positions count from the block's first.
struct Queries {
    int row, head, heads;  // the first row and head; heads of a row
    int n;                 // heads of all rows
    int kv_head, begin;    // begin: the block's first position
    int from, to;          // positions that one of them sees
    int all_from, all_to;  // positions that all of them see

    // The number of query i among the heads of all rows.
    __device__ int number(const AttentionCall& call, int i) const {
        return (row + i / heads) * call.n_head + head + i % heads;
    }
    __device__ bool all_see(int first, int end) const { return first >= all_from && end <= all_to; }
};

__device__ inline int at_least_0(int i) {
    return i > 0 ? i : 0;
}
__device__ inline int at_most(int i, int most) {
    return i < most ? i : most;
}

// The first row of each sequence in a tile has the block for all of its rows there: the rows of
// other sequences have others. n is 0 if another block has this row, or if no position is seen.
__device__ inline Queries queries_of(const AttentionCall& call) {
    Queries mine;
    const int tile = int(blockIdx.z) / call.tile * call.tile;
    mine.row = int(blockIdx.z);
    mine.n = 0;
    const DeviceAttentionRow* rows = call.rows;
    const int32_t* pages = rows[mine.row].pages;
    if (mine.row > tile && rows[mine.row - 1].pages == pages) return mine;
    int first = INT_MAX, end = 0, all_first = 0, all_end = INT_MAX, n = 0;
    for (int t = mine.row; t < tile + call.tile && t < int(gridDim.z); t++, n++) {
        const DeviceAttentionRow row = rows[t];
        if (row.pages != pages) break;
        first = at_most(first, row.first);
        end = row.end > end ? row.end : end;
        all_first = row.first > all_first ? row.first : all_first;
        all_end = at_most(all_end, row.end);
    }
    mine.begin = int(blockIdx.x) * kPositions;
    mine.from = at_least_0(first - mine.begin);
    mine.to = at_most(end - mine.begin, kPositions);
    mine.all_from = at_least_0(all_first - mine.begin);
    mine.all_to = at_most(all_end - mine.begin, kPositions);
    if (mine.from >= mine.to) return mine;
    const int part = int(blockIdx.y) % call.parts();
    mine.kv_head = int(blockIdx.y) / call.parts();
    mine.heads = at_most(call.heads, call.group - part * call.heads);
    mine.head = mine.kv_head * call.group + part * call.heads;
    mine.n = n * mine.heads;
    return mine;
}

// What threads share of the queries: the positions that each sees, its number among all heads, and
// where the pages of its sequence begin in keys and values.
struct SharedQueries {
    int *from, *to, *number;
    int64_t *key_page, *value_page;
};
template <int most>
__device__ inline void share_queries(const AttentionCall& call, const Queries& mine,
                                     const SharedQueries& shared) {
    const int i = int(threadIdx.x);
    if (i < most) {
        const bool is = i < mine.n;
        const DeviceAttentionRow row = call.rows[mine.row + (is ? i / mine.heads : 0)];
        shared.from[i] = is ? at_least_0(row.first - mine.begin) : 0;
        shared.to[i] = is ? at_most(row.end - mine.begin, kPositions) : 0;
        shared.number[i] = mine.number(call, is ? i : 0);
    }
    if (i < kPages) {
        // Not of pages that are not read: there may be none.
        const int page = at_most(i * kPage > mine.from ? i * kPage : mine.from, mine.to - 1);
        const int64_t at = call.rows[mine.row].pages[(mine.begin + page) / kPage];
        const int64_t run = int64_t(mine.kv_head) * kPage;
        shared.key_page[i] = at * call.keys.page_stride + run * call.keys.bytes;
        shared.value_page[i] = at * call.values.page_stride + run * call.values.bytes;
    }
}

// The scores of the queries [n, kPositions] become the weights of values. Largest score and sum of
// weights of each go where sums of this block do.
template <int most>
__device__ inline void softmax(const AttentionCall& call, const Queries& mine,
                               const SharedQueries& shared, float* weight, float* top) {
    const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    __syncthreads();  // the scores are there
    for (int i = warp; i < mine.n; i += kAttentionWarps) {
        // Scores that are no numbers are none of the largest.
        float largest = -INFINITY;
        for (int p = lane; p < kPositions; p += kWarp) {
            const bool seen = p >= shared.from[i] && p < shared.to[i];
            const float score = seen ? weight[i * kPositions + p] : -INFINITY;
            largest = score > largest ? score : largest;
        }
        largest = warp_max(largest);
        if (lane == 0) top[i] = largest;
    }
    __syncthreads();
    for (int i = 0; i < mine.n; i++) {
        const bool seen = thread >= shared.from[i] && thread < shared.to[i];
        float* const w = weight + i * kPositions + thread;
        *w = seen ? exp_of_negative(*w - top[i]) : 0.0f;
    }
    __syncthreads();
    // Sixteen lanes, then by halves.
    const int i = thread / kWeightLanes, first = thread % kWeightLanes;
    float total = 0;
    for (int p = first; i < mine.n && p < kPositions; p += kWeightLanes) {
        total += weight[i * kPositions + p];
    }
    for (int half = kWeightLanes / 2; half > 0; half /= 2) {
        total += __shfl_down_sync(kAll, total, unsigned(half));
    }
    if (i < mine.n && first == 0) {
        float* const out = call.sums_of(shared.number[i]) + call.values.dim;
        out[0] = top[i];
        out[1] = total;
    }
}

__device__ inline float capped(const AttentionCall& call, float score) {
    return call.softcap != 0 ? call.softcap * tanh_f32(score) : score;
}

// Queries of a block of threads at most, by how many share a KV head.
constexpr int kMostQueries = 16;

// The kernels for blocks of 8 bits. call.heads * call.tile is at most kMostQueries.
void attention_q8(DeviceStream* stream, const AttentionCall& call, dim3 grid);

}  // namespace ggml::GGML_GPU
