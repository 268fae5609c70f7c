// Products of strips with many tokens by AMX: one instruction multiplies a tile of 16 tokens and 32
// columns with one of 32 columns and 16 rows of weights. A strip holds four columns of eight rows
// side by side, so two strips of unpacked bytes are such a tile. The exact integers of a block of
// 32 columns and the float operations are those of avx2, so the bits are the same. avx512 computes
// what has fewer tokens.
//
// On a core of Sapphire Rapids, 10^9 multiply-adds per second of avx512 and amx with 2,048 columns
// and 16, 32 and 128 tokens: Q4_0 240, 241, 245 and 333, 362, 356; Q8_0 236, 236, 240 and 304, 338,
// 348.
#include "kernels/amx/tiles.h"

namespace ggml::cpu::amx {

namespace {

static_assert(kRows == 2 * kStrip);
constexpr int kUnpacked = 32;         // blocks of 32 columns that are unpacked at a time
constexpr int64_t kMostTokens = 128;  // whose sums are kept meanwhile

// What a thread needs: 37 KiB on its stack.
struct alignas(64) Scratch {
    Weights weights[kUnpacked];
    __m512 scale[kUnpacked];            // of 32 columns of each row
    __m512 unit[kUnpacked / 8];         // Q4_K: of 256 columns
    __m512 min[kUnpacked];              // Q4_K: of 32 columns
    float x_scale[kUnpacked][kTokens];  // of 32 columns of each token
    float x_sum[kUnpacked][kTokens];    // Q4_K: their scaled sums
    Product product[4];
    float sums[kMostTokens][kRows];
};

// Unpacks n blocks of 32 columns of a pair of strips to signed bytes.
template <typename F>
void unpack(Pair w, int n, Scratch& s) {
    for (int b = 0; b < n; b += F::blocks) {
#pragma GCC unroll 8
        for (int j = 0; j < F::blocks; j++) {
#pragma GCC unroll 8
            for (int v = 0; v < 8; v++) {
                _mm512_store_si512(s.weights[b + j][v], signed_weights<F>(w, j, v));
            }
        }
        if constexpr (F::blocks == 1) {
            s.scale[b] = F::scales(w);
        } else {
            const Factors packed = F::factors(w);
            const __m512 unit_min = load_scales(w + kStrip * offsetof(typename F::Block, dmin));
            s.unit[b / 8] = load_scales(w);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                s.scale[b + j] = _mm512_cvtepi32_ps(Factors::one(packed.scales, j));
                s.min[b + j] =
                    _mm512_mul_ps(unit_min, _mm512_cvtepi32_ps(Factors::one(packed.mins, j)));
            }
        }
        w = w + kStrip * int64_t(sizeof(typename F::Block));
    }
}

// Adds the products of n unpacked blocks with a tile of tokens, from x's block `first` on, to
// `sums`. n is even.
template <typename F>
[[gnu::noinline]] void add_tile(Scratch& s, int n, const Tokens& x, int64_t first,
                                float (*sums)[kRows]) {
    const int8_t* const q = x.q + first * kQ;
    for (int b = 0; b < n; b += 16) {
        const int m = lesser(n - b, 16);
        turn(x.d + first + b, x.n_blocks, m, s.x_scale + b);
        if (F::blocks > 1) turn(x.ds + first + b, x.n_blocks, m, s.x_sum + b);
    }
    // All loops over tokens are unrolled, so that these stay in registers.
    __m512 sum[kTokens];  // Q4_K: of 256 columns, without d
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; t++) {
        sum[t] = F::blocks == 1 ? _mm512_load_ps(sums[t]) : _mm512_setzero_ps();
    }
    const auto multiply_two = [&](int b) {
        multiply(s.weights[b], s.weights[b + 1], q + b * kQ, q + b * kQ + kQ, x.cols,
                 s.product[b % 4], s.product[b % 4 + 1]);
    };
    multiply_two(0);
    for (int b = 0; b < n; b += 2) {
        // Two blocks ahead: a load waits until the store of a tile is complete.
        if (b + 2 < n) multiply_two(b + 2);
#pragma GCC unroll 2
        for (int i = b; i < b + 2; i++) {
            const __m512 scale = s.scale[i];
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; t++) {
                const __m512 exact = _mm512_cvtepi32_ps(_mm512_load_si512(s.product[i % 4][t]));
                const __m512 x_scale = _mm512_set1_ps(s.x_scale[i][t]);
                if constexpr (F::blocks == 1) {
                    sum[t] = _mm512_fmadd_ps(_mm512_mul_ps(scale, x_scale), exact, sum[t]);
                } else {  // a product with an integer scale is exact in floats, too: below 2^24
                    sum[t] = _mm512_fmadd_ps(x_scale, _mm512_mul_ps(exact, scale), sum[t]);
                }
            }
        }
        if (F::blocks == 1 || b % 8 != 6) continue;
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; t++) {
            __m512 total = _mm512_fmadd_ps(s.unit[b / 8], sum[t], _mm512_load_ps(sums[t]));
#pragma GCC unroll 8
            for (int j = b - 6; j < b + 2; j++) {
                total = _mm512_fnmadd_ps(s.min[j], _mm512_set1_ps(s.x_sum[j][t]), total);
            }
            _mm512_store_ps(sums[t], total);
            sum[t] = _mm512_setzero_ps();
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; t++) {
        if (F::blocks == 1) _mm512_store_ps(sums[t], sum[t]);
    }
}

// Two strips with nt tokens from t0 on, a multiple of kTokens and at most kMostTokens.
template <typename F>
void two_strips(Pair w, const Q8Rows& x, int64_t t0, int64_t nt, Scratch& s, float* y,
                int64_t ldy) {
    const int64_t n_blocks = x.cols / kQ;
    for (int64_t t = 0; t < nt; t++) _mm512_store_ps(s.sums[t], _mm512_setzero_ps());
    for (int64_t b = 0; b < n_blocks; b += kUnpacked) {
        const int n = int(lesser<int64_t>(kUnpacked, n_blocks - b));
        unpack<F>(w + b / F::blocks * kStrip * int64_t(sizeof(typename F::Block)), n, s);
        written();
        for (int64_t t = 0; t < nt; t += kTokens) {
            add_tile<F>(s, n, Tokens(x, t0 + t), b, s.sums + t);
        }
    }
    for (int64_t t = 0; t < nt; t++) {
        _mm512_storeu_ps(y + t * ldy, _mm512_load_ps(s.sums[t]));
    }
}

template <typename F, const strip_fn& narrow>
void strips(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
            int64_t ldy) {
    // A product of two blocks at a time needs an even number of them.
    const int64_t whole = x.cols % (2 * kQ) ? 0 : nt / kTokens * kTokens;
    if (whole && n >= 2) {
        const int64_t size =
            x.cols / (kQ * F::blocks) * kStrip * int64_t(sizeof(typename F::Block));
        const Shapes shapes;
        Scratch s;
        _tile_loadconfig(&shapes);
        for (int64_t t = 0; t < whole; t += kMostTokens) {
            for (int64_t i = 0; i + 2 <= n; i += 2) {
                two_strips<F>({w + i * size, w + (i + 1) * size}, x, t0 + t,
                              lesser(kMostTokens, whole - t), s, y + i * kStrip + t * ldy, ldy);
            }
        }
        _tile_release();
        if (n % 2) narrow(w + (n - 1) * size, 1, x, t0, whole, y + (n - 1) * kStrip, ldy);
        if (whole < nt) narrow(w, n, x, t0 + whole, nt - whole, y + whole * ldy, ldy);
        return;
    }
    narrow(w, n, x, t0, nt, y, ldy);
}

}  // namespace

const strip_fn strip__q4_0_q8 = strips<PairsQ4_0, avx512::strip__q4_0_q8>;
const strip_fn strip__mxfp4_q8 = strips<PairsMXFP4, avx512::strip__mxfp4_q8>;
const strip_fn strip__q8_0_q8 = strips<PairsQ8_0, avx512::strip__q8_0_q8>;
const strip_fn strip__q4_k_q8 = strips<PairsQ4_K, avx512::strip__q4_k_q8>;

}  // namespace ggml::cpu::amx
