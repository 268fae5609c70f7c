// Products of strips with several tokens. Few tokens multiply weights as they are unpacked in
// registers; many share unpacked bytes. Another kernel computes a strip that has no second one, and
// a single token: then memory is the bottleneck, which is fastest when it is read in one sequence.
#pragma once

#include "formats/parts.h"
#include "kernels/avx512/families.h"
#include "kernels/avx512/token_tiles.h"

namespace ggml::cpu::GGML_ISA {

constexpr int kPairs = 2;             // of strips that are computed together
constexpr int64_t kMostTokens = 256;  // whose sums are kept while weights are unpacked

template <typename F>
constexpr int kBlocks = BlockTraits<typename F::Block>::size / kQ;

template <typename F>
int64_t strip_bytes(int64_t cols) {
    return cols / (kQ * kBlocks<F>)*F::unit_bytes;
}

// kPairs packed pairs with T tokens. `more`: others follow.
template <typename F, int T>
[[gnu::noinline]] void packed_tile(const uint8_t* w, bool more, const Q8Rows& q8, int64_t t0,
                                   float* y, int64_t ldy) {
    const Tokens x(q8, t0);
    const int64_t size = strip_bytes<F>(q8.cols);
    // Blocks of 32 or 64 columns all at once, so that sums stay in registers.
    const int n = kBlocks<F> < kUnpacked ? int(x.n_blocks) : kBlocks<F>;
    Ahead ahead{more ? w + 2 * kPairs * size : nullptr, size, F::unit_bytes / kBlocks<F>};
    __m512 sum[kPairs][T];
    start_at_0(sum);
    for (int64_t b = 0; b < x.n_blocks; b += n) {
        const F u[kPairs] = {F({w, w + size}), F({w + 2 * size, w + 3 * size})};
        F::Family::add(u, n, x, b, sum, ahead);
        w += F::unit_bytes;
        if (ahead.w) ahead.w += F::unit_bytes;
    }
    for (int s = 0; s < kPairs; s++) {
        for (int t = 0; t < T; t++) _mm512_storeu_ps(y + t * ldy + 2 * kStrip * s, sum[s][t]);
    }
}

// n unpacked blocks from x's block b on. sums: [T][S].
template <typename Family, int S, int T>
[[gnu::noinline]] void unpacked_tile(const typename Family::Unpacked* u, int n, const Q8Rows& q8,
                                     int64_t t0, int64_t b, __m512* sums, const Ahead& ahead) {
    const Tokens x(q8, t0);
    __m512 sum[S][T];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        for (int s = 0; s < S; s++) sum[s][t] = b ? sums[t * S + s] : _mm512_setzero_ps();
    }
    Family::add(u, n, x, b, sum, ahead);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        for (int s = 0; s < S; s++) sums[t * S + s] = sum[s][t];
    }
}

// 2 S strips with at most kMostTokens tokens.
template <typename F, int S>
void unpacked(const uint8_t* w, bool more, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
              int64_t ldy) {
    using Family = typename F::Family;
    using Unpacked = typename Family::Unpacked;
    const int64_t size = strip_bytes<F>(x.cols), n_blocks = x.cols / kQ;
    __m512 sums[kMostTokens * S];
    for (int64_t b = 0; b < n_blocks; b += kUnpacked) {
        const int n = n_blocks - b < kUnpacked ? int(n_blocks - b) : kUnpacked;
        const uint8_t* const at = w + b / kBlocks<F> * F::unit_bytes;
        const auto pair = [&](int s) {
            return Unpacked(F({at + 2 * s * size, at + (2 * s + 1) * size}), n);
        };
        const auto all = [&](const Unpacked* u) {
            for_tiles<2>(nt, [&](auto count, int64_t t) {
                const Ahead ahead{more && !t ? at + 2 * S * size : nullptr, size,
                                  F::unit_bytes / kBlocks<F>};
                unpacked_tile<Family, S, count>(u, n, x, t0 + t, b, sums + t * S, ahead);
            });
        };
        if constexpr (S == 2) {
            const Unpacked u[] = {pair(0), pair(1)};
            all(u);
        } else {
            const Unpacked u[] = {pair(0)};
            all(u);
        }
    }
    for (int64_t t = 0; t < nt; t++) {
        for (int s = 0; s < S; s++) _mm512_storeu_ps(y + t * ldy + 2 * kStrip * s, sums[t * S + s]);
    }
}

template <typename F, int S>
void pairs(const uint8_t* w, bool more, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
           int64_t ldy) {
    if constexpr (S == kPairs && F::few) {
        if (nt <= F::few) {
            for_tiles<2>(nt, [&](auto count, int64_t t) {
                packed_tile<F, count>(w, more && !t, x, t0 + t, y + t * ldy, ldy);
            });
            return;
        }
    }
    for (int64_t t = 0; t < nt;) {
        const int64_t left = nt - t;
        int64_t n = left < kMostTokens ? left : kMostTokens;
        if (left - n == 1) n--;  // a tile has two tokens or more
        unpacked<F, S>(w, more && !t, x, t0 + t, n, y + t * ldy, ldy);
        t += n;
    }
}

template <typename F, const strip_fn& narrow>
void strips(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
            int64_t ldy) {
    if (nt == 1) return narrow(w, n, x, t0, nt, y, ldy);
    const int64_t size = strip_bytes<F>(x.cols);
    int64_t i = 0;
    for (constexpr int all = 2 * kPairs; i + all <= n; i += all) {
        const bool more = i + 2 * all <= n;
        pairs<F, kPairs>(w + i * size, more, x, t0, nt, y + i * kStrip, ldy);
    }
    for (; i + 2 <= n; i += 2) pairs<F, 1>(w + i * size, false, x, t0, nt, y + i * kStrip, ldy);
    if (i < n) narrow(w + i * size, n - i, x, t0, nt, y + i * kStrip, ldy);
}

}  // namespace ggml::cpu::GGML_ISA
