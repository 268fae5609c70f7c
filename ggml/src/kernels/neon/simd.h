// The vocabulary of cpu/simd.h for ARM's NEON with sdot (ARMv8.2 and +dotprod), also for
// neon_i8mm, whose only difference is in tiles.h.
#pragma once

#include <arm_neon.h>

#include <cstring>
#include <utility>

#include "ggml/blocks.h"

#ifdef __ARM_FEATURE_MATMUL_INT8
#define GGML_ISA neon_i8mm
#define GGML_STRIPS_ALONE  // the other kernels are neon's
#else
#define GGML_ISA neon
#endif

namespace ggml::cpu::GGML_ISA {

// The lower and the upper four lanes.
struct f32x8 {
    float32x4_t a, b;
};
struct i256 {
    uint8x16_t a, b;
};

// 32 registers of 16 bytes.
constexpr int kMostTokens = 4;

// The 16 bytes as integers of another width.
inline uint16x8_t as_u16(uint8x16_t v) {
    return vreinterpretq_u16_u8(v);
}
inline uint32x4_t as_u32(uint8x16_t v) {
    return vreinterpretq_u32_u8(v);
}
inline int8x16_t as_s8(uint8x16_t v) {
    return vreinterpretq_s8_u8(v);
}
inline int16x8_t as_s16(uint8x16_t v) {
    return vreinterpretq_s16_u8(v);
}
inline int32x4_t as_s32(uint8x16_t v) {
    return vreinterpretq_s32_u8(v);
}
inline i256 of(uint16x8_t a, uint16x8_t b) {
    return {vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)};
}
inline i256 of(uint32x4_t a, uint32x4_t b) {
    return {vreinterpretq_u8_u32(a), vreinterpretq_u8_u32(b)};
}
inline i256 of(int16x8_t a, int16x8_t b) {
    return {vreinterpretq_u8_s16(a), vreinterpretq_u8_s16(b)};
}
inline i256 of(int32x4_t a, int32x4_t b) {
    return {vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)};
}

inline uint8x16_t load_half(const void* p) {  // 16 bytes
    return vld1q_u8(static_cast<const uint8_t*>(p));
}
inline i256 load(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return {load_half(bytes), load_half(bytes + 16)};
}

// ---- floats ----------------------------------------------------------------------------------
inline f32x8 load_f32(const void* p) {
    const i256 v = load(p);
    return {vreinterpretq_f32_u8(v.a), vreinterpretq_f32_u8(v.b)};
}
inline f32x8 load_f16(const void* p) {
    const float16x8_t h = vreinterpretq_f16_u8(load_half(p));
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
inline f32x8 load_bf16(const void* p) {
    const uint16x8_t h = as_u16(load_half(p));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}
inline f32x8 widen(int16x8_t v) {
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
}
inline f32x8 load_i8(const void* p) {
    return widen(vmovl_s8(vld1_s8(static_cast<const int8_t*>(p))));
}
inline f32x8 gather_f16(const uint8_t* const (&p)[8]) {
    uint16_t half[8];
    for (int i = 0; i < 8; i++) std::memcpy(half + i, p[i], 2);
    return load_f16(half);
}
inline float f16_value(f16_t h) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
inline void store(float* p, f32x8 v) {
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
}
inline f32x8 splat(float v) {
    return {vdupq_n_f32(v), vdupq_n_f32(v)};
}
inline f32x8 mul(f32x8 a, f32x8 b) {
    return {vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b)};
}
inline f32x8 add_product(f32x8 sum, f32x8 a, f32x8 b) {
    return {vfmaq_f32(sum.a, a.a, b.a), vfmaq_f32(sum.b, a.b, b.b)};
}
inline float add_product(float sum, float a, float b) {
    return __builtin_fmaf(a, b, sum);
}
inline f32x8 sub_product(f32x8 sum, f32x8 a, f32x8 b) {
    return {vfmsq_f32(sum.a, a.a, b.a), vfmsq_f32(sum.b, a.b, b.b)};
}
inline f32x8 as_float(i256 v) {
    return {vreinterpretq_f32_u8(v.a), vreinterpretq_f32_u8(v.b)};
}
inline f32x8 to_float(i256 v) {
    return {vcvtq_f32_s32(as_s32(v.a)), vcvtq_f32_s32(as_s32(v.b))};
}
inline float horizontal_sum(f32x8 v) {
    const float32x4_t four = vaddq_f32(v.a, v.b);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline f32x8 abs(f32x8 v) {
    return {vabsq_f32(v.a), vabsq_f32(v.b)};
}
// Not vmaxq, which returns NaN for NaN.
inline f32x8 max(f32x8 a, f32x8 b) {
    return {vbslq_f32(vcgtq_f32(a.a, b.a), a.a, b.a), vbslq_f32(vcgtq_f32(a.b, b.b), a.b, b.b)};
}
inline float horizontal_max(f32x8 v) {
    return vmaxvq_f32(vmaxq_f32(v.a, v.b));
}
inline bool any_nan(const f32x8 (&v)[4]) {
    uint32x4_t numbers = vdupq_n_u32(~0u);
    for (const f32x8& x : v) numbers = numbers & vceqq_f32(x.a, x.a) & vceqq_f32(x.b, x.b);
    return vminvq_u32(numbers) == 0;
}
// The conversion alone would give the nearest integer for what is out of range, and 0 for NaN.
inline int32x4_t to_int(float32x4_t v) {
    const uint32x4_t fits = vcaltq_f32(v, vdupq_n_f32(0x1p31f));
    return vbslq_s32(fits, vcvtnq_s32_f32(v), vdupq_n_s32(INT32_MIN));
}
inline i256 to_int(f32x8 v) {
    return of(to_int(v.a), to_int(v.b));
}

// ---- integers --------------------------------------------------------------------------------
inline i256 splat8(int v) {
    return {vdupq_n_u8(uint8_t(v)), vdupq_n_u8(uint8_t(v))};
}
inline i256 splat16(int v) {
    return of(vdupq_n_s16(int16_t(v)), vdupq_n_s16(int16_t(v)));
}
inline i256 splat32(int v) {
    return of(vdupq_n_s32(v), vdupq_n_s32(v));
}
inline i256 operator&(i256 a, i256 b) {
    return {vandq_u8(a.a, b.a), vandq_u8(a.b, b.b)};
}
inline i256 operator|(i256 a, i256 b) {
    return {vorrq_u8(a.a, b.a), vorrq_u8(a.b, b.b)};
}
inline i256 operator^(i256 a, i256 b) {
    return {veorq_u8(a.a, b.a), veorq_u8(a.b, b.b)};
}
inline i256 add8(i256 a, i256 b) {
    return {vaddq_u8(a.a, b.a), vaddq_u8(a.b, b.b)};
}
inline i256 sub8(i256 a, i256 b) {
    return {vsubq_u8(a.a, b.a), vsubq_u8(a.b, b.b)};
}
inline i256 add32(i256 a, i256 b) {
    return of(vaddq_u32(as_u32(a.a), as_u32(b.a)), vaddq_u32(as_u32(a.b), as_u32(b.b)));
}
inline i256 sub32(i256 a, i256 b) {
    return of(vsubq_u32(as_u32(a.a), as_u32(b.a)), vsubq_u32(as_u32(a.b), as_u32(b.b)));
}
inline i256 greater8(i256 a, i256 b) {
    return {vcgtq_s8(as_s8(a.a), as_s8(b.a)), vcgtq_s8(as_s8(a.b), as_s8(b.b))};
}
inline i256 max32(i256 a, i256 b) {
    return of(vmaxq_s32(as_s32(a.a), as_s32(b.a)), vmaxq_s32(as_s32(a.b), as_s32(b.b)));
}
inline i256 mul16(i256 a, i256 b) {
    return of(vmulq_s16(as_s16(a.a), as_s16(b.a)), vmulq_s16(as_s16(a.b), as_s16(b.b)));
}
// Operators, not intrinsics: with a count that is known after unrolling, the compiler then has an
// instruction with an immediate count.
inline i256 shift_left16(i256 a, int n) {
    return of(as_u16(a.a) << n, as_u16(a.b) << n);
}
inline i256 shift_right16(i256 a, int n) {
    return of(as_u16(a.a) >> n, as_u16(a.b) >> n);
}
inline i256 shift_left32(i256 a, int n) {
    return of(as_u32(a.a) << n, as_u32(a.b) << n);
}
inline i256 shift_right32(i256 a, int n) {
    return of(as_u32(a.a) >> n, as_u32(a.b) >> n);
}
template <int n0, int n1, int n2, int n3, int n4, int n5, int n6, int n7>
inline i256 shift_right_each(i256 a) {
    constexpr int32x4_t first = {-n0, -n1, -n2, -n3}, second = {-n4, -n5, -n6, -n7};
    return of(vshlq_u32(as_u32(a.a), first), vshlq_u32(as_u32(a.b), second));
}
inline i256 low_nibbles(i256 a) {
    return a & splat8(15);
}
inline i256 high_nibbles(i256 a) {
    return {vshrq_n_u8(a.a, 4), vshrq_n_u8(a.b, 4)};
}
inline i256 table16(const int8_t* table, i256 indices) {
    const uint8x16_t entries = load_half(table);
    return {vqtbl1q_u8(entries, indices.a), vqtbl1q_u8(entries, indices.b)};
}
inline uint32_t word_at(const void* p) {
    uint32_t bytes;
    std::memcpy(&bytes, p, 4);
    return bytes;
}
inline i256 word(const void* p) {
    return of(vdupq_n_u32(word_at(p)), vdupq_n_u32(word_at(p)));
}
template <int n0, int n1, int n2, int n3, int n4, int n5, int n6, int n7>
inline i256 words(const uint8_t* p, int64_t apart) {
    const auto at = [&](int i) { return word_at(p + i * apart); };
    return of(uint32x4_t{at(n0), at(n1), at(n2), at(n3)},
              uint32x4_t{at(n4), at(n5), at(n6), at(n7)});
}
inline i256 widen(uint16x8_t v) {
    return of(vmovl_u16(vget_low_u16(v)), vmovl_high_u16(v));
}
inline i256 lanes(const uint32_t (&v)[8]) {
    return load(v);
}
inline void first_and_second(const uint64_t (&pairs)[8], i256& first, i256& second) {
    const auto two = [&](int i) { return vreinterpretq_u32_u64(vld1q_u64(pairs + i)); };
    const uint32x4_t a = two(0), b = two(2), c = two(4), d = two(6);
    first = of(vuzp1q_u32(a, b), vuzp1q_u32(c, d));
    second = of(vuzp2q_u32(a, b), vuzp2q_u32(c, d));
}
inline i256 widen8(uint64_t bytes) {
    return widen(vmovl_u8(vcreate_u8(bytes)));
}
inline i256 widen16(const void* p) {
    return widen(as_u16(load_half(p)));
}
inline i256 widen16(uint64_t first, uint64_t second) {
    return widen(as_u16(vreinterpretq_u8_u64(uint64x2_t{first, second})));
}

using b32 = i256;
inline b32 load_nibbles(const uint8_t* p) {
    const uint8x16_t pairs = load_half(p);
    return {vandq_u8(pairs, vdupq_n_u8(15)), vshrq_n_u8(pairs, 4)};
}
inline i256 has_bit(i256 a, i256 mask) {
    return {vtstq_u8(a.a, mask.a), vtstq_u8(a.b, mask.b)};
}
inline b32 load_bits(const uint8_t* p) {
    const uint8x16_t first = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint8x16_t bytes = vreinterpretq_u8_u32(vdupq_n_u32(word_at(p)));
    const uint8x16_t mask = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    return has_bit({vqtbl1q_u8(bytes, first), vqtbl1q_u8(bytes, first + uint8_t(2))}, {mask, mask});
}
// Shuffles within lanes: byte b of `pattern` gives the place, within its lane, of byte b of every
// lane; 0x80 gives 0.
inline i256 shuffle_lanes(i256 a, uint32_t pattern) {
    // No byte of the sum carries into the next: 0x80 + 12 < 256.
    const uint32x4_t lanes = {0, 0x04040404, 0x08080808, 0x0c0c0c0c};
    const uint8x16_t places = vreinterpretq_u8_u32(lanes + pattern);
    return {vqtbl1q_u8(a.a, places), vqtbl1q_u8(a.b, places)};
}
inline void to_floats(b32 bytes, f32x8 (&out)[4]) {
    out[0] = widen(vmovl_s8(vget_low_s8(as_s8(bytes.a))));
    out[1] = widen(vmovl_high_s8(as_s8(bytes.a)));
    out[2] = widen(vmovl_s8(vget_low_s8(as_s8(bytes.b))));
    out[3] = widen(vmovl_high_s8(as_s8(bytes.b)));
}

// Moves byte i of every four bytes to the top of 32 bits, which multiplies it by 2^24. Not by a
// shift: the lower bytes would stay below it.
constexpr float kByteUnit = 1.0f / (1 << 24);
struct Pick {
    uint8x16_t places;
};
inline Pick pick_byte(int i) {
    constexpr uint32x4_t first = {0x00ffffff, 0x04ffffff, 0x08ffffff, 0x0cffffff};  // 255 gives 0
    return {vreinterpretq_u8_u32(first + (uint32_t(i) << 24))};
}
inline f32x8 picked(i256 bytes, Pick pick) {
    return to_float({vqtbl1q_u8(bytes.a, pick.places), vqtbl1q_u8(bytes.b, pick.places)});
}

inline int32x4_t clamp32(int32x4_t v, int limit) {
    return vmaxq_s32(vminq_s32(v, vdupq_n_s32(limit)), vdupq_n_s32(-limit));
}
inline i256 clamp32(i256 v, int limit) {
    return of(clamp32(as_s32(v.a), limit), clamp32(as_s32(v.b), limit));
}
inline int16x8_t narrow(i256 v) {
    return vcombine_s16(vmovn_s32(as_s32(v.a)), vmovn_s32(as_s32(v.b)));
}
inline i256 pack(const i256 (&q)[4]) {
    return {vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(narrow(q[0])), vmovn_s16(narrow(q[1])))),
            vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(narrow(q[2])), vmovn_s16(narrow(q[3]))))};
}
inline void two_sums(i256 a, i256 b, int32_t (&sum)[2]) {
    sum[0] = vaddvq_s32(vaddq_s32(as_s32(a.a), as_s32(a.b)));
    sum[1] = vaddvq_s32(vaddq_s32(as_s32(b.a), as_s32(b.b)));
}

template <int n>
inline i256 add_bit_counts(i256 sum, i256 bytes) {
    return {vaddq_u8(sum.a, vshlq_n_u8(vcntq_u8(bytes.a), n)),
            vaddq_u8(sum.b, vshlq_n_u8(vcntq_u8(bytes.b), n))};
}
inline i256 add_bytes(i256 sum, i256 bytes) {
    return of(vpadalq_u16(as_u32(sum.a), vpaddlq_u8(bytes.a)),
              vpadalq_u16(as_u32(sum.b), vpaddlq_u8(bytes.b)));
}
inline int32_t total(i256 sum) {
    return int32_t(vaddvq_u32(vaddq_u32(as_u32(sum.a), as_u32(sum.b))));
}

// ---- sums of products ------------------------------------------------------------------------
// A factor is the 32-bit integer of its lane.
inline i256 factor(i256 bytes, int i) {
    return shift_right32(shift_left32(bytes, 24 - 8 * i), 24);
}
inline i256 signed_factor(i256 bytes, int i) {
    const i256 top = shift_left32(bytes, 24 - 8 * i);
    return of(vshrq_n_s32(as_s32(top.a), 24), vshrq_n_s32(as_s32(top.b), 24));
}
inline i256 pair(i256 bytes, int i, int j) {
    const i256 top = shuffle_lanes(bytes, 0x00800080u | uint32_t(i) << 8 | uint32_t(j) << 24);
    return of(vshrq_n_s16(as_s16(top.a), 8), vshrq_n_s16(as_s16(top.b), 8));
}
inline f32x8 short_to_float(i256 pairs, int half) {
    const i256 top = shift_left32(pairs, 16 - 16 * half);
    return to_float(of(vshrq_n_s32(as_s32(top.a), 16), vshrq_n_s32(as_s32(top.b), 16)));
}
inline int32x4_t add_pairs(int16x8_t a, int16x8_t b) {
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}
inline i256 add_pairs(i256 a, i256 b) {
    return of(add_pairs(as_s16(a.a), as_s16(b.a)), add_pairs(as_s16(a.b), as_s16(b.b)));
}
inline i256 mul32(i256 a, i256 b) {
    return of(vmulq_s32(as_s32(a.a), as_s32(b.a)), vmulq_s32(as_s32(a.b), as_s32(b.b)));
}

inline i256 code_products(i256 codes, i256 x) {
    const int32x4_t zero = vdupq_n_s32(0);
    return of(vdotq_s32(zero, as_s8(codes.a), as_s8(x.a)),
              vdotq_s32(zero, as_s8(codes.b), as_s8(x.b)));
}
inline i256 signed_products(i256 w, i256 x) {
    return code_products(w, x);
}
constexpr bool kTurnsActivations = false;
inline i256 lane_totals(const i256 (&v)[8]) {
    const auto half = [&](int i) { return vaddq_s32(as_s32(v[i].a), as_s32(v[i].b)); };
    const auto four = [&](int i) {
        return vpaddq_s32(vpaddq_s32(half(i), half(i + 1)), vpaddq_s32(half(i + 2), half(i + 3)));
    };
    return of(four(0), four(4));
}

inline void code_half_totals(const i256 (&v)[8], i256& first, i256& second) {
    const auto four = [&](auto half, int i) {
        const auto pair = [&](int k) {
            return vpaddq_s32(as_s32(v[k].*half), as_s32(v[k + 1].*half));
        };
        return vpaddq_s32(pair(i), pair(i + 2));
    };
    first = of(four(&i256::a, 0), four(&i256::a, 4));
    second = of(four(&i256::b, 0), four(&i256::b, 4));
}
inline i256 swap_middle(i256 v) {
    const uint64x2_t a = vreinterpretq_u64_u8(v.a), b = vreinterpretq_u64_u8(v.b);
    return {vreinterpretq_u8_u64(vzip1q_u64(a, b)), vreinterpretq_u8_u64(vzip2q_u64(a, b))};
}

// Sixteen activations that all lanes share: sdot takes four of them by their index. Or those of
// four groups, each lane's own.
struct SharedValues {
    explicit SharedValues(const int8_t* q) : values(vld1q_s8(q)) {}
    template <int v>
    i256 add(i256 sum, i256 w) const {
        return of(vdotq_laneq_s32(as_s32(sum.a), as_s8(w.a), values, v),
                  vdotq_laneq_s32(as_s32(sum.b), as_s8(w.b), values, v));
    }
    int8x16_t values;
};
struct OwnValues {
    explicit OwnValues(const int8_t* from) : q(from) {}
    template <int v>
    i256 add(i256 sum, i256 w) const {
        const i256 x = load(q + 32 * v);
        return of(vdotq_s32(as_s32(sum.a), as_s8(w.a), as_s8(x.a)),
                  vdotq_s32(as_s32(sum.b), as_s8(w.b), as_s8(x.b)));
    }
    const int8_t* q;
};
// Groups 4 h .. 4 h + 3 of x.
template <typename X>
inline auto values16(const X& x, int h) {
    if constexpr (X::shared) {
        return SharedValues(x.q + 16 * h);
    } else {
        return OwnValues(x.q + 128 * h);
    }
}
template <typename Values>
inline i256 dots(i256 sum, const i256* w, const Values& x) {
    sum = x.template add<0>(sum, w[0]);
    sum = x.template add<1>(sum, w[1]);
    sum = x.template add<2>(sum, w[2]);
    return x.template add<3>(sum, w[3]);
}

template <int bits, typename X>
inline i256 products32(const i256 (&w)[8], const X& x) {
    return dots(dots(splat32(0), w, values16(x, 0)), w + 4, values16(x, 1));
}
template <int bits, typename X>
inline i256 products32(const i256 (&w)[8], const X& x, i256 factor) {
    return mul32(products32<bits>(w, x), factor);
}
template <int sums, int v, typename X>
inline i256 products16(const i256 (&w)[8], const X& x) {
    return dots(splat32(0), w + v, values16(x, v / 4));
}
template <int sums, int v, typename X>
inline i256 products16(const i256 (&w)[8], const X& x, i256 factor) {
    return mul32(products16<sums, v>(w, x), factor);
}

template <int v, int T, typename W, typename Values>
inline void add_signed_products(const W& weights, int first, const Values (&x)[T], i256 (&sum)[T]) {
    const i256 w = weights(first + v);
    for (int t = 0; t < T; t++) sum[t] = x[t].template add<v>(sum[t], w);
}
template <int T, typename W, typename Values>
inline void add_signed_products16(const W& weights, int first, const Values (&x)[T],
                                  i256 (&sum)[T]) {
    add_signed_products<0>(weights, first, x, sum);
    add_signed_products<1>(weights, first, x, sum);
    add_signed_products<2>(weights, first, x, sum);
    add_signed_products<3>(weights, first, x, sum);
}
template <typename W, typename X, int T, int... t>
inline void signed_products32(const W& weights, const X& x, i256 (&sum)[T],
                              std::integer_sequence<int, t...>) {
    for (i256& s : sum) s = splat32(0);
    for (int h = 0; h < 2; h++) {
        add_signed_products16(weights, 4 * h, {values16(x(t), h)...}, sum);
    }
}
template <int T, typename W, typename X, typename Sum8>
inline void signed_products32(const W& weights, const X& x, const Sum8&, i256 (&sum)[T]) {
    signed_products32(weights, x, sum, std::make_integer_sequence<int, T>());
}

}  // namespace ggml::cpu::GGML_ISA
