// Products of strips of IQ1, IQ2 and IQ3. Their bits are described in ggml/blocks.h. Their members
// are interleaved by four bytes, so byte i of a lane's word is the i-th of a row.
#include "kernels/avx512/strips.h"
#include "kernels/vbmi/grids.h"

namespace ggml::cpu::vbmi {

namespace {

constexpr uint8_t kCentre = 64;  // of signed values as unsigned bytes

// Values of the codes that bytes have from a bit on, of two bits or of three. Other bits belong to
// other codes, but for that of their sign.
struct Values {
    template <typename Value>
    constexpr explicit Values(Value value) {
        for (int i = 0; i < 64; i++) table[i] = uint8_t(value(i));
    }
    __m512i operator()(__m512i codes) const {
        return _mm512_permutexvar_epi8(codes, load512(table));
    }
    alignas(64) uint8_t table[64] = {};
};
struct SignedValues {  // by seven bits
    template <typename Value>
    constexpr explicit SignedValues(Value value) {
        for (int i = 0; i < 128; i++) table[i] = uint8_t(value(i));
    }
    __m512i operator()(__m512i codes) const {
        return _mm512_permutex2var_epi8(load512(table), codes, load512(table + 64));
    }
    alignas(64) uint8_t table[128] = {};
};
constexpr int with_sign(int value, int negative) {
    return negative ? kCentre - value : kCentre + value;
}
constexpr uint8_t kOfIQ2[] = {8, 25, 43, 0};
constexpr uint8_t kOfIQ3_XXS[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int iq1(int code) {
    return 8 * (code & 3);
}
constexpr int iq2(int code) {
    return kOfIQ2[code & 3];
}
constexpr int iq3_xxs(int code) {
    return kOfIQ3_XXS[code & 7];
}
constexpr int iq3_s(int code) {
    return 2 * (code & 7) + 1;
}
constexpr Values kValuesIQ1([](int i) { return iq1(i); });
constexpr Values kValuesIQ2([](int i) { return kCentre + iq2(i); });
constexpr Values kShiftedIQ1[] = {Values([](int i) { return iq1(i) + (i >> 4 & 1) * 2; }),
                                  Values([](int i) { return iq1(i >> 2) + (i >> 4 & 1) * 2; })};
constexpr Values kSignedIQ2[] = {Values([](int i) { return with_sign(iq2(i), i >> 4 & 1); }),
                                 Values([](int i) { return with_sign(iq2(i >> 2), i >> 5 & 1); })};
template <int (*of)(int)>
struct ValuesOfIQ3 {
    Values first{[](int i) { return kCentre + of(i); }};
    // A code from bit 0 on; and, after a shift by a bit, one from bit 2 on.
    SignedValues even{[](int i) { return with_sign(of(i), i >> 6 & 1); }};
    SignedValues odd{[](int i) { return with_sign(of(i >> 2), i >> 6 & 1); }};
};
constexpr ValuesOfIQ3<iq3_xxs> kValuesIQ3_XXS{};
constexpr ValuesOfIQ3<iq3_s> kValuesIQ3_S{};

// kCentre - q of kCentre + q.
inline __m512i negated(__m512i q, __mmask64 negative) {
    return _mm512_mask_sub_epi8(q, negative, splat8(int8_t(2 * kCentre)), q);
}
// Group v with bytes of signs of eight columns.
inline __m512i with_signs(__m512i q, __m512i signs, int v) {
    const int p = v / 2, first = v % 2 ? 16 : 1;
    const __m512i each = _mm512_shuffle_epi8(signs, places4(p, p, p, p));
    return negated(q, has_bits(each, first, 2 * first, 4 * first, 8 * first));
}

template <typename Block, typename Family>
struct GridStrips : PackedPair<Block, Family> {
    using Grid = GridBlock<Block>;
    static constexpr int few = 0;
    static constexpr bool by_blocks = true;
    using PackedPair<Block, Family>::PackedPair;
    using PackedPair<Block, Family>::member;

    // Word i of a member.
    __m512i word(size_t offset, int i) const { return load(member(offset) + kGroup * i); }
    // Byte i of a member in each byte of its lane.
    __m512i byte(size_t offset, int i) const {
        const int at = i % 4;
        return _mm512_shuffle_epi8(word(offset, i / 4), places4(at, at, at, at));
    }
    // 2 * scale + 1 of a scale from bit `at` on; mask: 2 * the largest one.
    static __m512 to_odd(__m512i scales, int at, int mask) {
        const __m512i twice = _mm512_rorv_epi32(scales, _mm512_set1_epi32(at - 1));
        const __m512i odd = _mm512_ternarylogic_epi32(  // (a & b) | c
            twice, _mm512_set1_epi32(mask), _mm512_set1_epi32(1), 0xea);
        return _mm512_cvtepi32_ps(odd);
    }
    __m512 times_unit(__m512 d) const { return _mm512_mul_ps(d, _mm512_set1_ps(Grid::unit)); }
    __m512 unit() const { return times_unit(load_scales(member(offsetof(Block, d)))); }
};

using Turned = __m512i (&)[8];

// Entries of eight columns: group v.
template <int n>
inline __m512i of_eight(const GridCodes<n>& codes, const Index& index, const Values& values,
                        int v) {
    const __m512i four = look_up(v % 2 ? codes.high : codes.low, index);
    const int p = v / 2 * 8;
    return values(bits_from(four, p, p + 2, p + 4, p + 6));
}
// Of four columns; `index` is that of the half of the block which has group v.
template <int n>
inline __m512i of_four(const GridCodes<n>& codes, const Index& index, const Values& values, int v) {
    const __m512i low = look_up(codes.low, index), high = look_up(codes.high, index);
    const int p = v % 4 / 2 * 2, at = 16 * (v % 2);
    const __m512i both = merged(low, high, p, 64 + p, p + 1, 65 + p);
    return values(bits_from(both, at, at + 3, at + 8, at + 11));
}

// Two codes of two bits and, above them, bits of signs. Surplus bits belong to others.
inline __m512i two_codes(__m512i four, __m512i signs) {
    return _mm512_ternarylogic_epi32(splat8(15), four, signs, 0xca);  // a ? b : c
}

// Formats: of IQ2, with codes, index(b) and signs(b) of block b; of IQ3, with index(b, h) of its
// half h; and of IQ1, with index(b), and shift(b): 16 for indices whose shift is positive, else 0.
// The weights of group v, and of a block turned (see below).
template <typename F, typename Block, typename Family>
struct GridsOfIQ2 : GridStrips<Block, Family> {
    static constexpr int bias = kCentre;
    using GridStrips<Block, Family>::GridStrips;
    const F& format() const { return static_cast<const F&>(*this); }
    __m512i group(int b, int v) const {
        const Index index = format().index(b);
        return with_signs(of_eight(F::codes, index, kValuesIQ2, v), format().signs(b), v);
    }
    void turned(int b, Turned out) const {
        const Index index = format().index(b);
        const __m512i low = look_up(F::codes.low, index), high = look_up(F::codes.high, index);
        const __m512i signs = format().signs(b);
        const __m512i pairs[] = {
            two_codes(low, _mm512_slli_epi16(signs, 4)),
            two_codes(_mm512_srli_epi16(low, 4), _mm512_slli_epi16(signs, 2)),
            two_codes(high, signs),
            two_codes(_mm512_srli_epi16(high, 4), _mm512_srli_epi16(signs, 2))};
        for (int k = 0; k < 8; k++) out[k] = kSignedIQ2[k % 2](pairs[k / 2]);
    }
};

template <typename F, typename Block>
struct GridsOfIQ3 : GridStrips<Block, OneScale> {
    static constexpr int bias = kCentre;
    using GridStrips<Block, OneScale>::GridStrips;
    const F& format() const { return static_cast<const F&>(*this); }
    __m512i group(int b, int v) const {
        const Index index = format().index(b, v / 4);
        return with_signs(of_four(F::codes, index, F::values.first, v), format().signs(b), v);
    }
    void turned(int b, Turned out) const {
        const __m512i signs = format().signs(b);
        for (int h = 0; h < 2; h++) {
            const Index index = format().index(b, h);
            const __m512i codes[] = {look_up(F::codes.low, index), look_up(F::codes.high, index)};
            const int at = 16 * h + 64 - 6;  // where bits begin that end with two signs
            for (int k = 0; k < 4; k += 2) {
                const __m512i two = bits_from(signs, (at + k) % 64, (at + k + 4) % 64,
                                              (at + k + 8) % 64, (at + k + 12) % 64);
                const __m512i both = _mm512_ternarylogic_epi32(splat8(63), codes[k / 2], two, 0xca);
                out[4 * h + k] = F::values.even(both);
                out[4 * h + k + 1] = F::values.odd(_mm512_srli_epi16(both, 1));
            }
        }
    }
};

template <typename F, typename Block, typename Family>
struct GridsOfIQ1 : GridStrips<Block, Family> {
    static constexpr int bias = 9;
    using GridStrips<Block, Family>::GridStrips;
    const F& format() const { return static_cast<const F&>(*this); }
    // Of the bits above eight, in the lowest of bytes.
    static Index with_high_bits(__m512i low, __m512i high) {
        return Index(low, has_bits(high, 1, 1, 1, 1), has_bits(high, 2, 2, 2, 2),
                     has_bits(high, 4, 4, 4, 4));
    }
    __m512i group(int b, int v) const {
        const int p = v / 2;
        const __m512i each = _mm512_shuffle_epi8(format().shift(b), places4(p, p, p, p));
        return _mm512_add_epi8(of_eight(kIQ1, format().index(b), kValuesIQ1, v),
                               _mm512_srli_epi16(each, 3));
    }
    void turned(int b, Turned out) const {
        const Index index = format().index(b);
        const __m512i shift = format().shift(b);
        for (int h = 0; h < 2; h++) {
            const __m512i four = look_up(h ? kIQ1.high : kIQ1.low, index);
            const __m512i pairs[] = {two_codes(four, shift),
                                     two_codes(_mm512_srli_epi16(four, 4), shift)};
            for (int k = 0; k < 4; k++) out[4 * h + k] = kShiftedIQ1[k % 2](pairs[k / 2]);
        }
    }
};

// Four times seven bits of signs, each with its eighth one.
inline __m512i four_signs(__m512i bits) {
    return with_eighth_bits(bits_from(bits, 0, 7, 14, 21), 0);
}

struct StripsIQ2_XXS : GridsOfIQ2<StripsIQ2_XXS, BlockIQ2_XXS, OneScale> {
    static constexpr const auto& codes = kIQ2_XXS;
    using GridsOfIQ2::GridsOfIQ2;
    __m512i high(int b) const { return word(offsetof(Block, qs), 2 * b + 1); }
    Index index(int b) const { return Index(word(offsetof(Block, qs), 2 * b)); }
    __m512i signs(int b) const { return four_signs(high(b)); }
    __m512 scale(int b) const { return _mm512_mul_ps(unit(), to_odd(high(b), 28, 30)); }
};

struct StripsIQ2_XS : GridsOfIQ2<StripsIQ2_XS, BlockIQ2_XS, ScaledHalves<kCentre>> {
    static constexpr const auto& codes = kIQ2_XS;
    using GridsOfIQ2::GridsOfIQ2;
    // The lower or the upper bytes of the four words of block b.
    __m512i bytes(int b, int i) const {
        return merged(word(offsetof(Block, qs), 2 * b), word(offsetof(Block, qs), 2 * b + 1), i,
                      i + 2, 64 + i, 66 + i);
    }
    Index index(int b) const { return Index(bytes(b, 0), has_bits(bytes(b, 1), 1, 1, 1, 1)); }
    __m512i signs(int b) const { return with_eighth_bits(bytes(b, 1), 1); }
    __m512 scale(int b, int half) const {
        const __m512i scales = word(offsetof(Block, scales), b / 4);
        return to_odd(scales, 8 * (b % 4) + 4 * half, 30);
    }
};

struct StripsIQ2_S : GridsOfIQ2<StripsIQ2_S, BlockIQ2_S, ScaledHalves<kCentre>> {
    static constexpr const auto& codes = kIQ2_S;
    using GridsOfIQ2::GridsOfIQ2;
    Index index(int b) const {
        const __m512i high = byte(offsetof(Block, qh), b);
        return Index(word(offsetof(Block, qs), b), has_bits(high, 1, 4, 16, 64),
                     has_bits(high, 2, 8, 32, 128));
    }
    __m512i signs(int b) const { return word(offsetof(Block, signs), b); }
    __m512 scale(int b, int half) const {
        const __m512i scales = word(offsetof(Block, scales), b / 4);
        return to_odd(scales, 8 * (b % 4) + 4 * half, 30);
    }
};

struct StripsIQ3_XXS : GridsOfIQ3<StripsIQ3_XXS, BlockIQ3_XXS> {
    static constexpr const auto& codes = kIQ3_XXS;
    static constexpr const auto& values = kValuesIQ3_XXS;
    using GridsOfIQ3::GridsOfIQ3;
    Index index(int b, int h) const { return Index(word(offsetof(Block, qs), 2 * b + h)); }
    __m512i signs(int b) const { return four_signs(word(offsetof(Block, scales), b)); }
    __m512 scale(int b) const {
        const __m512i high = word(offsetof(Block, scales), b);
        return _mm512_mul_ps(unit(), to_odd(high, 28, 30));
    }
};

struct StripsIQ3_S : GridsOfIQ3<StripsIQ3_S, BlockIQ3_S> {
    static constexpr const auto& codes = kIQ3_S;
    static constexpr const auto& values = kValuesIQ3_S;
    using GridsOfIQ3::GridsOfIQ3;
    Index index(int b, int h) const {
        const __m512i high = byte(offsetof(Block, qh), b);
        const int first = h ? 16 : 1;
        return Index(word(offsetof(Block, qs), 2 * b + h),
                     has_bits(high, first, 2 * first, 4 * first, 8 * first));
    }
    __m512i signs(int b) const { return word(offsetof(Block, signs), b); }
    __m512 scale(int b) const {
        const __m512i scales = word(offsetof(Block, scales), 0);
        return _mm512_mul_ps(unit(), to_odd(scales, 4 * b, 30));
    }
};

struct StripsIQ1_S : GridsOfIQ1<StripsIQ1_S, BlockIQ1_S, OneScale> {
    using GridsOfIQ1::GridsOfIQ1;
    // Word b of qh in the upper half of each lane.
    __m512i high(int b) const {
        return _mm512_sllv_epi32(word(offsetof(Block, qh), b / 2),
                                 _mm512_set1_epi32(16 - 16 * (b % 2)));
    }
    Index index(int b) const {
        return with_high_bits(word(offsetof(Block, qs), b), bits_from(high(b), 16, 19, 22, 25));
    }
    __m512i shift(int b) const {
        return _mm512_andnot_si512(_mm512_srai_epi32(high(b), 31), splat8(16));
    }
    __m512 scale(int b) const { return _mm512_mul_ps(unit(), to_odd(high(b), 28, 14)); }
};

struct StripsIQ1_M : GridsOfIQ1<StripsIQ1_M, BlockIQ1_M, ScaledHalves<9>> {
    using GridsOfIQ1::GridsOfIQ1;
    // The nibbles of block b, one in the lower bits of each byte.
    __m512i high(int b) const {
        const __m512i both = word(offsetof(Block, qh), b / 2);
        return bits_from(_mm512_srlv_epi32(both, _mm512_set1_epi32(16 * (b % 2))), 0, 4, 8, 12);
    }
    Index index(int b) const { return with_high_bits(word(offsetof(Block, qs), b), high(b)); }
    __m512i shift(int b) const {
        const __m512i bit = _mm512_andnot_si512(high(b), splat8(8));
        return _mm512_add_epi8(bit, bit);
    }
    __m512 scale(int b, int half) const {
        const __m512i scales = word(offsetof(Block, scales), b / 4);
        const int shift = 16 * (b / 2 % 2) + 6 * (b % 2) + 3 * half;
        return to_odd(scales, shift, 14);
    }
    __m512 unit() const {
        const __m512i a = word(offsetof(Block, scales), 0), b = word(offsetof(Block, scales), 1);
        const auto nibble = [](__m512i shifted, int mask) {
            return _mm512_and_si512(shifted, _mm512_set1_epi32(mask));
        };
        const __m512i low = _mm512_or_si512(nibble(_mm512_srli_epi32(a, 12), 15),
                                            nibble(_mm512_srli_epi32(a, 24), 0xf0));
        const __m512i high = _mm512_or_si512(nibble(_mm512_srli_epi32(b, 4), 0xf00),
                                             nibble(_mm512_srli_epi32(b, 16), 0xf000));
        const __m256i halves = _mm512_cvtepi32_epi16(_mm512_or_si512(low, high));
        return times_unit(_mm512_cvtph_ps(halves));
    }
};

// ---- few tokens ------------------------------------------------------------------------------
// One by one, entries take four bytes of a lane from as many indices: turned(b, q) gives in q[k]
// columns k, 8 + k, 16 + k and 24 + k of block b, of IQ3 columns k, 4 + k, .. of the first half and
// then of the second. That takes fewer operations than their order, for which activations are
// turned the same way. Integers are exact, so the bits are those of many tokens.

// 32 columns turned: as eight words; with a scale per 16 columns as twice eight, for both halves,
// in which the other half's are 0.
template <typename F>
constexpr bool kFours = std::is_same_v<typename F::Block, BlockIQ3_XXS> ||
                        std::is_same_v<typename F::Block, BlockIQ3_S>;
template <typename F>
constexpr int kHalves = GridBlock<typename F::Block>::halves;

template <typename F>
inline void turn(const int8_t* x, int8_t* out) {
    alignas(32) static constexpr uint8_t eights[32] = {0,  8,  16, 24, 1,  9,  17, 25, 2,  10, 18,
                                                       26, 3,  11, 19, 27, 4,  12, 20, 28, 5,  13,
                                                       21, 29, 6,  14, 22, 30, 7,  15, 23, 31};
    alignas(32) static constexpr uint8_t fours[32] = {0,  4,  8,  12, 1,  5,  9,  13, 2,  6,  10,
                                                      14, 3,  7,  11, 15, 16, 20, 24, 28, 17, 21,
                                                      25, 29, 18, 22, 26, 30, 19, 23, 27, 31};
    const __m256i order = load256(kFours<F> ? fours : eights);
    const __m256i all = _mm256_permutexvar_epi8(order, load256(x));
    auto* const to = reinterpret_cast<__m256i*>(out);
    if constexpr (kHalves<F> == 1) {
        _mm256_store_si256(to, all);
    } else {
        const __m256i first = _mm256_set1_epi32(0xffff);
        _mm256_store_si256(to, _mm256_and_si256(all, first));
        _mm256_store_si256(to + 1, _mm256_andnot_si256(first, all));
    }
}

inline __m512i word_of(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof(word));
    return _mm512_set1_epi32(word);
}
inline __m512i add_turned(__m512i sum, const Turned q, const int8_t* x) {
    __m512i even = sum, odd = _mm512_setzero_si512();
    for (int k = 0; k < 8; k += 2) {
        even = _mm512_dpbusd_epi32(even, q[k], word_of(x + 4 * k));
        odd = _mm512_dpbusd_epi32(odd, q[k + 1], word_of(x + 4 * k + 4));
    }
    return _mm512_add_epi32(even, odd);
}

// T tokens with one pair of strips, or with one strip twice.
template <typename F, int T>
[[gnu::noinline]] void pair_tile(Pair w, const Q8Rows& q8, int64_t t0, float* y, int64_t ldy) {
    constexpr int halves = kHalves<F>, bytes = kQ * halves;
    const Tokens x(q8, t0);
    __m512 sum[T];
    for (__m512& s : sum) s = _mm512_setzero_ps();
    // Of this unit and the next: what was just written is slow to read.
    alignas(64) int8_t turned[2][T][kUnpacked * bytes];
    const auto turn_unit = [&](int64_t at) {
        for (int t = 0; t < T; t++) {
            const int8_t* const from = x.q + t * x.cols + at * kQ;
            int8_t* const to = turned[at / kUnpacked % 2][t];
            for (int b = 0; b < kUnpacked; b++) turn<F>(from + b * kQ, to + b * bytes);
        }
    };
    turn_unit(0);
    for (int64_t at = 0; at < x.n_blocks; at += kUnpacked, w = w + F::unit_bytes) {
        if (at + kUnpacked < x.n_blocks) turn_unit(at + kUnpacked);
        const F f(w);
        __m512 part[T];
        for (__m512& p : part) p = _mm512_setzero_ps();
        for (int b = 0; b < kUnpacked; b++) {
            __m512i q[8];
            f.turned(b, q);
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) {
                const int8_t* const from = turned[at / kUnpacked % 2][t] + b * bytes;
                const int64_t of = t * x.n_blocks + at + b;
                const __m512 x_scale = _mm512_set1_ps(x.d[of]);
                if constexpr (halves == 1) {
                    const int32_t start = -(x.s8[of] >> 3) * F::bias;
                    const __m512i product = add_turned(_mm512_set1_epi32(start), q, from);
                    sum[t] = _mm512_fmadd_ps(_mm512_mul_ps(f.scale(b), x_scale),
                                             _mm512_cvtepi32_ps(product), sum[t]);
                } else {
                    __m512 product[2];
                    for (int h = 0; h < 2; h++) {
                        const __m512i start = _mm512_set1_epi32(-F::bias * x.s16[2 * of + h]);
                        product[h] = _mm512_cvtepi32_ps(add_turned(start, q, from + kQ * h));
                    }
                    const __m512 exact = _mm512_fmadd_ps(product[1], f.scale(b, 1),
                                                         _mm512_mul_ps(product[0], f.scale(b, 0)));
                    part[t] = _mm512_fmadd_ps(x_scale, exact, part[t]);
                }
            }
        }
        if constexpr (halves == 2) {
            for (int t = 0; t < T; t++) sum[t] = _mm512_fmadd_ps(f.unit(), part[t], sum[t]);
        }
    }
    for (int t = 0; t < T; t++) {
        _mm256_storeu_ps(y + t * ldy, _mm512_castps512_ps256(sum[t]));
        if (w.a != w.b) _mm256_storeu_ps(y + t * ldy + kStrip, _mm512_extractf32x8_ps(sum[t], 1));
    }
}

template <typename F>
void few_tokens(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
                int64_t ldy) {
    const int64_t size = strip_bytes<F>(x.cols);
    for (int64_t i = 0; i < n; i += 2, w += 2 * size, y += 2 * kStrip) {
        const Pair pair = {w, i + 1 < n ? w + size : w};
        int64_t t = 0;
        for (; t + 4 <= nt; t += 4) pair_tile<F, 4>(pair, x, t0 + t, y + t * ldy, ldy);
        for (; t + 2 <= nt; t += 2) pair_tile<F, 2>(pair, x, t0 + t, y + t * ldy, ldy);
        for (; t < nt; t++) pair_tile<F, 1>(pair, x, t0 + t, y + t * ldy, ldy);
    }
}

constexpr int64_t kFew = 8;  // tokens: more share unpacked bytes

template <typename F>
void all_tokens(const uint8_t* w, int64_t n, const Q8Rows& x, int64_t t0, int64_t nt, float* y,
                int64_t ldy) {
    static constexpr strip_fn few = few_tokens<F>;
    if (nt <= kFew) return few(w, n, x, t0, nt, y, ldy);
    strips<F, few>(w, n, x, t0, nt, y, ldy);
}

}  // namespace

const strip_fn strip__iq2_xxs_q8 = all_tokens<StripsIQ2_XXS>;
const strip_fn strip__iq2_xs_q8 = all_tokens<StripsIQ2_XS>;
const strip_fn strip__iq3_xxs_q8 = all_tokens<StripsIQ3_XXS>;
const strip_fn strip__iq1_s_q8 = all_tokens<StripsIQ1_S>;
const strip_fn strip__iq3_s_q8 = all_tokens<StripsIQ3_S>;
const strip_fn strip__iq2_s_q8 = all_tokens<StripsIQ2_S>;
const strip_fn strip__iq1_m_q8 = all_tokens<StripsIQ1_M>;

}  // namespace ggml::cpu::vbmi
