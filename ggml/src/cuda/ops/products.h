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
    __device__ int64_t x(int t) const { return y(t) / per; }
};

// What block (.., y) of a call has: some rows of activations, and the weights of their expert.
// None: it is not here.
struct Share {
    const uint8_t* w = nullptr;
    const float* bias = nullptr;
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

    __device__ Share of(const DeviceProduct& p, int e, const RowsOfCall& rows) const {
        const int at = frame[e];
        if (at < 0) return {};
        return {p.w.data + at * stride, p.bias ? p.bias + at * (stride / 4) : nullptr, rows};
    }
};

// Block y of a few rows: `most` of them, or one pair of a mixture.
__device__ inline Share few_share(const DeviceInput& x, const DeviceProduct& p, const Mixture& of,
                                  int most) {
    const int y = int(blockIdx.y), first = y * most;
    // Pairs by expert: those of one read its weights from the cache.
    if (of.frame) return of.of(p, of.expert[of.pair[y]], {of.pair, y, 1, of.per});
    return {p.w.data, p.bias, {nullptr, first, x.rows - first < most ? x.rows - first : most}};
}

// Block y of many rows: `most` of them. Of a mixture, tile y of those of the experts that are here,
// which every warp counts by itself.
__device__ inline Share tile_share(const DeviceInput& x, const DeviceProduct& p, const Mixture& of,
                                   int most) {
    if (!of.frame) return few_share(x, p, of, most);
    const int lane = int(threadIdx.x) % kWarp;
    int before = int(blockIdx.y);  // tiles before this one, less those of the experts seen
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
            const int has = __ffs(int(beyond)) - 1;
            const int skipped = __shfl_sync(kAll, before - (tiles - own), has) * most;
            const int first = __shfl_sync(kAll, begin, has) + skipped;
            const int left = __shfl_sync(kAll, n, has) - skipped;
            return of.of(p, e0 + has, {of.pair, first, left < most ? left : most, of.per});
        }
        before -= __shfl_sync(kAll, tiles, kWarp - 1);
    }
    return {};
}

// Weights in 8 bits or less: lanes make terms of groups, neighbours of neighbouring groups, each of
// kAtOnce rows, which share the activations.
template <DType type, int most>
class QuantProducts {
 public:
    static constexpr int kRows = most == 1 ? 16 : 4;  // of weights, at most
    struct Shared {
        alignas(16) float terms[2][kRows * most][(most == 1 ? 64 : 32) * term_floats(type) + 4];
        float2 units[2][kRows][has_parts(type) ? (most == 1 ? 64 : 32) / kPart : 1];
        float sum[kRows * most];
    };

    // shared.sum[most * r + t] = row_at(r) . row t of x, for r < n_rows. All threads of the block
    // come here. n_rows is at most `planned`, a power of two.
    template <typename RowAt>
    static __device__ void multiply(const RowAt& row_at, int n_rows, int planned,
                                    const DeviceInput& x, const RowsOfCall& of, int,
                                    Shared& shared) {
        const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
        const int groups = x.cols / kQ;
        // Lanes side by side along a row; the others of a warp are on the rows below.
        const int wide = groups % 32 == 0 ? 32 : groups % 16 == 0 ? 16 : 8, down = kWarp / wide;
        const int batches = planned > down * kAtOnce ? planned / (down * kAtOnce) : 1;
        const PlaneOffsets at(plane_bytes(type), x.cols);
        const uint8_t* row[kAtOnce];
        const int r0 = warp % batches * down * kAtOnce + lane / wide;
        for (int u = 0; u < kAtOnce; u++) {
            const int r = r0 + u * down;
            row[u] = row_at(r < n_rows ? r : n_rows - 1);
        }
        for (int first = 0, slab = 0; first < groups; first += kSlab, slab++) {
            const int width = groups - first < kSlab ? groups - first : kSlab, buffer = slab % 2;
            for (int i = warp / batches * wide + lane % wide; i < width;
                 i += kRowWarps / batches * wide) {
                StoredGroup stored[kAtOnce];
                for (int u = 0; u < kAtOnce; u++) {
                    stored[u] = load_stored<type>(row[u], at, first + i);
                }
                InputGroup input;
                if constexpr (most == 1) input = load_input(x, of.x(0), first + i);
                for (int u = 0; u < kAtOnce; u++) {
                    const int r = r0 + u * down;
                    if (r >= n_rows) break;
                    unsigned words[8];
                    quants<type>(stored[u], words);
                    const GroupScales s = scales<type>(stored[u]);
                    for (int t = 0; t < most; t++) {
                        if (most > 1 && t >= of.n) break;
                        if constexpr (most > 1) input = load_input(x, of.x(t), first + i);
                        store_term<type>(shared.terms[buffer][r * most + t] + i * term_floats(type),
                                         term_of<type>(words, s, input));
                    }
                    if (has_parts(type) && i % kPart == 0) {
                        shared.units[buffer][r][i / kPart] = {s.d, s.m};
                    }
                }
            }
            __syncthreads();
            // Until the next barrier the others fill the other buffer.
            if (warp == slab % kRowWarps && lane < n_rows * most && lane % most < of.n) {
                shared.sum[lane] =
                    add_terms<type>(slab ? shared.sum[lane] : 0.0f, shared.terms[buffer][lane],
                                    shared.units[buffer][lane / most], width);
            }
        }
        __syncthreads();
    }

 private:
    static constexpr int kSlab = most == 1 ? 64 : 32;  // groups
    static constexpr int kAtOnce = most == 1 ? 4 : 1;  // rows of a thread
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

// A warp loads 512 bytes of a row at once.
template <DType type, int most>
class FloatProducts {
 public:
    static constexpr int kRows = 16;
    struct Shared {
        // Lanes of two or four rows read the same columns: in different banks.
        alignas(16) uint8_t w[2][kRows][16 * kWarp + 32];
        float sum[kRows * most];
    };

    template <typename RowAt>
    static __device__ void multiply(const RowAt& row_at, int n_rows, int, const DeviceInput& x,
                                    const RowsOfCall& of, int lanes, Shared& shared) {
        const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
        const uint8_t* row[kOwn];
        for (int u = 0; u < kOwn; u++) {
            const int r = warp + u * kRowWarps;
            row[u] = row_at(r < n_rows ? r : n_rows - 1);
        }
        uint4 next[kOwn] = {};
        const auto fetch = [&](int first) {
            if (first + lane * kPiece >= x.cols) return;
            for (int u = 0; u < kOwn; u++) {
                if (warp + u * kRowWarps < n_rows) {
                    next[u] = load16(row[u] + int64_t(first) * kSize + 16 * lane);
                }
            }
        };
        // Of row r, sums 4 q to 4 q + 3.
        const int quarters = lanes / 4, r = thread / quarters, q = thread % quarters;
        float sum[most][4] = {};
        fetch(0);
        for (int first = 0, slab = 0; first < x.cols; first += kColumns, slab++) {
            const int width = x.cols - first < kColumns ? x.cols - first : kColumns;
            uint8_t(&w)[kRows][16 * kWarp + 32] = shared.w[slab % 2];
            if (lane * kPiece < width) {
                for (int u = 0; u < kOwn; u++) {
                    const int to = warp + u * kRowWarps;
                    if (to < n_rows) *reinterpret_cast<uint4*>(w[to] + 16 * lane) = next[u];
                }
            }
            __syncthreads();
            if (first + kColumns < x.cols) fetch(first + kColumns);
            if (r >= n_rows) continue;
            // 32 columns at a time, so that several loads are on their way.
            for (int c = 4 * q; c < width; c += 32) {
                for (int i = 0; i < 32 / 8; i++) {
                    const int column = c + i * lanes;
                    if (i * lanes >= 32) break;
                    const float4 four = four_floats<type>(w[r] + column * kSize);
                    for (int t = 0; t < most; t++) {
                        if (most > 1 && t >= of.n) break;
                        add_products(sum[t], four,
                                     *reinterpret_cast<const float4*>(x.x + of.x(t) * x.cols +
                                                                      first + column));
                    }
                }
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
    static constexpr int kSize = type == DType::F32 ? 4 : 2, kPiece = 16 / kSize;
    static constexpr int kColumns = kWarp * kPiece;  // of a slab
    static constexpr int kOwn = kRows / kRowWarps;   // rows that a warp loads
};

template <DType type, int most>
using Products =
    std::conditional_t<is_float_type(type), FloatProducts<type, most>, QuantProducts<type, most>>;

// Sums side by side of a row of floats on this machine's CPU.
int float_lanes();

}  // namespace ggml::GGML_GPU
