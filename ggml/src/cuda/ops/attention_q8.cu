// Attention over keys and values in blocks of 8 bits, on tensor cores. A block of 32 columns adds
// an exact integer to a score, and a page of 64 positions one to a column of values, whatever the
// order of what it sums: so only the additions of those, a few for each result, are in the CPU's
// order.
#include "cuda/ops/attention.h"
#include "cuda/ops/quantise.h"
#include "formats/value_weights.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = kAttentionThreads;
constexpr int kBlockBytes = int(sizeof(BlockQ8_0));
constexpr int kSlabBlocks = 4;  // of a row that are staged at a time, for the positions of a page
constexpr int kMostBlocks = int(kDeviceHeadDim) / kQ;
// Rows of bytes in shared memory whose parts that lanes read at once lie in different banks.
constexpr int kQueryWords = int(kDeviceHeadDim) / 4 + 4, kWeightWords = kPage / 4 + 4;

// What is on its way to shared memory, in registers meanwhile.
constexpr int kUnits = (kPage * kSlabBlocks * kBlockBytes / 16 + kThreads - 1) / kThreads;
using Underway = unsigned[4 * kUnits];  // of a thread

// Some blocks of the rows of a page. In shared memory they lie without gaps. What nobody wants is
// 0.
struct PageSlab {
    static constexpr int kLanes = 16, kDown = kThreads / kLanes, kDeep = kPage / kDown;
    static constexpr int kWords = (kSlabBlocks * kBlockBytes / 4 + kLanes - 1) / kLanes;
    static_assert(kWords * kDeep <= 4 * kUnits);
    const KvRows rows;
    const int64_t* page;
    const int from, to;               // positions that are wanted
    int first = 0, block = 0, n = 0;  // of the slab: its first position and block, and blocks
    int width = 0;                    // bytes of a row of the slab

    __device__ PageSlab(const KvRows& of, const int64_t* pages, int wanted_from, int wanted_to)
        : rows(of), page(pages), from(wanted_from), to(wanted_to) {}

    __device__ bool whole_rows() const { return rows.bytes == width; }
    __device__ bool whole_words() const { return rows.bytes % 4 == 0; }
    __device__ const uint8_t* run() const {
        return rows.base + page[unsigned(first) / kPage] + block * kBlockBytes;
    }

    __device__ void fetch(int first_position, int first_block, Underway& next) {
        first = first_position;
        block = first_block;
        n = at_most(rows.dim / kQ - block, kSlabBlocks);
        width = n * kBlockBytes;
        const unsigned begin = unsigned(at_least_0(from - first));
        const auto end = unsigned(at_least_0(at_most(to - first, kPage)));
        const unsigned thread = threadIdx.x;
        const uint8_t* const of_page = run();
        if (whole_rows()) {
            const unsigned first_unit = begin * unsigned(width) / 16;
            const unsigned end_unit = (end * unsigned(width) + 15) / 16;
            for (int k = 0; k < kUnits; k++) {
                const unsigned i = unsigned(k) * kThreads + thread;
                uint4 some{0, 0, 0, 0};
                if (i >= first_unit && i < end_unit) some = load16(of_page + 16 * i);
                next[4 * k] = some.x, next[4 * k + 1] = some.y;
                next[4 * k + 2] = some.z, next[4 * k + 3] = some.w;
            }
        } else if (whole_words()) {
            for (int d = 0; d < kDeep; d++) {
                const unsigned p = unsigned(d) * kDown + thread / kLanes;
                const uint8_t* row = of_page + p * int64_t(rows.bytes);
                for (int k = 0; k < kWords; k++) {
                    const unsigned i = unsigned(k) * kLanes + thread % kLanes;
                    const bool wanted = p >= begin && p < end && i < unsigned(width) / 4;
                    next[d * kWords + k] = wanted ? load<unsigned>(row + 4 * i) : 0;
                }
            }
        }
    }
    // What has been fetched, to shared memory.
    __device__ void store(const Underway& next, uint4* shared) const {
        const unsigned thread = threadIdx.x;
        if (whole_rows()) {
            for (int k = 0; k < kUnits; k++) {
                const unsigned i = unsigned(k) * kThreads + thread;
                if (i >= unsigned(kPage * width) / 16) break;
                shared[i] = {next[4 * k], next[4 * k + 1], next[4 * k + 2], next[4 * k + 3]};
            }
            return;
        }
        const unsigned down = thread / kLanes;
        if (whole_words()) {
            auto* const words = reinterpret_cast<unsigned*>(shared);
            for (int d = 0; d < kDeep; d++) {
                for (int k = 0; k < kWords; k++) {
                    const unsigned i = unsigned(k) * kLanes + thread % kLanes;
                    if (i >= unsigned(width) / 4) break;
                    words[(unsigned(d) * kDown + down) * unsigned(width) / 4 + i] =
                        next[d * kWords + k];
                }
            }
            return;
        }
        for (int p = int(down); p < kPage; p += kDown) {
            const bool wanted = first + p >= from && first + p < to;
            const uint8_t* row = run() + p * int64_t(rows.bytes);
            auto* const halves = reinterpret_cast<uint16_t*>(shared) + p * width / 2;
            for (int i = int(thread % kLanes); i < width / 2; i += kLanes) {
                halves[i] = wanted ? load<uint16_t>(row + 2 * i) : uint16_t(0);
            }
        }
    }
};

// Block b of the row of position p of a slab, as it lies in shared memory.
struct StagedBlocks {
    const uint8_t* bytes;
    int width;

    __device__ const uint8_t* at(int p, int b) const { return bytes + p * width + b * kBlockBytes; }
    __device__ float scale(int p, int b) const {
        return half_to_float(*reinterpret_cast<const f16_t*>(at(p, b)));
    }
    // Two neighbouring codes, from an even one on.
    __device__ unsigned two(int p, int b, int c) const {
        return *reinterpret_cast<const uint16_t*>(at(p, b) + offsetof(BlockQ8_0, qs) + c);
    }
    __device__ unsigned four(int p, int b, int c) const {
        return two(p, b, c) | two(p, b, c + 2) << 16;
    }
};

// For weigh(): of each query and page, the largest weight and 1 / it.
struct Largest {
    float weight, inverse;
};
// The integer weights of the positions of a page for each query and each block of columns
// (kernels/generic/weigh.cpp), as two bytes of seven bits, and what they are multiples of.
template <int most>
struct IntegerWeights {
    uint8_t *low, *high;  // [kSlabBlocks][most] rows of kWeightWords
    float* unit;          // [kSlabBlocks][most]

    __device__ int row(int b, int i) const { return b * most + i; }
};

// A warp has one block of columns and every second query; a lane two positions.
template <int most>
__device__ inline void weigh(const StagedBlocks& values, int n_blocks, const Queries& mine,
                             const SharedQueries& shared, int first, const float* weight,
                             const Largest* largest_weight, const IntegerWeights<most>& out) {
    const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
    const int b = warp % kSlabBlocks;
    if (b >= n_blocks) return;
    const bool whole = mine.all_see(first, first + kPage);
    float d[2], largest = 0;
    bool numbers = true;
    for (int h = 0; h < 2; h++) d[h] = values.scale(2 * lane + h, b);
    for (int i = warp / kSlabBlocks; i < mine.n; i += kAttentionWarps / kSlabBlocks) {
        float own[2] = {d[0], d[1]};
        if (!whole || i < kAttentionWarps / kSlabBlocks) {  // else as for the query before
            for (int h = 0; h < 2; h++) {
                const int p = first + 2 * lane + h;
                if (p < shared.from[i] || p >= shared.to[i]) own[h] = 0;
            }
            const bool fit = fabsf(own[0]) < INFINITY && fabsf(own[1]) < INFINITY;
            numbers = !__any_sync(kAll, !fit);
            largest = warp_max(fmaxf(fmaxf(own[0], own[1]), 0.0f));
        }
        const Largest by = largest_weight[i * kPages + first / kPage];
        const bool some = numbers && largest > 0;
        const float factor = some ? kMostWeight / largest : 0.0f;
        int integer[2];
        for (int h = 0; h < 2; h++) {
            const float w = weight[i * kPositions + first + 2 * lane + h];
            const float share = some ? (w > 0 ? w : 0.0f) * by.inverse * (own[h] * factor) : 0.0f;
            integer[h] = int(rintf(share));
        }
        const int at = out.row(b, i) * kWeightWords * 4 + 2 * lane;
        const int low0 = integer[0] & 127, low1 = integer[1] & 127;
        *reinterpret_cast<uint16_t*>(out.low + at) = uint16_t(low0 | low1 << 8);
        *reinterpret_cast<uint16_t*>(out.high + at) =
            uint16_t(integer[0] >> kWeightBits | integer[1] >> kWeightBits << 8);
        if (lane == 0) {
            const float unit = numbers ? by.weight * largest * (1 / kMostWeight) : nanf("");
            out.unit[out.row(b, i)] = by.weight > 0 ? unit : 0.0f;
        }
    }
}

template <int most>
__global__ void __launch_bounds__(kThreads, 2) attention_q8_kernel(AttentionCall call) {
    constexpr int halves = most / 8;  // of the rows of a product on tensor cores
    constexpr int query_words = most * kQueryWords + 2 * most * kMostBlocks;
    constexpr int integer_words = 2 * kSlabBlocks * most * kWeightWords;
    GGML_SHARED(uint4, staged, kPage * kSlabBlocks * kBlockBytes / 16);
    GGML_SHARED(float, weight, most* kPositions);
    // Queries in 8 bits and their scales; then integer weights.
    GGML_SHARED(uint4, words, (query_words > integer_words ? query_words : integer_words) / 4);
    GGML_SHARED(float, unit, most* kSlabBlocks);
    GGML_SHARED(Largest, largest, most * kPages);
    GGML_SHARED(float, top, most);
    GGML_SHARED(int, from, most);
    GGML_SHARED(int, to, most);
    GGML_SHARED(int, number, most);
    GGML_SHARED(int64_t, key_page, kPages);
    GGML_SHARED(int64_t, value_page, kPages);
    const SharedQueries shared{from, to, number, key_page, value_page};
    const Queries mine = queries_of(call);
    if (mine.n == 0) return;  // the whole block
    share_queries<most>(call, mine, shared);
    __syncthreads();

    const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int dim = call.keys.dim, blocks = dim / kQ;
    const int page_first = mine.from / kPage * kPage;
    PageSlab keys(call.keys, key_page, mine.from, mine.to);
    PageSlab values(call.values, value_page, mine.from, mine.to);
    Underway next{};
    keys.fetch(page_first, 0, next);
    auto* const query8 = reinterpret_cast<unsigned*>(words);
    auto* const query_scale = reinterpret_cast<DeviceQ8Scale*>(query8 + most * kQueryWords);
    for (int i = thread; i < mine.n * dim; i += kThreads) {  // whole warps
        const int query = i / dim, c = i % dim;
        DeviceInput to8;
        to8.q = reinterpret_cast<int8_t*>(query8 + query * kQueryWords);
        to8.s = query_scale + query * kMostBlocks;
        quantise_group(to8, c, call.q[int64_t(number[query]) * dim + c] * call.scale);
    }
    // Which rows of a product a lane has: there may be fewer queries.
    int row[halves];
    for (int r = 0; r < halves; r++) row[r] = at_most(lane / 4 + 8 * r, mine.n - 1);

    // Scores: a warp has eight positions of a page.
    for (int first = page_first; first < mine.to; first += kPage) {
        float score[4] = {};
        for (int block = 0; block < blocks; block += kSlabBlocks) {
            __syncthreads();  // what was staged before has been read, and queries are there
            keys.store(next, staged);
            __syncthreads();
            const StagedBlocks some{reinterpret_cast<const uint8_t*>(staged), keys.width};
            const int n = keys.n;
            const bool last = block + kSlabBlocks >= blocks;
            const int next_first = last ? first + kPage : first;
            if (next_first < mine.to) keys.fetch(next_first, last ? 0 : block + kSlabBlocks, next);
            for (int b = 0; b < n; b++) {
                int exact[4] = {};
                unsigned x[4] = {}, key[2];
                for (int k = 0; k < 2; k++) {
                    const int word = (block + b) * kQ / 4 + 4 * k + lane % 4;
                    for (int r = 0; r < halves; r++)
                        x[2 * k + r] = query8[row[r] * kQueryWords + word];
                    key[k] = some.four(8 * warp + lane / 4, b, 16 * k + 4 * (lane % 4));
                }
                multiply_bytes(exact, x, key);
                for (int c = 0; c < 2; c++) {
                    const float d = some.scale(8 * warp + lane % 4 * 2 + c, b);
                    for (int r = 0; r < halves; r++) {
                        const float by = d * query_scale[row[r] * kMostBlocks + block + b].d;
                        score[2 * r + c] = fmaf(by, float(exact[2 * r + c]), score[2 * r + c]);
                    }
                }
            }
        }
        for (int r = 0; r < halves; r++) {
            if (lane / 4 + 8 * r >= mine.n) continue;
            float* const to_row = weight + row[r] * kPositions + first + 8 * warp + lane % 4 * 2;
            for (int c = 0; c < 2; c++) to_row[c] = capped(call, score[2 * r + c]);
        }
    }
    values.fetch(page_first, 0, next);
    softmax<most>(call, mine, shared, weight, top);
    for (int i = warp; i < mine.n * kPages; i += kAttentionWarps) {
        const float* of = weight + i * kPage;
        const float a = of[lane], b = of[lane + kWarp];
        const float most_weight = warp_max(fmaxf(fmaxf(a, b), 0.0f));
        if (lane == 0) largest[i] = {most_weight, most_weight > 0 ? 1 / most_weight : 0.0f};
    }

    // Values: a warp has half of the columns of a block of 32, of each four neighbouring ones two.
    IntegerWeights<most> integers;
    integers.low = reinterpret_cast<uint8_t*>(words);
    integers.high = integers.low + kSlabBlocks * most * kWeightWords * 4;
    integers.unit = unit;
    const int b = warp % kSlabBlocks, half = warp / kSlabBlocks, v_blocks = call.values.dim / kQ;
    for (int block = 0; block < v_blocks; block += kSlabBlocks) {
        float sum[2][4] = {};
        for (int first = page_first; first < mine.to; first += kPage) {
            __syncthreads();  // what was staged before has been read
            values.store(next, staged);
            __syncthreads();
            const StagedBlocks some{reinterpret_cast<const uint8_t*>(staged), values.width};
            const int n = values.n;
            const bool last = first + kPage >= mine.to;
            const int next_block = last ? block + kSlabBlocks : block;
            if (next_block < v_blocks) {
                values.fetch(last ? page_first : first + kPage, next_block, next);
            }
            weigh<most>(some, n, mine, shared, first, weight, largest, integers);
            __syncthreads();
            if (b >= n) continue;
            int low[2][4] = {}, high[2][4] = {};
            for (int k = 0; k < kPage; k += 2 * 16) {
                unsigned a_low[4] = {}, a_high[4] = {}, v[2][2];
                for (int s = 0; s < 2; s++) {
                    const int p = k + 16 * s + lane % 4 * 4;
                    for (int r = 0; r < halves; r++) {
                        const int at = integers.row(b, row[r]) * kWeightWords * 4 + p;
                        a_low[2 * s + r] = *reinterpret_cast<const unsigned*>(integers.low + at);
                        a_high[2 * s + r] = *reinterpret_cast<const unsigned*>(integers.high + at);
                    }
                    // Of four positions two columns each: to four positions of each column.
                    const int c = lane / 4 * 4 + 2 * half;
                    const unsigned two =
                        __byte_perm(some.two(p, b, c), some.two(p + 1, b, c), 0x5140);
                    const unsigned more =
                        __byte_perm(some.two(p + 2, b, c), some.two(p + 3, b, c), 0x5140);
                    v[0][s] = __byte_perm(two, more, 0x5410);
                    v[1][s] = __byte_perm(two, more, 0x7632);
                }
                for (int t = 0; t < 2; t++) {
                    multiply_bytes(low[t], a_low, v[t]);
                    multiply_bytes(high[t], a_high, v[t]);
                }
            }
            for (int t = 0; t < 2; t++) {
                for (int r = 0; r < halves; r++) {
                    const float by = unit[integers.row(b, row[r])];
                    for (int c = 2 * r; c < 2 * r + 2; c++) {
                        const int exact = (high[t][c] << kWeightBits) + low[t][c];
                        sum[t][c] = fmaf(by, float(exact), sum[t][c]);
                    }
                }
            }
        }
        if (block + b >= v_blocks) continue;
        for (int r = 0; r < halves; r++) {
            if (lane / 4 + 8 * r >= mine.n) continue;
            float* const out = call.sums_of(number[row[r]]) + (block + b) * kQ + 2 * half;
            for (int c = 0; c < 2; c++) {
                for (int t = 0; t < 2; t++) out[(lane % 4 * 2 + c) * 4 + t] = sum[t][2 * r + c];
            }
        }
    }
}

}  // namespace

void attention_q8(DeviceStream* stream, const AttentionCall& call, dim3 grid) {
    if (call.heads * call.tile > 8) {
        launch<attention_q8_kernel<16>>(stream, grid, kThreads, call);
    } else {
        launch<attention_q8_kernel<8>>(stream, grid, kThreads, call);
    }
}

}  // namespace ggml::GGML_GPU
