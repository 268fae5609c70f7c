// Makes the kernels of a block format from its description (see strip.h): products of strips with
// tokens, and products and weighted sums of neuron rows.
#pragma once

#include "formats/parts.h"
#include "kernels/add_rows.h"
#include "kernels/lanes/strip.h"
#include "kernels/lanes/tiles.h"

namespace ggml::cpu::GGML_ISA {

// Prefetch distance of strips in bytes, where fetches_ahead. Measured with Q4_0, one token and 2
// threads on a Sapphire Rapids machine with 29 to 32 GB/s of memory bandwidth: no prefetch 20 to 22
// GB/s, 384 bytes 24, 1024 bytes 26, 2048 bytes 28, 4096 bytes 21.
constexpr int64_t kAhead = 2048;
inline const uint8_t* ahead_of(const uint8_t* w) {
    return fetches_ahead ? w + kAhead : nullptr;
}

// Bytes of F::blocks times 32 columns of eight lanes.
template <typename F>
constexpr int64_t kUnit = kStrip * kQ * F::blocks / BlockTraits<typename F::Block>::size *
                          int64_t(sizeof(typename F::Block));

// Prefetches `size` bytes.
inline void fetch(const uint8_t* bytes, int64_t size) {
    for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(bytes + i, 0, 2);
}

// Reads from each cache line of `size` bytes in order. Formats with a scale per 16 columns read the
// members of their unit by turns, which prefetchers of AMD's cores do not follow; but they follow
// this. Zen 4, one token, GB/s of Q6_K with one and two threads: nothing 5.5 and 11, prefetches
// 6,144 bytes ahead 21 and 27, this 28 and 35. Q2_K 18 and 30, with this 21 and 31.
template <typename F>
constexpr bool kByTurns = F::halves == 2 && F::blocks == kQK / kQ;
inline void touch(const uint8_t* bytes, int64_t size) {
    const volatile uint8_t* const lines = bytes;
    for (int64_t i = 0; i < size; i += 64) lines[i];
}

// Multiplies a strip or a neuron row with T tokens, block by block. With one token memory is the
// bottleneck, so the same number of bytes is prefetched from `ahead` on, if it is not null.
template <typename F, int T, typename X>
inline void multiply(const uint8_t* w, const uint8_t* ahead, const X& x, f32x8 (&sum)[T]) {
    constexpr int64_t size = kUnit<F>;
    for (int t = 0; t < T; t++) sum[t] = splat(0);
    const bool fetches = T == 1 && ahead;
    for (int64_t b = 0; b < x.n_blocks; b += F::blocks) {
        if (fetches) {
            fetch(ahead, size);
            ahead += size;
        } else if (kByTurns<F> && !fetches_ahead) {
            touch(w, size);
        }
        F::template multiply<T>(w, x, b, sum);
        w += size;
    }
}

// Calls kernel(Count<T>, first token) for tiles of T = `most` tokens, then 4, then 1. Larger tiles
// share the unpacking of weights among more tokens, until sums and pointers no longer fit the
// registers. 6 or 8 were the fastest (Zen 4 core, 10^9 multiply-adds per second with 4 and with the
// chosen tile: Q4_0 100 and 103, Q4_K 99 and 103, Q5_K 75 and 88, Q6_K 75 and 82, Q8_0 64 and 68).
template <int most, typename Kernel>
inline void for_tiles(int64_t nt, const Kernel& kernel) {
    int64_t t = 0;
    for (; t + most <= nt; t += most) kernel(Count<most>(), t);
    for (; t + 4 <= nt; t += 4) kernel(Count<4>(), t);
    for (; t < nt; t++) kernel(Count<1>(), t);
}

// Not inlined: together with other tile sizes, the tile of 8 tokens keeps fewer values in registers
// (Q5_0 a third slower, Q8_0 a fifth).
template <typename F, int T>
[[gnu::noinline]] void strip_tile(const uint8_t* w, const Q8Rows& q8, int64_t t0, float* y,
                                  int64_t ldy) {
    const Tokens x(q8, t0);
    f32x8 sum[T];
    multiply<F, T>(w, ahead_of(w), x, sum);
    for (int t = 0; t < T; t++) store(y + t * ldy, sum[t]);
}

template <typename F>
void strips(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
            int64_t ldy) {
    const int64_t size = x.cols / (kQ * F::blocks) * kUnit<F>;
    const int64_t whole = in_tiles<F>(nt);
    if constexpr (kHasTile<F>) {
        if (whole) tiles<F>(w, kUnit<F>, n, x, t0, whole, y, ldy);
        if (whole == nt) return;
    }
    for (int64_t i = 0; i < n; i++, w += size, y += kStrip) {
        constexpr int most = F::tokens < kMostTokens ? F::tokens : kMostTokens;
        for_tiles<most>(nt - whole, [&](auto tile, int64_t t) {
            strip_tile<F, tile>(w, x, t0 + whole + t, y + (whole + t) * ldy, ldy);
        });
    }
}

template <typename F, int T>
[[gnu::noinline]] void dot_tile(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                                const Q8Rows& q8, const Prefetch& next, const int32_t* tokens,
                                float* y, int64_t ldy) {
    const Eighths<T> x(q8, tokens);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t* row = w + ids[i] * stride;
        f32x8 sum[T];
        multiply<F, T>(row, next.row(i, row), x, sum);
        for (int t = 0; t < T; t++) y[i * ldy + t] = horizontal_sum(sum[t]);
    }
}

// Tiles of 4 tokens: their activations stay in the L1 cache while the kernel walks over the rows.
template <typename F, Q8Rows NeuronInput::*order>
void dot(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t,
         const NeuronInput& x, const int32_t* tokens, int64_t nt, float* y) {
    for_tiles<4>(nt, [&](auto count, int64_t t) {
        dot_tile<F, count>(w, stride, ids, n, x.*order, x.prefetch, tokens + t, y + t, nt);
    });
}

// Are weights decoded before they are multiplied with h, rather than their scale with h? With a min
// they have to be. Those of NVFP4 are exact, and plain_rows.h has no two scales for 32 columns.
template <typename F>
constexpr bool kDecoded = F::has_min || F::blocks == 2;

// Decoding of bytes that share a scale: factor(h) * value(bytes) is h times the weights.
template <typename F>
struct Weighed {
    static Weighed of(const uint8_t* w, int j, int half) {
        const Numbers n = F::numbers(w, j, half);
        return {mul(n.scale, splat(kByteUnit)), n.min};
    }
    f32x8 factor(float h) const { return kDecoded<F> ? splat(h) : mul(splat(h), scale); }
    f32x8 value(i256 bytes, Pick pick) const {
        const f32x8 v = picked(bytes, pick);
        return kDecoded<F> ? add_product(min, scale, v) : v;
    }
    f32x8 scale, min;
};

// The number of groups that share a scale.
template <typename F>
constexpr int kGroups = 8 / F::halves;

// Calls body(j, half) for the scales of a unit in order, those of columns 32 j .. 32 j + 31. In
// straight code most shifts of the _K formats are constants: a row is added in three quarters of
// the time. Four times 32 columns are as good as all eight for most formats, and half of the code;
// grids gain nothing by it, and took three times as long to compile.
template <typename F, typename Body>
[[gnu::always_inline]] inline void for_scales(const Body& body) {
    constexpr int straight = F::straight < F::blocks ? F::straight : F::blocks;
    for (unsigned first = 0; first < unsigned(F::blocks); first += straight) {
#pragma GCC unroll 16
        for (int k = 0; k < straight * F::halves; k++) {
            body(int(first) + k / F::halves, k % F::halves);
        }
    }
}

// For one token. R rows at a time share loads and stores of y; each column still adds rows in
// ascending order.
template <typename F, int R>
void add_tile(const uint8_t* const* rows, const uint8_t* const* aheads, const float* h, float* y,
              int64_t cols) {
    constexpr int64_t size = kUnit<F>;
    const uint8_t *row[R], *ahead[R];
    for (int r = 0; r < R; r++) {
        row[r] = rows[r];
        ahead[r] = aheads[r];
    }
    const i256 bias = splat8(F::bias);
    Pick pick[4];
    for (int i = 0; i < 4; i++) pick[i] = pick_byte(i);
    for (int64_t c = 0; c < cols; c += kStrip * kQ * F::blocks) {
        for (int r = 0; r < R; r++) fetch(ahead[r], size);
        for_scales<F>([&](int j, int half) __attribute__((always_inline)) {
            const int first = half * kGroups<F>;
            Weighed<F> weighed[R];
            f32x8 factor[R];
            for (int r = 0; r < R; r++) {
                weighed[r] = Weighed<F>::of(row[r], j, half);
                factor[r] = weighed[r].factor(h[r]);
            }
            for (int v = first; v < first + kGroups<F>; v++) {
                float* to = y + c + kStrip * kQ * j + 32 * v;
                f32x8 sum[4];
                for (int i = 0; i < 4; i++) sum[i] = load_f32(to + 8 * i);
                for (int r = 0; r < R; r++) {
                    const i256 bytes = sub8(F::weights(row[r], j, v), bias);
                    for (int i = 0; i < 4; i++) {
                        const f32x8 value = weighed[r].value(bytes, pick[i]);
                        sum[i] = add_product(sum[i], factor[r], value);
                    }
                }
                for (int i = 0; i < 4; i++) store(to + 8 * i, sum[i]);
            }
        });
        for (int r = 0; r < R; r++) {
            row[r] += size;
            ahead[r] += size;
        }
    }
}

// Adds 32 of these columns to two tokens that use all n rows. h: [2, n].
template <typename F>
void add_all(const float (*values)[64], const Weighed<F>* weighed, int64_t n, const float* h,
             float* y, int64_t ldy) {
    f32x8 sum[2][4];
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < 4; i++) sum[t][i] = load_f32(y + t * ldy + 8 * i);
    }
    for (int64_t r = 0; r < n; r++) {
        const f32x8 first = weighed[r].factor(h[r]), second = weighed[r].factor(h[n + r]);
        for (int i = 0; i < 4; i++) {
            const f32x8 value = load_f32(values[r] + 8 * i);
            sum[0][i] = add_product(sum[0][i], first, value);
            sum[1][i] = add_product(sum[1][i], second, value);
        }
    }
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < 4; i++) store(y + t * ldy + 8 * i, sum[t][i]);
    }
}

// For several tokens: unpacks 64 columns of all rows once for all tokens. The values stay in the L1
// cache; sums stay in registers while each token adds its rows one by one. The operations and their
// order are those of add_tile, so the bits are the same.
template <typename F>
void add_unpacked(const uint8_t* const* rows, int64_t n, int64_t cols, const WeightedRows& weighted,
                  int64_t nt, float* y, int64_t ldy) {
    constexpr int64_t size = kUnit<F>;
    alignas(32) float values[kMostRows][64];
    Weighed<F> weighed[kMostRows];
    const i256 bias = splat8(F::bias);
    const bool all = weighted.first[nt] - weighted.first[0] == n * nt;
    int64_t at = 0;
    for (int64_t c = 0; c < cols; c += kStrip * kQ * F::blocks, at += size) {
        for_scales<F>([&](int j, int half) __attribute__((always_inline)) {
            const int first = half * kGroups<F>;
            for (int64_t r = 0; r < n; r++) weighed[r] = Weighed<F>::of(rows[r] + at, j, half);
            for (int v = first; v < first + kGroups<F>; v += 2) {
                for (int64_t r = 0; r < n; r++) {
                    for (int i = 0; i < 8; i++) {
                        const i256 bytes = sub8(F::weights(rows[r] + at, j, v + i / 4), bias);
                        store(values[r] + 8 * i, weighed[r].value(bytes, pick_byte(i % 4)));
                    }
                }
                int64_t t = 0;
                for (; all && t + 2 <= nt; t += 2) {
                    float* to = y + t * ldy + c + kStrip * kQ * j + 32 * v;
                    const float* const h = weighted.h + weighted.first[t];
                    add_all<F>(values, weighed, n, h, to, ldy);
                    const auto* second = reinterpret_cast<const float(*)[64]>(values[0] + 32);
                    add_all<F>(second, weighed, n, h, to + 32, ldy);
                }
                for (; t < nt; t++) {
                    const int32_t begin = weighted.first[t], end = weighted.first[t + 1];
                    if (begin == end) continue;
                    float* to = y + t * ldy + c + kStrip * kQ * j + 32 * v;
                    f32x8 sum[8];
                    for (int i = 0; i < 8; i++) sum[i] = load_f32(to + 8 * i);
                    for (int32_t e = begin; e < end; e++) {
                        const float* row = values[weighted.row[e]];
                        const f32x8 factor = weighed[weighted.row[e]].factor(weighted.h[e]);
                        for (int i = 0; i < 8; i++) {
                            sum[i] = add_product(sum[i], factor, load_f32(row + 8 * i));
                        }
                    }
                    for (int i = 0; i < 8; i++) store(to + 8 * i, sum[i]);
                }
            }
        });
    }
}

template <typename F>
void add(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
         const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy) {
    const auto tile = [&](auto count, auto... of) { add_tile<F, count>(of..., cols); };
    const auto unpacked = [&](const uint8_t* const* rows) {
        add_unpacked<F>(rows, n, cols, weighted, nt, y, ldy);
    };
    const auto at = [&](int32_t id) { return w + id * stride; };
    // Three rows are as fast as four, then two, and less code.
    add_blocks<3>(at, ids, n, weighted, nt, y, ldy, tile, unpacked);
}

}  // namespace ggml::cpu::GGML_ISA

// These get the names of kernels in full, so that a search finds where a kernel is defined. Where
// only some are made, the other names are left alone.
#define STRIP_KERNEL(Format, strip_name, ...) const strip_fn strip_name = strips<Format>;
// dot and add of neuron rows: folded rows, or rows as stored (stored_dot and stored_add).
#define NEURON_KERNELS(Format, order, dot_name, add_name)     \
    const dot_fn dot_name = dot<Format, &NeuronInput::order>; \
    const add_fn add_name = add<Format>;
// Where an instruction set has strips alone, BLOCK_ makes only these, and FREQUENT_ what its rows
// of kernels.inc name.
#define ALL_BLOCK_KERNELS(Format, strip_name, dot_name, add_name) \
    STRIP_KERNEL(Format, strip_name, dot_name, add_name)          \
    NEURON_KERNELS(Format, folded, dot_name, add_name)
#define ALL_STORED_KERNELS(Format, dot_name, add_name) \
    NEURON_KERNELS(Format, grouped, dot_name, add_name)
#ifdef GGML_STRIPS_ALONE
#ifdef __clang__  // it warns of constants of formats that only the other kernels use
#pragma clang diagnostic ignored "-Wunused-const-variable"
#endif
#define BLOCK_KERNELS STRIP_KERNEL
#define STORED_KERNELS(...)
#else
#define BLOCK_KERNELS ALL_BLOCK_KERNELS
#define STORED_KERNELS ALL_STORED_KERNELS
#endif
#if defined(GGML_STRIPS_ALONE) && !defined(GGML_FREQUENT_NEURONS)
#define FREQUENT_BLOCK_KERNELS BLOCK_KERNELS
#define FREQUENT_STORED_KERNELS STORED_KERNELS
#else
#define FREQUENT_BLOCK_KERNELS ALL_BLOCK_KERNELS
#define FREQUENT_STORED_KERNELS ALL_STORED_KERNELS
#endif
