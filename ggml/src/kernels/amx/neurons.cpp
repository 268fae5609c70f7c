// Products of many folded neuron rows with many tokens by AMX. The eight lanes of a folded row are
// eighths of it, and each has a sum of its own. So 16 rows are turned into tiles of 32 columns of
// one eighth, and a token's activations are read in their own order. The exact integers and the
// float operations are those of avx2, so the bits are the same. avx512 computes what fills no tile.
#include "kernels/amx/tiles.h"

namespace ggml::cpu::amx {

namespace {

constexpr int kBlocks = 4;           // of 32 columns of each eighth, unpacked at a time
constexpr int64_t kMostTokens = 64;  // whose sums are kept meanwhile

// What a thread needs: 57 KiB on its stack. By block and eighth, as folded rows are.
struct alignas(64) Scratch {
    Weights weights[kBlocks][kStrip];
    float scale[kBlocks][kStrip][kRows];
    float x_scale[kBlocks * kStrip][kTokens];
    Product product[4];
    float sums[kMostTokens / kTokens][kStrip][kTokens][kRows];
};

// in[i]: eight lanes of row i and of row i + 8. to(lane): the address of this lane of all rows.
template <typename To>
inline void turn_lanes(const __m512i (&in)[8], const To& to) {
    __m512i a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    // b[j] has lanes j and 4 + j of rows 0 to 3 and 8 to 11, b[4 + j] of the others.
    const __m512i low = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0),
                  high = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        _mm512_store_si512(to(j), _mm512_permutex2var_epi64(b[j], low, b[4 + j]));
        _mm512_store_si512(to(4 + j), _mm512_permutex2var_epi64(b[j], high, b[4 + j]));
    }
}

// Unpacks n blocks of each eighth of 16 rows.
template <typename F>
void unpack(const uint8_t* const (&rows)[kRows], int64_t first, int n, Scratch& s) {
    constexpr int64_t size = kStrip * int64_t(sizeof(typename F::Block));
    for (int b = 0; b < n; b++) {
        Pair pairs[8];
        for (int i = 0; i < 8; i++) pairs[i] = Pair{rows[i], rows[i + 8]} + (first + b) * size;
        __m512i turned[8];
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) turned[i] = signed_weights<F>(pairs[i], 0, v);
            turn_lanes(turned, [&](int lane) { return s.weights[b][lane][v]; });
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) turned[i] = _mm512_castps_si512(load_scales(pairs[i]));
        turn_lanes(turned, [&](int lane) { return s.scale[b][lane]; });
    }
}

// Adds the products of n <= kBlocks unpacked blocks, an even number, of each eighth with a tile of
// tokens. q: the activations of the first token's first eighth, d: its scales in folded order.
void add_tile(Scratch& s, int n, const int8_t* q, int64_t cols, const float* d,
              float (&sums)[kStrip][kTokens][kRows]) {
    for (int k = 0; k < n * int(kStrip); k += 16) {
        turn(d + k, cols / kQ, 16, s.x_scale + k);
    }
    int next = 0;  // the products of the next two blocks are s.product[next] and [next + 1]
    const auto multiply_two = [&](int lane, int b) {
        const int8_t* const at = q + lane * (cols / kStrip) + b * kQ;
        multiply(s.weights[b][lane], s.weights[b + 1][lane], at, at + kQ, cols, s.product[next],
                 s.product[next + 1]);
        next ^= 2;
    };
    __m512 sum[kTokens];
    multiply_two(0, 0);
    for (int lane = 0; lane < kStrip; lane++) {
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; t++) sum[t] = _mm512_load_ps(sums[lane][t]);
        for (int b = 0; b < n; b += 2) {
            const Product* const product = s.product + (next ^ 2);
            // The next two: a load waits until the store of a tile is complete.
            if (b + 2 < n) {
                multiply_two(lane, b + 2);
            } else if (lane + 1 < kStrip) {
                multiply_two(lane + 1, 0);
            }
#pragma GCC unroll 2
            for (int i = b; i < b + 2; i++) {
                const __m512 scale = _mm512_load_ps(s.scale[i][lane]);
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; t++) {
                    const __m512 exact = _mm512_cvtepi32_ps(_mm512_load_si512(product[i - b][t]));
                    const __m512 x_scale = _mm512_set1_ps(s.x_scale[i * int(kStrip) + lane][t]);
                    sum[t] = _mm512_fmadd_ps(_mm512_mul_ps(scale, x_scale), exact, sum[t]);
                }
            }
        }
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; t++) _mm512_store_ps(sums[lane][t], sum[t]);
    }
}

// y[r * ldy + t] = the sum of the lanes' sums of row r and token t, in the order of horizontal_sum.
void put_tile(const float (&sums)[kStrip][kTokens][kRows], float* y, int64_t ldy) {
    alignas(64) float total[kTokens][kRows], turned[kRows][kTokens];
    for (int t = 0; t < kTokens; t++) {
        const auto lanes = [&](int a, int b) {
            return _mm512_add_ps(_mm512_load_ps(sums[a][t]), _mm512_load_ps(sums[b][t]));
        };
        _mm512_store_ps(total[t], _mm512_add_ps(_mm512_add_ps(lanes(0, 4), lanes(2, 6)),
                                                _mm512_add_ps(lanes(1, 5), lanes(3, 7))));
    }
    turn(total[0], kRows, kTokens, turned);
    for (int r = 0; r < kRows; r++) _mm512_storeu_ps(y + r * ldy, _mm512_load_ps(turned[r]));
}

bool are_neighbours(const int32_t* tokens, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        if (tokens[i] != tokens[0] + i) return false;
    }
    return true;
}

template <typename F, const dot_fn& narrow>
void dot(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
         const NeuronInput& x, const int32_t* tokens, int64_t nt, float* y) {
    const int64_t n_blocks = cols / kQ / kStrip, tiles = (nt + kTokens - 1) / kTokens;
    // The last tile begins early enough to be full, so some tokens may be computed twice: at most a
    // third of them.
    const bool full = nt >= kTokens && 3 * kTokens * tiles <= 4 * nt;
    if (full && n >= kRows && n_blocks % 2 == 0 && are_neighbours(tokens, nt)) {
        const Shapes shapes;
        Scratch s;
        _tile_loadconfig(&shapes);
        for (; n >= kRows; n -= kRows, ids += kRows, y += kRows * nt) {
            const uint8_t* rows[kRows];
            for (int i = 0; i < kRows; i++) rows[i] = w + ids[i] * stride;
            for (int64_t first = 0; first < tiles; first += kMostTokens / kTokens) {
                const int64_t m = lesser(tiles - first, kMostTokens / kTokens);
                const auto begin = [&](int64_t i) {
                    return lesser((first + i) * kTokens, nt - kTokens);
                };
                for (int64_t i = 0; i < m; i++) {
                    float* const sums = s.sums[i][0][0];
                    for (int k = 0; k < kStrip * kTokens * kRows; k += 16) {
                        _mm512_store_ps(sums + k, _mm512_setzero_ps());
                    }
                }
                for (int64_t b = 0; b < n_blocks; b += kBlocks) {
                    const int count = int(lesser<int64_t>(kBlocks, n_blocks - b));
                    unpack<F>(rows, b, count, s);
                    written();
                    for (int64_t i = 0; i < m; i++) {
                        const int64_t t = tokens[0] + begin(i);
                        add_tile(s, count, x.q8.q + t * cols + b * kQ, cols,
                                 x.folded.d + t * (cols / kQ) + b * kStrip, s.sums[i]);
                    }
                }
                for (int64_t i = 0; i < m; i++) put_tile(s.sums[i], y + begin(i), nt);
            }
        }
        _tile_release();
    }
    if (n) narrow(w, stride, ids, n, cols, x, tokens, nt, y);
}

}  // namespace

const dot_fn dot__q4_0 = dot<PairsQ4_0, avx512::dot__q4_0>;
const dot_fn dot__q8_0 = dot<PairsQ8_0, avx512::dot__q8_0>;

}  // namespace ggml::cpu::amx
