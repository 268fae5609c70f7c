// Products of a few rows of weights with a few rows of activations, by a block of threads: what
// matmul, the experts of a mixture and the sparse FFN are made of. With the bits of the CPU
// (terms.h; of floats below).
//
// Weights stream through a block: a slab of columns of all its rows at a time. What adds floats in
// order is a lane per sum, or per four sums of a row of floats, of one warp, while the others load
// the next slab.
#pragma once

#include <type_traits>

#include "cuda/ops/terms.h"

namespace ggml::GGML_GPU {

constexpr int kRowThreads = 128, kRowWarps = kRowThreads / kWarp;

// Which rows of x and y belong to row t of a call's activations: those of pairs of rows with
// experts (DeviceChoice), or row t itself.
struct RowsOfCall {
    const int32_t* pair = nullptr;  // of which row t is one; null: first + t
    int first = 0, n = 0;
    int per = 1;  // so many pairs have one row of x

    __device__ int y(int t) const { return pair ? pair[first + t] : first + t; }
    __device__ int64_t x(int t) const { return per == 1 ? y(t) : y(t) / per; }
};

// What block (.., y) of a call has: some rows of activations, none if their expert is not here, and
// the weights.
struct Share {
    const uint8_t* w;
    const float *bias, *scale;
    RowsOfCall rows;
};

// Up to three products of one type with one input.
constexpr int kTogether = 3;
struct SameInput {
    DeviceProduct p[kTogether];

    // That of a block. Not by an index, so that parameters stay where they are.
    __device__ DeviceProduct own() const {
        return blockIdx.z == 0 ? p[0] : blockIdx.z == 1 ? p[1] : p[2];
    }
};

// Of a mixture: which experts rows chose, and where these are (DeviceChoice, DeviceFrames).
struct Mixture {
    const int32_t *expert = nullptr, *first = nullptr, *pair = nullptr;
    const int32_t* frame = nullptr;  // null: no mixture
    int64_t stride = 0;
    int n_expert = 0;
    int per = 1;  // pairs of a row of x

    __device__ Share of(const DeviceProduct& p, int e, RowsOfCall rows) const {
        int at = frame[e];
        if (at < 0) at = rows.n = 0;
        return {p.w.data + at * stride, p.bias ? p.bias + at * (stride / 4) : nullptr,
                p.scale ? p.scale + e : nullptr, rows};
    }
};

// Block y of a few rows: `most` of them, or one pair of a mixture.
__device__ inline Share few_share(const DeviceInput& x, const DeviceProduct& p, const Mixture& of,
                                  int most) {
    const int y = int(blockIdx.y), first = y * most;
    // Pairs by expert: those of one read its weights from the cache.
    if (of.frame) return of.of(p, of.expert[of.pair[y]], {of.pair, y, 1, of.per});
    return {
        p.w.data, p.bias, p.scale, {nullptr, first, x.rows - first < most ? x.rows - first : most}};
}

// Block y of many rows: `most` of them. Of a mixture, tile y of those of the experts that are here,
// which every warp counts by itself.
__device__ inline Share tile_share(const DeviceInput& x, const DeviceProduct& p, const Mixture& of,
                                   int most) {
    if (!of.frame) return few_share(x, p, of, most);
    const int lane = int(threadIdx.x) % kWarp;
    int before = int(blockIdx.y);  // tiles before this one, less those of the experts seen
    int expert = 0, first = 0, left = 0;
    for (int e0 = 0; e0 < of.n_expert; e0 += kWarp) {
        const int e = e0 + lane;
        int begin = 0, n = 0;
        if (e < of.n_expert && of.frame[e] >= 0) {
            begin = of.first[e];
            n = of.first[e + 1] - begin;
        }
        const int own = (n + most - 1) / most;
        int tiles = own;  // of the lanes up to this one
        for (int apart = 1; apart < kWarp; apart *= 2) {
            const int other = __shfl_up_sync(kAll, tiles, unsigned(apart));
            if (lane >= apart) tiles += other;
        }
        if (const unsigned beyond = __ballot_sync(kAll, tiles > before)) {
            const int has = kWarp - __popc(beyond);  // the first of them, as tiles ascend
            const int skipped = __shfl_sync(kAll, before - (tiles - own), has) * most;
            expert = e0 + has;
            first = __shfl_sync(kAll, begin, has) + skipped;
            left = __shfl_sync(kAll, n, has) - skipped;
            break;
        }
        before -= __shfl_sync(kAll, tiles, kWarp - 1);
    }
    return of.of(p, expert, {of.pair, first, left < most ? left : most, of.per});
}

// Weights in 8 bits or less: lanes make terms of groups, neighbours of neighbouring groups, each of
// kAtOnce rows, which share the activations.
template <DType type, int most>
class QuantProducts {
    static constexpr int kSlab = most == 1 ? 64 : 32;  // groups
    static constexpr int kAtOnce = most == 1 ? 4 : 1;  // rows of a thread

 public:
    static constexpr int kRows = most == 1 ? 16 : 4;  // of weights, at most
    struct Shared {
        // Rows of terms in different banks.
        alignas(16) float terms[2][kRows * most][kSlab * term_floats(type) + 4];
        alignas(16) float inputs[2][most][kSlab * input_floats(type) + 4];
        float2 units[2][kRows][has_parts(type) ? kSlab / kPart : 1];
        float sum[kRows * most];
    };

    // Lanes side by side along a row; the others of a warp are on the rows below.
    GGML_BOTH static constexpr int lanes_of(int groups) {
        return groups % 32 == 0 ? 32 : groups % 16 == 0 ? 16 : 8;
    }

    // shared.sum[most * r + t] = row_at(r) . row x0 + t of x, for r < n_rows and t < n. All threads
    // of the block come here. n_rows is at most `planned`, a power of two.
    template <typename RowAt>
    static __device__ void multiply(const RowAt& row_at, int n_rows, int planned,
                                    const DeviceInput& x, int64_t x0, int n, int, Shared& shared) {
        const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
        const int groups = x.cols / kQ;
        const int wide = lanes_of(groups), down = kWarp / wide;
        const int batches = planned > down * kAtOnce ? planned / (down * kAtOnce) : 1;
        const PlaneOffsets at(plane_bytes(type), x.cols);
        const uint8_t* row[kAtOnce];
        const int r0 = warp % batches * down * kAtOnce + lane / wide;
        for (int u = 0; u < kAtOnce; u++) {
            const int r = r0 + u * down;
            row[u] = row_at(r < n_rows ? r : n_rows - 1);  // past the end the last one again
        }
        const int start = warp / batches * wide + lane % wide, step = kRowWarps / batches * wide;
        for (int first = 0, slab = 0; first < groups; first += kSlab, slab++) {
            const int width = groups - first < kSlab ? groups - first : kSlab, buffer = slab % 2;
            for (int i = r0 < n_rows ? start : width; i < width; i += step) {
                StoredGroup stored[kAtOnce];
                for (int u = 0; u < kAtOnce; u++) {
                    stored[u] = load_stored<type>(row[u], at, first + i);
                }
                InputGroup input[most];
                for (int t = 0; t < most; t++) {
                    if (most > 1 && t >= n) break;
                    input[t] = load_input(x, x0 + t, first + i);
                    if (input_floats(type) && r0 == 0) {
                        store_input<type>(shared.inputs[buffer][t] + i * input_floats(type),
                                          input[t]);
                    }
                    if (most > 1) add_row(stored[0], input[t], r0, t, i, shared, buffer);
                }
                for (int u = 0; most == 1 && u < kAtOnce; u++) {
                    add_row(stored[u], input[0], r0 + u * down, 0, i, shared, buffer);
                }
            }
            __syncthreads();
            // Until the next barrier the others fill the other buffer.
            if (warp == slab % kRowWarps && lane < n_rows * most && lane % most < n) {
                shared.sum[lane] = add_terms<type>(
                    slab ? shared.sum[lane] : 0.0f, shared.terms[buffer][lane],
                    shared.inputs[buffer][lane % most], shared.units[buffer][lane / most], width);
            }
        }
        __syncthreads();
    }

 private:
    // The term of group i of row r.
    static __device__ void add_row(const StoredGroup& stored, const InputGroup& input, int r, int t,
                                   int i, Shared& shared, int buffer) {
        unsigned words[8];
        quants<type>(stored, words);
        const GroupScales s = scales<type>(stored);
        store_term<type>(shared.terms[buffer][r * most + t] + i * term_floats(type),
                         term_of<type>(words, s, input));
        if (has_parts(type) && t == 0 && i % kPart == 0) {
            shared.units[buffer][r][i / kPart] = {s.d, s.m};
        }
    }
};

// Rows of floats: the CPU adds `lanes` sums of a row side by side, 8 or 16: sum i is that of
// columns i, i + lanes, ... in ascending order. Their halves are added until one is left. A thread
// has four of them.
__device__ inline float sum_of_lanes(float (&sum)[4], int lanes) {
    for (int apart = lanes / 8; apart > 0; apart /= 2) {
        for (float& s : sum) s += __shfl_xor_sync(kAll, s, apart);
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// Four neighbouring floats of a row, from memory of the block.
template <DType type>
__device__ inline float4 four_floats(const uint8_t* from) {
    if constexpr (type == DType::F32) {
        return *reinterpret_cast<const float4*>(from);
    } else {
        const uint2 v = *reinterpret_cast<const uint2*>(from);
        if constexpr (type == DType::BF16) {
            return {math::bits_as<float>(v.x << 16), math::bits_as<float>(v.x & 0xffff0000),
                    math::bits_as<float>(v.y << 16), math::bits_as<float>(v.y & 0xffff0000)};
        } else {
            return {half_to_float(f16_t(v.x)), half_to_float(f16_t(v.x >> 16)),
                    half_to_float(f16_t(v.y)), half_to_float(f16_t(v.y >> 16))};
        }
    }
}
__device__ inline void add_products(float (&sum)[4], const float4& w, const float4& x) {
    sum[0] = fmaf(w.x, x.x, sum[0]);
    sum[1] = fmaf(w.y, x.y, sum[1]);
    sum[2] = fmaf(w.z, x.z, sum[2]);
    sum[3] = fmaf(w.w, x.w, sum[3]);
}

// A warp loads a kilobyte of a row at once.
template <DType type, int most>
class FloatProducts {
    static constexpr int kSize = type == DType::F32 ? 4 : 2;
    static constexpr int kPieces = 2;                  // of 16 bytes, of a lane
    static constexpr int kPiece = kWarp * 16 / kSize;  // columns of a warp's lanes
    static constexpr int kColumns = kPieces * kPiece;  // of a slab
    // Lanes of two or four rows read the same columns: in different banks.
    static constexpr int kStride = kColumns * kSize + 32;

 public:
    static constexpr int kRows = 16;
    struct Shared {
        alignas(16) uint8_t w[2][kRows][kStride];
        float sum[kRows * most];
    };

    template <typename RowAt>
    static __device__ void multiply(const RowAt& row_at, int n_rows, int, const DeviceInput& x,
                                    int64_t x0, int n, int lanes, Shared& shared) {
        const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
        const uint8_t* row[kOwn];
        for (int u = 0; u < kOwn; u++) {
            const int r = warp + u * kRowWarps;
            row[u] = row_at(r < n_rows ? r : n_rows - 1) + 16 * lane;
        }
        const int own = lane * 16 / kSize;  // columns
        // Calls use(k, u) for the pieces k of this lane in rows u, of the columns that are left.
        const auto each_piece = [&](int columns, const auto& use) {
            const bool whole = n_rows == kRows && columns >= kColumns;
            for (int i = 0; whole && i < kPieces * kOwn; i++) use(i / kOwn, i % kOwn);
            for (int k = 0; !whole && k < kPieces; k++) {
                if (k * kPiece + own >= columns) break;
                for (int u = 0; u < kOwn; u++) {
                    if (warp + u * kRowWarps < n_rows) use(k, u);
                }
            }
        };
        uint4 next[kPieces][kOwn] = {};
        const auto fetch = [&](int columns) {
            each_piece(columns,
                       [&](int k, int u) { next[k][u] = load16(row[u] + k * kPiece * kSize); });
            for (const uint8_t*& next_slab : row) next_slab += kColumns * kSize;
        };
        // Of row r, sums 4 q to 4 q + 3.
        const int quarters = lanes / 4, r = thread >> (lanes / 8), q = thread & (quarters - 1);
        float sum[most][4] = {};
        fetch(x.cols);
        for (int first = 0, slab = 0; first < x.cols; first += kColumns, slab++) {
            const int width = x.cols - first < kColumns ? x.cols - first : kColumns;
            uint8_t(&w)[kRows][kStride] = shared.w[slab % 2];
            each_piece(width, [&](int k, int u) {
                uint8_t* to = w[warp + u * kRowWarps] + (k * kPiece + own) * kSize;
                *reinterpret_cast<uint4*>(to) = next[k][u];
            });
            __syncthreads();
            if (first + kColumns < x.cols) fetch(x.cols - first - kColumns);
            if (r >= n_rows) continue;
            const uint8_t* own = w[r] + 4 * q * kSize;
            const float* xs = x.x + x0 * x.cols + first + 4 * q;
            if (lanes == 16) {
                add_columns<16>(own, xs, x.cols, n, q, width, sum);
            } else {
                add_columns<8>(own, xs, x.cols, n, q, width, sum);
            }
        }
        if (thread < kRows * quarters) {  // whole warps
            for (int t = 0; t < most; t++) {
                const float total = sum_of_lanes(sum[t], lanes);
                if (q == 0) shared.sum[r * most + t] = total;
            }
        }
        __syncthreads();
    }

 private:
    // Every lanes-th four of some columns, from the q-th of a row on.
    template <int lanes>
    static __device__ void add_columns(const uint8_t* w, const float* x, int cols, int n, int q,
                                       int width, float (&sum)[most][4]) {
        // 32 columns at once, so that several loads are on their way.
        int c = 0;
        for (; c + 32 <= width; c += 32) add_fours<32 / lanes>(w, x, cols, n, c, lanes, sum);
        // 8, 16 or 24 are left: fewer lanes have the last ones.
        for (; c + 4 * q < width; c += lanes) add_fours<1>(w, x, cols, n, c, lanes, sum);
    }
    template <int fours>
    static __device__ void add_fours(const uint8_t* w, const float* x, int cols, int n, int c,
                                     int lanes, float (&sum)[most][4]) {
        float4 four[fours];
        for (int i = 0; i < fours; i++) four[i] = four_floats<type>(w + (c + i * lanes) * kSize);
        for (int t = 0; t < most; t++) {
            if (most > 1 && t >= n) break;
            const float* xs = x + int64_t(t) * cols + c;
            for (int i = 0; i < fours; i++) {
                add_products(sum[t], four[i], *reinterpret_cast<const float4*>(xs + i * lanes));
            }
        }
    }

    static constexpr int kOwn = kRows / kRowWarps;  // rows that a warp loads
};

template <DType type, int most>
using Products =
    std::conditional_t<is_float_type(type), FloatProducts<type, most>, QuantProducts<type, most>>;

// Sums side by side of a row of floats on this machine's CPU.
int float_lanes();
// Those of a product.
int lanes_of(const DeviceProduct& product);

}  // namespace ggml::GGML_GPU
