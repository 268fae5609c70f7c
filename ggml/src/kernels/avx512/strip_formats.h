// How pairs of packed strips are read: the members that each format's family needs (families.h).
// Blocks of 32 or 64 columns follow each other; of a block of 256, b is one of its eight groups.
// Shifts by a count that depends on b are rotations, whose surplus bits a mask removes.
//
// Up to `few` tokens are multiplied as weights are unpacked in registers, more share unpacked bytes
// (strip.cpp). Measured on a core of Zen 4, 10^9 multiply-adds per second with 4, 8 and 16 tokens,
// in registers: Q4_0 172, 176, 170, Q5_0 131, 133, 137, Q6_K 93, 91, 97; unpacked: Q4_0 112, 139,
// 157, Q5_0 104, 132, 153, Q6_K 93, 118, 133.
#pragma once

#include "kernels/avx512/families.h"

namespace ggml::cpu::GGML_ISA {

inline __m512i nibbles_of(__m512i two, bool high) {
    return _mm512_and_si512(high ? _mm512_srli_epi16(two, 4) : two, splat8(15));
}
// (a >> n) & mask of every byte; to the left if n < 0.
template <int mask>
inline __m512i bits_of(__m512i a, int n) {
    return _mm512_and_si512(_mm512_rorv_epi32(a, _mm512_set1_epi32(n)), splat8(mask));
}
// kIQ4 + 128.
inline __m512i table_iq4(__m512i indices) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4));
    const __m512i entries = _mm512_xor_si512(_mm512_broadcast_i32x4(table), splat8(0x80));
    return _mm512_shuffle_epi8(entries, indices);
}
// Byte i of each lane as a float: unsigned, or signed.
inline __m512 to_float(__m512i lanes, int i) {
    const __m512i down = _mm512_srlv_epi32(lanes, _mm512_set1_epi32(8 * i));
    return _mm512_cvtepi32_ps(_mm512_and_si512(down, _mm512_set1_epi32(255)));
}
inline __m512 signed_to_float(__m512i lanes, int i) {
    const __m512i up = _mm512_sllv_epi32(lanes, _mm512_set1_epi32(24 - 8 * i));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(up, 24));
}

// Bits 4 v .. 4 v + 3 of a lane of qh are bit 4 of its codes of group v.
inline __m512i add_fifth_bits(__m512i codes, Pair qh, int v) {
    const __m512i lanes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m512i place = _mm512_add_epi8(lanes, splat8(v / 2));
    const __m512i bit = _mm512_set1_epi32(v % 2 ? int(0x80402010) : 0x08040201);
    const __mmask64 has = _mm512_test_epi8_mask(_mm512_shuffle_epi8(load(qh), place), bit);
    return _mm512_mask_add_epi8(codes, has, codes, splat8(16));
}

struct StripsQ4_0 : PackedPair<BlockQ4_0, OneScale> {
    static constexpr int bias = 8, few = 12;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const { return nibbles(member(offsetof(Block, qs), b), v); }
    __m512 scale(int b) const { return load_scales(member(0, b)); }
};

struct StripsQ5_0 : PackedPair<BlockQ5_0, OneScale> {
    static constexpr int bias = 16, few = 6;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        return add_fifth_bits(nibbles(member(offsetof(Block, qs), b), v),
                              member(offsetof(Block, qh), b), v);
    }
    __m512 scale(int b) const { return load_scales(member(0, b)); }
};

struct StripsQ8_0 : PackedPair<BlockQ8_0, OneScale> {
    static constexpr int bias = 128, few = 12;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        return _mm512_xor_si512(load(member(offsetof(Block, qs), b) + kGroup * v), splat8(0x80));
    }
    __m512 scale(int b) const { return load_scales(member(0, b)); }
};

struct StripsIQ4_NL : PackedPair<BlockIQ4_NL, OneScale> {
    static constexpr int bias = 128, few = 12;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        return table_iq4(nibbles(member(offsetof(Block, qs), b), v));
    }
    __m512 scale(int b) const { return load_scales(member(0, b)); }
};

struct StripsMXFP4 : PackedPair<BlockMXFP4, OneScale> {
    static constexpr int bias = 16, few = 12;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        return table_e2m1(nibbles(member(offsetof(Block, qs), b), v));
    }
    __m512 scale(int b) const { return load_powers(member(0, b)); }
};

struct StripsNVFP4 : PackedPair<BlockNVFP4, TwoScales<16>> {
    static constexpr int few = 6;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        const int word = b % 2 * 4 + v / 4 * 2 + v % 2;
        const __m512i pairs = load(member(offsetof(Block, qs), b / 2) + kGroup * word);
        return table_e2m1(nibbles_of(pairs, v % 4 >= 2));
    }
    __m512 scale(int b, int half) const {  // half_e4m3
        const __m512i bytes = load(member(offsetof(Block, d), b / 2));
        const __m512i up = _mm512_set1_epi32(20 - 8 * (b % 2 * 2 + half));
        const __mmask64 numbers = _mm512_cmpneq_epi8_mask(bytes, splat8(127));
        const __m512i bits =
            _mm512_and_si512(_mm512_rolv_epi32(_mm512_maskz_mov_epi8(numbers, bytes), up),
                             _mm512_set1_epi32(127 << 20));
        return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(kHalfE4M3));
    }
};

struct StripsIQ4_XS : PackedPair<BlockIQ4_XS, OneScale> {
    static constexpr int bias = 128, few = 12;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        return table_iq4(nibbles(member(offsetof(Block, qs) + 16 * size_t(b)), v));
    }
    __m512 scale(int b) const {
        const auto halves = [](const uint8_t* p) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        };
        const Pair two = member(offsetof(Block, scales_h));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_set_m128i(halves(two.b), halves(two.a)));
        const __m512i low = load(member(offsetof(Block, scales_l)));
        const __m512i of_low = _mm512_and_si512(_mm512_srlv_epi32(low, _mm512_set1_epi32(4 * b)),
                                                _mm512_set1_epi32(15));
        const __m512i of_high = _mm512_and_si512(
            _mm512_rorv_epi32(high, _mm512_set1_epi32(2 * b - 4)), _mm512_set1_epi32(48));
        const __m512i both = _mm512_or_si512(of_low, of_high);
        return _mm512_mul_ps(load_scales(w),
                             _mm512_cvtepi32_ps(_mm512_sub_epi32(both, _mm512_set1_epi32(32))));
    }
};

struct StripsQ4_1 : PackedPair<BlockQ4_1, ScaleAndMin> {
    static constexpr int few = 12;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const { return nibbles(member(offsetof(Block, qs), b), v); }
    __m512 scale(int b) const { return load_scales(member(0, b)); }
    __m512 min(int b) const { return load_scales(member(offsetof(Block, m), b)); }
};

struct StripsQ5_1 : PackedPair<BlockQ5_1, ScaleAndMin> {
    static constexpr int few = 6;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        return add_fifth_bits(nibbles(member(offsetof(Block, qs), b), v),
                              member(offsetof(Block, qh), b), v);
    }
    __m512 scale(int b) const { return load_scales(member(0, b)); }
    __m512 min(int b) const { return load_scales(member(offsetof(Block, m), b)); }
};

// Q4_K and Q5_K.
template <typename Format>
struct StripsOfGroups : PackedPair<Format, ScaledGroups> {
    using Block = Format;
    explicit StripsOfGroups(Pair pair)
        : PackedPair<Format, ScaledGroups>(pair),
          factors(load(packed(0)), load(packed(1)), load(packed(2))) {}
    Pair packed(int i) const { return this->member(offsetof(Block, scales)) + i * kGroup; }
    __m512i four_bits(int b, int v) const {
        const Pair qs = this->member(offsetof(Block, qs));
        return nibbles_of(load(qs + kGroup * (8 * (b / 2) + v)), b % 2);
    }
    __m512 scale(int b) const { return to_float(factors.scales[b / 4], b % 4); }
    __m512 min(int b) const {
        return _mm512_mul_ps(load_scales(this->member(offsetof(Block, dmin))),
                             to_float(factors.mins[b / 4], b % 4));
    }
    __m512 unit() const { return load_scales(this->w); }

    const Factors factors;
};

struct StripsQ4_K : StripsOfGroups<BlockQ4_K> {
    static constexpr int few = 12;
    using StripsOfGroups::StripsOfGroups;
    __m512i group(int b, int v) const { return four_bits(b, v); }
};

struct StripsQ5_K : StripsOfGroups<BlockQ5_K> {
    static constexpr int few = 6;
    using StripsOfGroups::StripsOfGroups;
    __m512i group(int b, int v) const {
        const __m512i high = load(member(offsetof(Block, qh)) + kGroup * v);
        return _mm512_or_si512(four_bits(b, v), bits_of<16>(high, b - 4));
    }
};

// Group v of the 2-bit codes of block b; qs has as many groups as 128 columns.
inline __m512i two_bits(Pair qs, int b, int v) {
    return bits_of<3>(load(qs + kGroup * (8 * (b / 4) + v)), 2 * (b % 4));
}

struct StripsQ6_K : PackedPair<BlockQ6_K, ScaledHalves<32>> {
    static constexpr int few = 0;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        const int h = b / 4, i = b % 4;
        const Pair low = member(offsetof(Block, ql)) + kGroup * (16 * h + 8 * (i % 2) + v);
        const __m512i high = load(member(offsetof(Block, qh)) + kGroup * (8 * h + v));
        const __m512i four = _mm512_rorv_epi32(load(low), _mm512_set1_epi32(4 * (i / 2)));
        const __m512i two = _mm512_rorv_epi32(high, _mm512_set1_epi32(2 * i - 4));
        // (four & 15 | two & ~15) & 63
        const __m512i six = _mm512_ternarylogic_epi32(splat8(15), four, two, 0xca);
        return _mm512_and_si512(six, splat8(63));
    }
    __m512 scale(int b, int half) const {
        const __m512i scales = load(member(offsetof(Block, scales)) + kGroup * (b / 2));
        return signed_to_float(scales, 2 * (b % 2) + half);
    }
    __m512 unit() const { return load_scales(member(offsetof(Block, d))); }
};

struct StripsQ3_K : PackedPair<BlockQ3_K, ScaledHalves<4>> {
    static constexpr int few = 0;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const {
        const __m512i high = load(member(offsetof(Block, hmask)) + kGroup * v);
        return _mm512_or_si512(two_bits(member(offsetof(Block, qs)), b, v),
                               bits_of<4>(high, b - 2));
    }
    __m512 scale(int b, int half) const {
        const Pair packed = member(offsetof(Block, scales));
        const int k = b / 2;  // groups 4 k .. 4 k + 3
        const __m512i low = bits_of<15>(load(packed + kGroup * (k % 2)), 4 * (k / 2));
        const __m512i high = bits_of<48>(load(packed + 2 * kGroup), 2 * k - 4);
        const __m512i scales = _mm512_sub_epi8(_mm512_or_si512(low, high), splat8(32));
        return signed_to_float(scales, 2 * (b % 2) + half);
    }
    __m512 unit() const { return load_scales(member(offsetof(Block, d))); }
};

struct StripsQ2_K : PackedPair<BlockQ2_K, ScaledHalves<0>> {
    static constexpr int few = 0;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const { return two_bits(member(offsetof(Block, qs)), b, v); }
    __m512i factors(int b) const {
        return load(member(offsetof(Block, scales)) + kGroup * (b / 2));
    }
    __m512 scale(int b, int half) const {
        return to_float(nibbles_of(factors(b), false), 2 * (b % 2) + half);
    }
    __m512i mins(int b) const {  // bytes 0 and 1 or 2 and 3 of each lane, as 16 bits each
        const __m512i first =
            _mm512_set4_epi32(int(0x800d800c), int(0x80098008), int(0x80058004), int(0x80018000));
        const __m512i place = _mm512_add_epi8(first, _mm512_set1_epi16(int16_t(2 * (b % 2))));
        return _mm512_shuffle_epi8(nibbles_of(factors(b), true), place);
    }
    __m512 unit() const { return load_scales(member(offsetof(Block, d))); }
    __m512 unit_min() const { return load_scales(member(offsetof(Block, dmin))); }
};

struct StripsTQ2_0 : PackedPair<BlockTQ2_0, OneScale> {
    static constexpr int bias = 1, few = 6;
    using PackedPair::PackedPair;
    __m512i group(int b, int v) const { return two_bits(member(offsetof(Block, qs)), b, v); }
    __m512 scale(int) const { return load_scales(member(offsetof(Block, d))); }
};

struct StripsTQ1_0 : PackedPair<BlockTQ1_0, OneScale> {
    static constexpr int bias = 1, few = 0;
    using PackedPair::PackedPair;
    // Digit n of every byte (ggml/blocks.h).
    static __m512i digits(Pair bytes, int n) {
        static constexpr int16_t powers[] = {1, 3, 9, 27, 81};
        const __m512i all = load(bytes), low = _mm512_set1_epi16(255);
        const __m512i power = _mm512_set1_epi16(powers[n]), three = _mm512_set1_epi16(3);
        const auto threefold = [&](__m512i each) {  // of 16 bits: the digit is in bits 8 and 9
            const __m512i rest = _mm512_and_si512(_mm512_mullo_epi16(each, power), low);
            return _mm512_mullo_epi16(rest, three);
        };
        const __m512i even = threefold(_mm512_and_si512(all, low));
        const __m512i odd = threefold(_mm512_srli_epi16(all, 8));
        return _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_andnot_si512(low, odd));
    }
    __m512i group(int b, int v) const {
        const Pair qs = member(offsetof(Block, qs));
        if (b < 5) return digits(qs + kGroup * v, b);
        const int n = 2 * (b - 5) + v / 4;
        return n < 5 ? digits(qs + kGroup * (8 + v % 4), n)
                     : digits(member(offsetof(Block, qh)), v - 4);
    }
    __m512 scale(int) const { return load_scales(member(offsetof(Block, d))); }
};

}  // namespace ggml::cpu::GGML_ISA
