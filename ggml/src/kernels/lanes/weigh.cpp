// Weighted sums of values in blocks, by integers. Lanes are columns, and the bytes of a lane four
// positions; a weight is a high and a low byte.
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/simd.h"
#include "kernels/value_blocks.h"

namespace ggml::cpu::GGML_ISA {

namespace {

constexpr int kRegisters = int(kKvPage) / 8;

// The values of a range of positions, and 0 for the others of a page, which may be no numbers.
template <typename T>
inline void take_range(const T* values, int64_t from, int64_t to, T (&out)[kKvPage]) {
    std::memset(out, 0, sizeof(out));
    std::memcpy(out + from, values + from, size_t(to - from) * sizeof(T));
}

// The weights of a query, as shares of the largest.
struct Shares {
    void take(const float* a, int64_t from, int64_t to) {
        take_range(a, from, to, share);
        f32x8 v[kRegisters], top = splat(0);
        for (int i = 0; i < kRegisters; i++) {
            v[i] = max(load_f32(share + 8 * i), splat(0));
            top = max(v[i], top);
        }
        most = horizontal_max(top);
        const f32x8 inverse = splat(most > 0 ? 1 / most : 0);
        for (int i = 0; i < kRegisters; i++) store(share + 8 * i, mul(v[i], inverse));
    }
    float share[kKvPage];
    float most;
};

// Those times the scales of a block of columns.
struct Bytes {
    void split(const Shares& of, const f32x8 (&scale)[kRegisters]) {
        for (int half = 0; half < 2; half++) {
            i256 h[4], l[4];
            for (int i = 0; i < 4; i++) {
                const int r = 4 * half + i;
                const i256 weight = to_int(mul(load_f32(of.share + 8 * r), scale[r]));
                h[i] = shift_right32(weight, kWeightBits);
                l[i] = weight & splat32((1 << kWeightBits) - 1);
            }
            const i256 highs = pack(h), lows = pack(l);
            std::memcpy(high + 32 * half, &highs, sizeof(highs));
            std::memcpy(low + 32 * half, &lows, sizeof(lows));
        }
    }
    uint8_t high[kKvPage], low[kKvPage];
};

// y += unit * the products of codes with the weights, for 16 columns.
template <int T>
void add(const uint8_t* codes, const Bytes* weights, const float* unit, float* y, int64_t ldy) {
    i256 high[T][2], low[T][2];
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < 2; i++) high[t][i] = low[t][i] = splat32(0);
    }
    for (int64_t p = 0; p < kKvPage; p += 4, codes += 4 * kQ) {
        const i256 value[2] = {load(codes), load(codes + 32)};
        for (int t = 0; t < T; t++) {
            const i256 h = word(weights[t].high + p), l = word(weights[t].low + p);
            for (int i = 0; i < 2; i++) {
                high[t][i] = add32(high[t][i], code_products(h, value[i]));
                low[t][i] = add32(low[t][i], code_products(l, value[i]));
            }
        }
    }
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < 2; i++) {
            // Each is exact, so that their sum rounds once.
            const f32x8 sum =
                add_product(to_float(low[t][i]), splat(1 << kWeightBits), to_float(high[t][i]));
            float* const to = y + t * ldy + 8 * i;
            store(to, add_product(load_f32(to), splat(unit[t]), sum));
        }
    }
}

template <int T>
void tile(const uint8_t* run, const uint8_t* next, int64_t head_dim, int64_t from, int64_t to,
          const float* a, int64_t lda, float* y, int64_t ldy) {
    Shares shares[T];
    for (int t = 0; t < T; t++) shares[t].take(a + t * lda, from, to);
    for (int64_t b = 0; b < head_dim / kQ; b++) {
        for (int64_t i = 0; i < kKvPage * kQ; i += 64) {
            __builtin_prefetch(next + codes_at(b) + i, 0, 2);
        }
        f16_t scales[kKvPage];
        take_range(reinterpret_cast<const f16_t*>(run + scales_at(head_dim, b)), from, to, scales);
        f32x8 d[2][4], top = splat(0);
        for (int i = 0; i < kRegisters; i++) {
            d[i / 4][i % 4] = load_f16(scales + 8 * i);
            top = max(d[i / 4][i % 4], top);
        }
        const float largest = horizontal_max(top);
        const bool numbers = largest < INFINITY && !any_nan(d[0]) && !any_nan(d[1]);
        if (numbers && largest == 0) continue;
        f32x8 factors[kRegisters];
        const f32x8 most = splat(numbers ? kMostWeight / largest : 0);
        for (int i = 0; i < kRegisters; i++) factors[i] = mul(d[i / 4][i % 4], most);
        Bytes weights[T];
        float unit[T];
        for (int t = 0; t < T; t++) {
            weights[t].split(shares[t], factors);
            unit[t] = numbers ? shares[t].most * largest * (1 / kMostWeight) : NAN;
        }
        for (int64_t c = 0; c < kQ; c += 16) {
            add<T>(run + codes_at(b) + 4 * c, weights, unit, y + b * kQ + c, ldy);
        }
    }
}

void weigh(const uint8_t* run, const uint8_t* next, int64_t head_dim, int64_t from, int64_t to,
           const float* a, int64_t lda, int64_t nt, float* y, int64_t ldy) {
    int64_t t = 0;
    for (; t + 2 <= nt; t += 2) {
        tile<2>(run, t ? run : next, head_dim, from, to, a + t * lda, lda, y + t * ldy, ldy);
    }
    if (t < nt) {
        tile<1>(run, t ? run : next, head_dim, from, to, a + t * lda, lda, y + t * ldy, ldy);
    }
}

}  // namespace

const weigh_fn weigh__q8_0 = weigh;

}  // namespace ggml::cpu::GGML_ISA
