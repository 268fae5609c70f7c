// Causal attention of rows over cached keys and values, with the bits of the CPU's
// (ops/attention.cpp): blocks of 256 positions by themselves, then their sums in order. Here are
// the kernels for keys and values of floats, and those sums. A thread has a few positions and
// queries for the scores, which add column after column, and then a few columns for the values,
// which add position after position. (Flash decoding; the running softmax is Milakov and
// Gimelshein's, arXiv 1805.02867.)
#include "cuda/ops.h"
#include "cuda/ops/attention.h"
#include "cuda/ops/quantise.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = kAttentionThreads;

// What is on its way to shared memory, in registers meanwhile.
constexpr int kOwnUnits = 4;  // of 16 bytes, of a thread
using Underway = uint4[kOwnUnits];

// A part of the rows of some positions: `units` of 16 bytes of each of `positions`, which lie
// `stride` units apart in shared memory. What no row has, and what nobody wants, is 0.
template <DType type, bool odd, int positions, int units, int stride>
struct Slab {
    using Stored = std::conditional_t<type == DType::F32, float, f16_t>;
    static_assert(positions * units == kOwnUnits * kThreads);
    const KvRows rows;
    const int64_t* page;
    const int from, to;        // positions that are wanted
    int first = 0, begin = 0;  // of the slab: its first position, and where it begins in rows

    __device__ Slab(const KvRows& of, const int64_t* pages, int wanted_from, int wanted_to)
        : rows(of), page(pages), from(wanted_from), to(wanted_to) {}

    __device__ const uint8_t* row(int p) const {
        return rows.base + page[p / kPage] + p % kPage * int64_t(rows.bytes);
    }
    __device__ bool wants(int p, int byte) const {
        return p >= from && p < to && byte < rows.width;
    }
    // Which units a thread has: one of a row, of every step-th position. Those of one k are in one
    // page.
    static constexpr int step = kThreads / units;
    static constexpr bool one_page = positions <= kPage;
    static_assert(kThreads % units == 0 && (one_page || step == kPage));
    __device__ static int down() { return int(threadIdx.x / units); }
    __device__ static int unit() { return int(threadIdx.x % units); }

    // first_position is 0 where positions are of several pages.
    __device__ void fetch(int first_position, int first_byte, Underway& next) {
        first = first_position;
        begin = first_byte;
        const int byte = begin + 16 * unit();
        const int64_t in_page = (unsigned(first) % kPage + down()) * int64_t(rows.bytes) + byte;
        const uint8_t* const run = rows.base + in_page;
        const int64_t only = one_page ? page[unsigned(first) / kPage] : 0;
        for (int k = 0; !odd && k < kOwnUnits; k++) {
            const int64_t at = one_page ? only + k * step * rows.bytes : page[k];
            const bool wanted = wants(first + k * step + down(), byte);
            next[k] = wanted ? load16(run + at) : uint4{0, 0, 0, 0};
        }
    }
    // What has been fetched, to shared memory.
    __device__ void store(const Underway& next, uint4* shared) const {
        uint4* const own = shared + down() * stride + unit();
        for (int k = 0; !odd && k < kOwnUnits; k++) own[k * step * stride] = next[k];
        // Rows that are not made of whole 16 bytes: no model that is known has them.
        constexpr int columns = units * 16 / int(sizeof(Stored));
        GGML_UNROLL_TWO
        for (int i = int(threadIdx.x); odd && i < positions * columns; i += kThreads) {
            const int p = first + i / columns, c = i % columns;
            const int byte = begin + c * int(sizeof(Stored));
            auto* to_row = reinterpret_cast<Stored*>(shared + i / columns * stride);
            to_row[c] = wants(p, byte) ? load<Stored>(row(p) + byte) : Stored(0);
        }
    }
};

// Four floats of a unit of keys: the h-th.
template <DType type>
__device__ inline float4 four_of(const uint4& unit, int h) {
    if constexpr (type == DType::F32) {
        return {math::bits_as<float>(unit.x), math::bits_as<float>(unit.y),
                math::bits_as<float>(unit.z), math::bits_as<float>(unit.w)};
    } else {
        const unsigned a = h ? unit.z : unit.x, b = h ? unit.w : unit.y;
        return {half_to_float(f16_t(a)), half_to_float(f16_t(a >> 16)), half_to_float(f16_t(b)),
                half_to_float(f16_t(b >> 16))};
    }
}

// How the threads of a block share out its work, for up to `most` queries.
template <DType type, int most>
struct Shape {
    static constexpr int kSize = type == DType::F32 ? 4 : 2;
    // Scores: of a thread, queries and positions; lanes are at neighbouring positions.
    static constexpr int kQueries = most < 4 ? most : 4, kOwn = most / kQueries;
    static constexpr int kSlots = kPositions / kOwn;
    // Of keys 64 bytes of all positions at a time, in rows that lie in different banks.
    static constexpr int kKeyUnits = 4, kKeyStride = kKeyUnits + 1;
    static constexpr int kKeyColumns = kKeyUnits * 16 / kSize;
    // Values: of a thread, columns and queries; lanes are at neighbouring columns.
    static constexpr int kGroups = most < 4 ? 1 : 4;  // of queries
    static constexpr int kPerGroup = most / kGroups;
    static constexpr int kColumns = most < 4 || type == DType::F32 ? 1 : 2;
    static constexpr int kLanes = kThreads / kGroups;
    static constexpr int kWide = kLanes * kColumns;  // columns of a slab of values
    static constexpr int kValueUnits = kWide * kSize / 16;
    static constexpr int kDeep = 1024 / kValueUnits;  // positions of a slab of values
    static constexpr int kStaged = kPositions * kKeyStride;
    static_assert(kDeep * kValueUnits <= kStaged && kDeep <= kPage);
};

template <DType type, int most, bool odd>
__global__ void __launch_bounds__(kThreads, 2) attention_kernel(AttentionCall call) {
    using S = Shape<type, most>;
    GGML_SHARED(uint4, staged, S::kStaged);
    GGML_SHARED(float4, query, most * S::kKeyColumns / 4);
    GGML_SHARED(float4, weights, most * kPositions / 4);
    GGML_SHARED(float, top, most);
    GGML_SHARED(int, from, most);
    GGML_SHARED(int, to, most);
    GGML_SHARED(int, number, most);
    GGML_SHARED(int64_t, key_page, kPages);
    GGML_SHARED(int64_t, value_page, kPages);
    auto* const weight = reinterpret_cast<float*>(weights);
    const SharedQueries shared{from, to, number, key_page, value_page};
    const Queries mine = queries_of(call);
    if (mine.n == 0) return;  // the whole block
    share_queries<most>(call, mine, shared);
    __syncthreads();

    const int thread = int(threadIdx.x), dim = call.keys.dim;
    Slab<type, odd, kPositions, S::kKeyUnits, S::kKeyStride> keys(call.keys, key_page, mine.from,
                                                                  mine.to);
    Slab<type, odd, S::kDeep, S::kValueUnits, S::kValueUnits> values(call.values, value_page,
                                                                     mine.from, mine.to);
    Underway next;
    // Of slabs of values: the first positions that are wanted.
    const int value_first = mine.from / S::kDeep * S::kDeep;
    {
        const int slot = thread % S::kSlots, q0 = thread / S::kSlots * S::kQueries;
        float score[S::kOwn][S::kQueries] = {};
        keys.fetch(0, 0, next);
        for (int first = 0; first < dim; first += S::kKeyColumns) {
            __syncthreads();  // those before have been read
            keys.store(next, staged);
            GGML_UNROLL_TWO
            for (int i = thread; i < most * S::kKeyColumns; i += kThreads) {
                const int column = first + i % S::kKeyColumns;
                const int64_t at = int64_t(number[i / S::kKeyColumns]) * dim + column;
                reinterpret_cast<float*>(query)[i] = column < dim ? call.q[at] * call.scale : 0.0f;
            }
            __syncthreads();
            if (first + S::kKeyColumns < dim) {
                keys.fetch(0, (first + S::kKeyColumns) * S::kSize, next);
            }
            if (q0 >= mine.n) continue;
            GGML_UNROLL_TWO
            for (int u = 0; u < S::kKeyUnits; u++) {
                constexpr int fours = 4 / S::kSize;  // of a unit
                uint4 unit[S::kOwn];
                for (int k = 0; k < S::kOwn; k++) {
                    unit[k] = staged[(slot + k * S::kSlots) * S::kKeyStride + u];
                }
                for (int h = 0; h < fours; h++) {
                    float4 key[S::kOwn];
                    for (int k = 0; k < S::kOwn; k++) key[k] = four_of<type>(unit[k], h);
                    for (int j = 0; j < S::kQueries; j++) {
                        const float4 x = query[(q0 + j) * S::kKeyColumns / 4 + u * fours + h];
                        for (int k = 0; k < S::kOwn; k++) {
                            float s = score[k][j];
                            s = fmaf(x.x, key[k].x, s);
                            s = fmaf(x.y, key[k].y, s);
                            s = fmaf(x.z, key[k].z, s);
                            score[k][j] = fmaf(x.w, key[k].w, s);
                        }
                    }
                }
            }
        }
        values.fetch(value_first, 0, next);
        for (int k = 0; k < S::kOwn; k++) {
            for (int j = 0; j < S::kQueries; j++) {
                weight[(q0 + j) * kPositions + slot + k * S::kSlots] = capped(call, score[k][j]);
            }
        }
    }
    softmax<most>(call, mine, shared, weight, top);

    using Stored =
        std::conditional_t<S::kColumns == 2, unsigned, typename decltype(values)::Stored>;
    const auto* stored = reinterpret_cast<const Stored*>(staged) + thread % S::kLanes;
    const int q0 = thread / S::kLanes * S::kPerGroup, own = thread % S::kLanes * S::kColumns;
    // The columns of this thread at position i of a slab.
    const auto load_value = [&](int i, float(&v)[S::kColumns]) {
        const Stored some = stored[i * S::kLanes];
        if constexpr (S::kColumns == 2) {
            v[0] = half_to_float(f16_t(some));
            v[1] = half_to_float(f16_t(some >> 16));
        } else if constexpr (type == DType::F32) {
            v[0] = some;
        } else {
            v[0] = half_to_float(some);
        }
    };
    const int eights_from = (mine.all_from + 7) / 8 * 8,
              eights_to = at_least_0(mine.all_to) / 8 * 8;
    for (int column = 0; column < call.values.dim; column += S::kWide) {
        float sum[S::kPerGroup][S::kColumns] = {};
        const auto one_by_one = [&](int p, int end, int first) {
            for (; p < end; p++) {
                float v[S::kColumns];
                load_value(p - first, v);
                for (int j = 0; j < S::kPerGroup; j++) {
                    if (p < from[q0 + j] || p >= to[q0 + j]) continue;
                    const float w = weight[(q0 + j) * kPositions + p];
                    for (int c = 0; c < S::kColumns; c++) sum[j][c] = fmaf(w, v[c], sum[j][c]);
                }
            }
        };
        for (int first = value_first; first < mine.to; first += S::kDeep) {
            __syncthreads();  // those before have been read
            values.store(next, staged);
            __syncthreads();
            const bool last = first + S::kDeep >= mine.to;
            const int next_column = last ? column + S::kWide : column;
            if (next_column < call.values.dim) {
                values.fetch(last ? value_first : first + S::kDeep, next_column * S::kSize, next);
            }
            if (q0 >= mine.n || column + own >= call.values.dim) continue;
            // Eights of positions that all see, and what is beside them.
            const int end = at_most(first + S::kDeep, mine.to);
            const int begin = first > mine.from ? first : mine.from;
            const int eights = at_most(begin > eights_from ? begin : eights_from, end);
            const int eights_end = eights > eights_to ? eights : at_most(end, eights_to);
            one_by_one(begin, eights, first);
            GGML_UNROLL_TWO
            for (int p = eights; p < eights_end; p += 8) {
                float v[8][S::kColumns];
                for (int i = 0; i < 8; i++) load_value(p - first + i, v[i]);
                for (int j = 0; j < S::kPerGroup; j++) {
                    for (int h = 0; h < 2; h++) {
                        const float4 w = weights[((q0 + j) * kPositions + p) / 4 + h];
                        for (int c = 0; c < S::kColumns; c++) {
                            float s = sum[j][c];
                            s = fmaf(w.x, v[4 * h][c], s);
                            s = fmaf(w.y, v[4 * h + 1][c], s);
                            s = fmaf(w.z, v[4 * h + 2][c], s);
                            sum[j][c] = fmaf(w.w, v[4 * h + 3][c], s);
                        }
                    }
                }
            }
            one_by_one(eights_end, end, first);
        }
        for (int j = 0; j < S::kPerGroup; j++) {
            if (q0 + j >= mine.n) continue;
            float* const out = call.sums_of(number[q0 + j]);
            for (int c = 0; c < S::kColumns; c++) {
                if (column + own + c < call.values.dim) out[column + own + c] = sum[j][c];
            }
        }
    }
}

// ---- their sums ---------------------------------------------------------------------------------

__device__ inline float larger(float a, float b) {
    return a < b ? b : a;
}

constexpr int kSumColumns = (int(kDeviceHeadDim) + kThreads - 1) / kThreads;  // of a thread

// Block (x, y): query head x of row y. Adds the blocks' sums, ascending; then the head's sink
// joins.
__global__ void attention_sum_kernel(int dim, AttentionScores how, const DeviceAttentionRow* rows,
                                     int blocks, const float* sums, DeviceInput out) {
    GGML_SHARED(float, tops, kThreads);
    GGML_SHARED(float, shrink, kThreads);
    GGML_SHARED(float, weight, kThreads);
    const DeviceAttentionRow row = rows[blockIdx.y];
    const int begin = row.first / kPositions, end = (row.end + kPositions - 1) / kPositions;
    const int thread = int(threadIdx.x), width = dim + 2;
    const int64_t head = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
    sums += head * blocks * width;
    float top = -INFINITY, total = 0, value[kSumColumns] = {};
    for (int first = begin; first < end; first += kThreads) {
        const int n = end - first < kThreads ? end - first : kThreads;
        const float* some = sums + int64_t(first) * width;
        __syncthreads();  // those before have been read
        if (thread < n) tops[thread] = some[int64_t(thread) * width + dim];
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
            total = total * shrink[b] + part[dim + 1] * weight[b];
            for (int k = 0; k < kSumColumns; k++) {
                const int c = thread + k * kThreads;
                if (c < dim) value[k] = shrink[b] * value[k] + weight[b] * part[c];
            }
        }
    }
    float less = 1;
    if (how.sinks) {
        const float sink = how.sinks[blockIdx.x], most = larger(top, sink);
        less = exp_f32(top - most);
        total = total * less + exp_f32(sink - most);
    }
    for (int k = 0; k < kSumColumns; k++) {
        const int c = thread + k * kThreads;
        if (c >= dim) return;
        const int64_t i = head * dim + c;
        const float result = (how.sinks ? value[k] * less : value[k]) / total;
        out.x[i] = result;
        if (out.q) quantise_group(out, i, result);
    }
}

// How many queries a block of threads has room for, if so many share a KV head.
int most_queries(DType type, bool odd, int wanted) {
    if (type == DType::Q8_0) return wanted > 8 ? kMostQueries : 8;
    if (odd) return 8;
    // 16 over F32 would take a thread too many registers.
    if (wanted > 8 && type == DType::F16) return kMostQueries;
    return wanted > 4 ? 8 : wanted > 1 ? 4 : 1;
}

template <DType type>
void launch_floats(DeviceStream* stream, const AttentionCall& call, dim3 grid, int most, bool odd) {
    const auto run = [&](auto it) { launch<decltype(it)::value>(stream, grid, kThreads, call); };
    if (odd) return run(Kernel<attention_kernel<type, 8, true>>());
    if constexpr (type == DType::F16) {
        if (most > 8) return run(Kernel<attention_kernel<type, kMostQueries, false>>());
    }
    if (most > 4) return run(Kernel<attention_kernel<type, 8, false>>());
    if (most > 1) return run(Kernel<attention_kernel<type, 4, false>>());
    run(Kernel<attention_kernel<type, 1, false>>());
}

}  // namespace

void attention(DeviceStream* stream, const KvLayer& layer, int n_head, const AttentionScores& how,
               const DeviceAttentionRow* rows, int n, const float* q,
               const DeviceAttentionScratch& scratch, const DeviceInput& out) {
    AttentionCall call;
    const int key_bytes = int(layer.key_bytes()), width = int(layer.value_bytes());
    const int dim = int(layer.head_dim), v_dim = int(layer.v_head_dim);
    call.keys = {layer.k, layer.page_stride, key_bytes, key_bytes, dim};
    call.values = {layer.v, layer.page_stride, width, width, v_dim};
    if (!layer.v) {  // the first columns of keys
        call.values.base = layer.k;
        call.values.bytes = key_bytes;
    }
    const bool odd = (key_bytes | width) % 16 != 0;
    call.n_head = n_head;
    call.group = n_head / int(layer.n_head_kv);
    // As many heads of a group as there is room for, evenly; then several rows.
    const int most = most_queries(layer.type, odd, call.group * n);
    const int parts = (call.group + most - 1) / most;
    call.heads = (call.group + parts - 1) / parts;
    call.tile = most / call.heads;
    call.scale = how.softcap != 0 ? how.scale / how.softcap : how.scale;
    call.softcap = how.softcap;
    call.rows = rows;
    call.q = q;
    call.sums = scratch.sums;
    const dim3 grid(unsigned(scratch.blocks), unsigned(layer.n_head_kv) * unsigned(parts),
                    unsigned(n));
    if (layer.type == DType::Q8_0) {
        attention_q8(stream, call, grid);
    } else if (layer.type == DType::F16) {
        launch_floats<DType::F16>(stream, call, grid, most, odd);
    } else {
        launch_floats<DType::F32>(stream, call, grid, most, odd);
    }
    // Heads of whole groups of 32 are made 8 bits by the way.
    const bool later = out.q && v_dim % kQ;
    DeviceInput summed = out;
    if (later) summed.q = nullptr;
    launch<attention_sum_kernel>(stream, dim3(unsigned(n_head), unsigned(n)), kThreads, v_dim, how,
                                 rows, scratch.blocks, scratch.sums, summed);
    if (later) quantise(stream, out);
}

}  // namespace ggml::GGML_GPU
