// Products of pairs of strips with tokens, for each family of formats. The exact integers of 32
// columns and the float operations are those of avx2, so the bits are the same.
//
// A family's add() adds to `sum` the products of S pairs with T tokens: n blocks of 32 columns,
// the first of which is x's block `at`. The pairs are of a type with these members, which either
// reads packed strips (strip_formats.h) or holds what was unpacked of them:
//   group(b, v)      group v of block b as unsigned bytes
//   scale(b) ..      what the family needs besides
// Unpacked bytes stay in the L1 cache while all tokens use them. So every format's prompts are
// equally fast, however many operations its bits take. (Few tokens would wait for the stores.)
//
// Products with integer scales are below 2^24, hence exact in floats; and so are those with a scale
// of NVFP4, which has four bits.
#pragma once

#include <cstring>

#include "ggml/ops.h"
#include "kernels/avx512/pairs.h"

namespace ggml::cpu::GGML_ISA {

// A pair of packed strips from a unit on, of which the formats derive theirs.
template <typename Format, typename Of>
struct PackedPair {
    using Block = Format;
    using Family = Of;
    static constexpr int64_t unit_bytes = kStrip * int64_t(sizeof(Block));

    // Does a group share most of its work with the others of its block, rather than of the unit?
    static constexpr bool by_blocks = false;

    explicit PackedPair(Pair pair) : w(pair) {}
    Pair member(size_t offset) const { return w + kStrip * int64_t(offset); }
    // Of block b.
    Pair member(size_t offset, int b) const { return member(offset) + b * unit_bytes; }

    const Pair w;
};

inline __m512i splat8(int v) {
    return _mm512_set1_epi8(char(v));
}
constexpr int kUnpacked = 8;  // blocks of 32 columns that are unpacked at a time

// What to prefetch meanwhile: `bytes` for each block, of several strips. A core has room for only a
// few outstanding cache lines, so they are requested little by little.
struct Ahead {
    const uint8_t* w = nullptr;
    int64_t strip_bytes = 0, bytes = 0;

    template <int strips>
    void fetch(int b) const {
        if (!w) return;
        for (int s = 0; s < strips; s++) {
            const uint8_t* const from = w + s * strip_bytes + b * bytes;
            for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
        }
    }
};

// sum += the products of groups [first, last) of block b with x's block `at`.
template <int first, int last, typename U, int S, int T>
inline void add_products(const U* u, int b, const Tokens& x, int64_t at, __m512i (&sum)[S][T]) {
#pragma GCC unroll 8
    for (int v = first; v < last; v++) {
        __m512i weights[S];
        for (int s = 0; s < S; s++) weights[s] = u[s].group(b, v);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512i values = x.values(t, at, v);
            for (int s = 0; s < S; s++) {
                sum[s][t] = _mm512_dpbusd_epi32(sum[s][t], weights[s], values);
            }
        }
    }
}

template <typename V, int S, int T>
inline void start_at_0(V (&sum)[S][T]) {
    for (auto& of_pair : sum) {
        for (V& one : of_pair) one = V{};
    }
}

// What all families keep of an unpacked pair.
struct Bytes {
    __m512i group(int b, int v) const { return bytes[b][v]; }
    // All groups of a block at once, or one group of all blocks: that shares loads.
    template <typename F>
    void unpack_block(const F& f, int b) {
        __m512i all[8];
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) all[v] = f.group(b, v);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) bytes[b][v] = all[v];
    }
    template <typename F>
    void unpack_unit(const F& f) {
        if constexpr (F::by_blocks) {
            for (int b = 0; b < kUnpacked; b++) unpack_block(f, b);
        } else {
            for (int v = 0; v < 8; v++) unpack_group(f, v);
        }
    }
    template <typename F>
    void unpack_group(const F& f, int v) {
        __m512i all[8];
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++) all[b] = f.group(b, v);
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++) bytes[b][v] = all[b];
    }

    __m512i bytes[kUnpacked][8];
};

// One scale per 32 columns, and an offset of the codes.
struct OneScale {
    struct Unpacked : Bytes {
        template <typename F>
        Unpacked(const F& f, int n) {
            for (int b = 0; b < n; b++) {
                unpack_block(f, b);
                scales[b] = f.scale(b);
            }
            bias = F::bias;
        }
        __m512 scale(int b) const { return scales[b]; }

        __m512 scales[kUnpacked];
        int bias;
    };

    template <int S, int T, typename U>
    static void add(const U* u, int n, const Tokens& x, int64_t at, __m512 (&sum)[S][T],
                    const Ahead& ahead) {
        for (int b = 0; b < n; b++) {
            ahead.fetch<2 * S>(b);
            __m512i product[S][T];
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const int32_t sum = x.s8[t * x.n_blocks + at + b] >> 3;  // exact
                const __m512i start = _mm512_set1_epi32(-(sum * u[0].bias));
                for (int s = 0; s < S; s++) product[s][t] = start;
            }
            add_products<0, 8>(u, b, x, at + b, product);
            __m512 scale[S];
            for (int s = 0; s < S; s++) scale[s] = u[s].scale(b);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m512 x_scale = x.scale(t, at + b);
                for (int s = 0; s < S; s++) {
                    sum[s][t] = _mm512_fmadd_ps(_mm512_mul_ps(scale[s], x_scale),
                                                _mm512_cvtepi32_ps(product[s][t]), sum[s][t]);
                }
            }
        }
    }
};

// exact = or, of the second half of a block, += the products of 16 columns with their scale. `bias`
// is that of the codes.
template <int h, int bias, typename U, int S, int T>
inline void add_half(const U* u, int b, const Tokens& x, int64_t at, __m512 (&exact)[S][T]) {
    __m512i product[S][T];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        const __m512i start = _mm512_set1_epi32(-bias * x.s16[2 * (t * x.n_blocks + at) + h]);
        for (int s = 0; s < S; s++) product[s][t] = start;
    }
    add_products<4 * h, 4 * h + 4>(u, b, x, at, product);
    for (int s = 0; s < S; s++) {
        const __m512 scale = u[s].scale(b, h);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512 p = _mm512_cvtepi32_ps(product[s][t]);
            exact[s][t] = h ? _mm512_fmadd_ps(p, scale, exact[s][t]) : _mm512_mul_ps(p, scale);
        }
    }
}

// A scale per 16 columns, and an offset of the codes.
template <int bias>
struct TwoScales {
    struct Unpacked : Bytes {
        template <typename F>
        Unpacked(const F& f, int n) {
            for (int b = 0; b < n; b++) {
                unpack_block(f, b);
                for (int half = 0; half < 2; half++) scales[b][half] = f.scale(b, half);
            }
        }
        __m512 scale(int b, int half) const { return scales[b][half]; }

        __m512 scales[kUnpacked][2];
    };

    template <int S, int T, typename U>
    static void add(const U* u, int n, const Tokens& x, int64_t at, __m512 (&sum)[S][T],
                    const Ahead& ahead) {
        for (int b = 0; b < n; b++) {
            ahead.fetch<2 * S>(b);
            __m512 part[S][T];
            add_half<0, bias>(u, b, x, at + b, part);
            add_half<1, bias>(u, b, x, at + b, part);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m512 x_scale = x.scale(t, at + b);
                for (int s = 0; s < S; s++) {
                    sum[s][t] = _mm512_fmadd_ps(x_scale, part[s][t], sum[s][t]);
                }
            }
        }
    }
};

// A scale and a min per 32 columns.
struct ScaleAndMin {
    struct Unpacked : Bytes {
        template <typename F>
        Unpacked(const F& f, int n) {
            for (int b = 0; b < n; b++) {
                unpack_block(f, b);
                scales[b] = f.scale(b);
                mins[b] = f.min(b);
            }
        }
        __m512 scale(int b) const { return scales[b]; }
        __m512 min(int b) const { return mins[b]; }

        __m512 scales[kUnpacked], mins[kUnpacked];
    };

    template <int S, int T, typename U>
    static void add(const U* u, int n, const Tokens& x, int64_t at, __m512 (&sum)[S][T],
                    const Ahead& ahead) {
        for (int b = 0; b < n; b++) {
            ahead.fetch<2 * S>(b);
            __m512i product[S][T];
            start_at_0(product);
            add_products<0, 8>(u, b, x, at + b, product);
            __m512 scale[S], min[S];
            for (int s = 0; s < S; s++) {
                scale[s] = u[s].scale(b);
                min[s] = u[s].min(b);
            }
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m512 x_scale = x.scale(t, at + b), x_sum = x.scaled_sum(t, at + b);
                for (int s = 0; s < S; s++) {
                    sum[s][t] = _mm512_fmadd_ps(_mm512_mul_ps(scale[s], x_scale),
                                                _mm512_cvtepi32_ps(product[s][t]), sum[s][t]);
                    sum[s][t] = _mm512_fmadd_ps(min[s], x_sum, sum[s][t]);
                }
            }
        }
    }
};

// An integer scale and min per 32 columns, each times a unit of 256. min(b) is that product.
struct ScaledGroups {
    struct Unpacked : Bytes {
        template <typename F>
        Unpacked(const F& f, int) : units(f.unit()) {
            unpack_unit(f);
#pragma GCC unroll 8
            for (int b = 0; b < 8; b++) {
                scales[b] = f.scale(b);
                mins[b] = f.min(b);
            }
        }
        __m512 scale(int b) const { return scales[b]; }
        __m512 min(int b) const { return mins[b]; }
        __m512 unit() const { return units; }

        __m512 scales[kUnpacked], mins[kUnpacked], units;
    };

    template <int S, int T, typename U>
    static void add(const U* u, int, const Tokens& x, int64_t at, __m512 (&sum)[S][T],
                    const Ahead& ahead) {
        __m512 part[S][T];
        start_at_0(part);
        for (int two = 0; two < kUnpacked; two += 2) {
#pragma GCC unroll 2
            for (int b = two; b < two + 2; b++) {
                ahead.fetch<2 * S>(b);
                __m512i product[S][T];
                start_at_0(product);
                add_products<0, 8>(u, b, x, at + b, product);
                __m512 scale[S];
                for (int s = 0; s < S; s++) scale[s] = u[s].scale(b);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    const __m512 x_scale = x.scale(t, at + b);
                    for (int s = 0; s < S; s++) {
                        const __m512 exact = _mm512_cvtepi32_ps(product[s][t]);
                        part[s][t] =
                            _mm512_fmadd_ps(x_scale, _mm512_mul_ps(exact, scale[s]), part[s][t]);
                    }
                }
            }
        }
        for (int s = 0; s < S; s++) {
            const __m512 unit = u[s].unit();
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) sum[s][t] = _mm512_fmadd_ps(unit, part[s][t], sum[s][t]);
        }
        for (int b = 0; b < kUnpacked; b++) {
            __m512 min[S];
            for (int s = 0; s < S; s++) min[s] = u[s].min(b);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m512 x_sum = x.scaled_sum(t, at + b);
                for (int s = 0; s < S; s++) sum[s][t] = _mm512_fnmadd_ps(min[s], x_sum, sum[s][t]);
            }
        }
    }
};

// An integer scale per 16 columns, times a unit of 256; and either a bias of the codes, or integer
// mins as pairs of 16 bits, times another unit.
template <int bias>
struct ScaledHalves {
    struct Unpacked : Bytes {
        template <typename F>
        Unpacked(const F& f, int) : units(f.unit()) {
            unpack_unit(f);
#pragma GCC unroll 8
            for (int b = 0; b < 8; b++) {
                scales[b][0] = f.scale(b, 0);
                scales[b][1] = f.scale(b, 1);
                if constexpr (!bias) pairs[b] = f.mins(b);
            }
            if constexpr (!bias) units_min = f.unit_min();
        }
        __m512 scale(int b, int half) const { return scales[b][half]; }
        __m512i mins(int b) const { return pairs[b]; }
        __m512 unit() const { return units; }
        __m512 unit_min() const { return units_min; }

        __m512 scales[kUnpacked][2], units, units_min;
        __m512i pairs[kUnpacked];
    };

    template <int S, int T, typename U>
    static void add(const U* u, int, const Tokens& x, int64_t at, __m512 (&sum)[S][T],
                    const Ahead& ahead) {
        __m512 part[S][T], part_min[S][T];
        start_at_0(part);
        start_at_0(part_min);
        for (int b = 0; b < kUnpacked; b++) {
            ahead.fetch<2 * S>(b);
            __m512 exact[S][T];
            add_half<0, bias>(u, b, x, at + b, exact);
            add_half<1, bias>(u, b, x, at + b, exact);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m512 x_scale = x.scale(t, at + b);
                for (int s = 0; s < S; s++) {
                    part[s][t] = _mm512_fmadd_ps(x_scale, exact[s][t], part[s][t]);
                    if constexpr (!bias) {
                        const __m512i sums16 = x.sums16(t, at + b);
                        const __m512i offset = _mm512_madd_epi16(u[s].mins(b), sums16);
                        part_min[s][t] =
                            _mm512_fmadd_ps(x_scale, _mm512_cvtepi32_ps(offset), part_min[s][t]);
                    }
                }
            }
        }
        for (int s = 0; s < S; s++) {
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                sum[s][t] = _mm512_fmadd_ps(u[s].unit(), part[s][t], sum[s][t]);
                if constexpr (!bias) {
                    sum[s][t] = _mm512_fnmadd_ps(u[s].unit_min(), part_min[s][t], sum[s][t]);
                }
            }
        }
    }
};

}  // namespace ggml::cpu::GGML_ISA
