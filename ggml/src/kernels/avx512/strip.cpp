// Products of strips with several tokens. vnni computes what does not fill a tile, above all a
// single token, where memory is the bottleneck anyway.
#include "kernels/avx512/pairs.h"

namespace ggml::cpu::avx512 {

namespace {

template <typename F, int S, int T>
[[gnu::noinline]] void tile(const uint8_t* w, int64_t strip_bytes, const Q8Rows& q8, int64_t t0,
                            float* y, int64_t ldy) {
    Pair pairs[S];
    for (Pair& pair : pairs) {
        pair = {w, w + strip_bytes};
        w += 2 * strip_bytes;
    }
    __m512 sum[S][T];
    multiply<F>(pairs, Tokens(q8, t0), sum);
    for (int s = 0; s < S; s++) {
        for (int t = 0; t < T; t++) _mm512_storeu_ps(y + t * ldy + 2 * kStrip * s, sum[s][t]);
    }
}

template <typename F, const strip_fn& narrow>
void strips(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
            int64_t ldy) {
    if (nt <= kFewest) return narrow(w, n, x, t0, nt, y, ldy);
    const int64_t size = x.cols / (kQ * F::blocks) * kStrip * int64_t(sizeof(typename F::Block));
    int64_t i = 0;
    const auto pairs = [&](auto count) {
        for (; i + 2 * count <= n; i += 2 * count) {
            for_tiles(nt, [&](auto tokens, int64_t t) {
                tile<F, count, tokens>(w + i * size, size, x, t0 + t, y + i * kStrip + t * ldy,
                                       ldy);
            });
        }
    };
    pairs(Count<2>());
    pairs(Count<1>());
    if (i < n) narrow(w + i * size, n - i, x, t0, nt, y + i * kStrip, ldy);
}

}  // namespace

const strip_fn strip__q4_0_q8 = strips<PairsQ4_0, vnni::strip__q4_0_q8>;
const strip_fn strip__q8_0_q8 = strips<PairsQ8_0, vnni::strip__q8_0_q8>;
const strip_fn strip__q4_k_q8 = strips<PairsQ4_K, vnni::strip__q4_k_q8>;

}  // namespace ggml::cpu::avx512
