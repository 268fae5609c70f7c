// Scores of attention: lanes are positions. Tiles of T queries share the loads of keys. Every score
// has one sum that runs over the columns in ascending order, so its bits do not depend on the tile.
#include "kernels/lanes/softmax.h"
#include "kernels/lanes/values.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// Half a page of positions by T queries fill the registers.
constexpr int kHalf = int(kKvPage) / 2;

template <typename W, int T>
void tile(const uint8_t* keys, const uint8_t* next, int64_t head_dim, const float* q, float* y,
          int64_t ldy) {
    f32x8 sum[T][kHalf / 8];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 8
        for (int i = 0; i < kHalf / 8; i++) sum[t][i] = splat(0);
    }
    constexpr int64_t column = kKvPage * W::size;
    for (int64_t c = 0; c < head_dim; c++, keys += column, next += column) {
        for (int i = 0; i < column / 2; i += 64) __builtin_prefetch(next + i, 0, 2);
        f32x8 factor[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) factor[t] = splat(q[t * head_dim + c]);
#pragma GCC unroll 8
        for (int i = 0; i < kHalf / 8; i++) {
            const f32x8 key = W::load8(keys, 8 * i);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) sum[t][i] = add_product(sum[t][i], factor[t], key);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 8
        for (int i = 0; i < kHalf / 8; i++) store(y + t * ldy + 8 * i, sum[t][i]);
    }
}

template <typename W>
void scores(const uint8_t* keys, const uint8_t* next, int64_t head_dim, int64_t n, const float* q,
            int64_t nt, float* y, int64_t ldy) {
    for (int half = 0; half * kHalf < n; half++, y += kHalf) {
        const auto tiles = [&](auto T, int64_t t) {
            const int64_t at = half * kHalf * W::size;
            tile<W, T>(keys + at, (t ? keys : next) + at, head_dim, q + t * head_dim, y + t * ldy,
                       ldy);
        };
        int64_t t = 0;
        for (; nt - t == 3 || nt - t > 4; t += 3) tiles(Count<3>(), t);
        for (; t + 2 <= nt; t += 2) tiles(Count<2>(), t);
        if (t < nt) tiles(Count<1>(), t);
    }
}

struct TwiceEight {
    static float largest(const float* x, int64_t n) {
        f32x8 even = splat(-INFINITY), odd = even;
        for (int64_t i = 0; i < n; i += 16) {
            even = max(load_f32(x + i), even);
            odd = max(load_f32(x + i + 8), odd);
        }
        return horizontal_max(max(even, odd));
    }
    static float total(const float* x, int64_t n) {
        float sums[16] = {};
        for (int64_t i = 0; i < n; i += 16) {
            for (int j = 0; j < 16; j++) sums[j] += x[i + j];
        }
        for (int half = 8; half > 0; half /= 2) {
            for (int j = 0; j < half; j++) sums[j] += sums[j + half];
        }
        return sums[0];
    }
    static void outside(float* x, int64_t n, int64_t begin, int64_t end, float v) {
        for (int64_t i = 0; i < begin; i++) x[i] = v;
        for (int64_t i = end; i < n; i++) x[i] = v;
    }
};

}  // namespace

const scores_fn scores__f32_f32 = scores<F32>;
const scores_fn scores__f16_f32 = scores<F16>;
const softmax_fn softmax__f32 = softmax<TwiceEight>;

}  // namespace ggml::cpu::GGML_ISA
