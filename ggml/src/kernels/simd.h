// The vocabulary in which kernels of eight lanes are written once for all instruction sets
// (lanes, formats). These files are compiled for each instruction set with its flags, and
// the flags choose the simd.h that gives the words their meaning. GGML_ISA is its namespace.
//
// A lane has 32 bits. f32x8 holds eight floats. i256 holds 32 bytes; functions name the width of
// the integers that they take them for, or take them for the bytes of eight lanes.
//
// Floats
//   load_f32, load_f16, load_bf16, load_i8    eight values from an address of any alignment
//   f16_value                                 one half as a float
//   gather_f16                                halves from eight addresses
//   store, splat
//   mul, add_product, sub_product             a * b; sum + a * b and sum - a * b, which round once
//                                             if the instruction set has FMA
//   to_float                                  32-bit integers
//   horizontal_sum                            ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))
//   abs, max (b where a is NaN), horizontal_max, any_nan
//   to_int                                    to nearest, ties to even; INT32_MIN if out of range
//   as_float                                  32-bit integers as the bits of floats
//   powers_of_two                             2^(e - 128) for each lane's e of 0 to 255
// Bytes and integers
//   load, splat8, splat16, splat32, &, | and ^, add8, sub8, add32, sub32, mul16, max32
//   shift_left16 .. shift_right32, shift_right_each<n0, .. n7>
//   low_nibbles, high_nibbles                 of every byte
//   nibbles_of(a, high)                       one or the other
//   table16                                   entries of a table of 16 bytes by indices below 16
//   word                                      four bytes, in every lane
//   words<n0, .. n7>(p, apart)                lane i: the four bytes at p + ni * apart
//   words_16_apart(p)                         lane i: the four bytes at p + 16 i
//   lanes(v)                                  lane i: v[i]
//   first_and_second(pairs, first, second)    lane i: the lower and the upper half of pairs[i]
//   widen8, widen16                           eight unsigned integers, one per lane
//   q3_scales                                 those of a stored block of Q3_K, in 16-bit pairs
//   lane_bytes(a, i)                          byte i of a lane, in all four of its bytes
//   greater8                                  signed bytes: 255 where a > b, else 0
//   has_bit(a, mask)                          255 where a has the one bit of the mask, else 0
//   pick_byte(i), picked                      byte i of each lane, signed, as a float / kByteUnit
//   clamp32, pack, two_sums                   for quantisation: 32-bit integers within +-limit; 32
//                                             of them as bytes; the sums of the lanes of a and of b
//   add_bit_counts<n>, add_bytes, total       for counts: bytes plus 2^n times the number of bits
//                                             of bytes; a sum of bytes and its total
// b32: the 32 values of a block as stored, in order
//   load_nibbles                              from 16 bytes, the low ones first
//   add_bit_4(a, p)                           bit 4 of each value, from 32 bits at p
//   minus(a, n), table16, to_floats
// The 32 values of a block as stored in one i256, in order
//   load_codes                                from 16 bytes of nibbles
//   add_bit_4                                 as above
//   code_products, signed_products(w, x)      products of 32 unsigned or signed weights, added by
//                                             fours
//   lane_totals, code_totals                  lane i: the sum of the lanes of v[i]; the second
//                                             for products of unsigned codes of at most 5 bits
//   code_half_totals(v, first, second)        the same of lanes 0 to 3, and of lanes 4 to 7
//   swap_middle                               bytes 8 .. 15 with bytes 16 .. 23
// Sums of products. Instruction sets differ in when they widen: AVX2 adds products of bytes in 16
// bits and widens last, VNNI and NEON add them in 32 bits. So these are words of their own. x is
// one of the two forms of 32 activations in strip.h.
//   products32<bits>(w, x)                    32 columns with unsigned weights of so many bits
//   products32<bits>(w, x, factor)            times an integer factor of each lane
//   products16<sums, v>(w, x, factor)         16 columns from group v on; so many 16-bit sums fit.
//                                             The factor is 1 where it is left out
//   signed_products32(w, x, sum8, sums)       32 columns x(t) of several tokens t with signed
//                                             weights, which are w(v) for group v; sum8(t) is 8
//                                             times the sum of the columns
//   add_byte_products, shift_right_signed32   where GGML_ADDS_BYTES: four products of any unsigned
//                                             bytes with signed ones, added to each lane
//   kTurnsActivations                         of signed weights, do the words above need magnitudes
//   turned(x, sign)                           and x with the signs of the weights: 1 or 255?
//   factor, signed_factor(a, i)               byte i of each lane as such a factor
//   pair(a, i, j)                             signed bytes i and j as the 16-bit halves of a lane
//   short_to_float(a, half)                   a half of each lane as a float
//   add_pairs                                 the products of both 16-bit halves, added per lane
// kMostTokens is the largest tile for which the instruction set has registers.
#pragma once

#if defined(__ARM_FEATURE_DOTPROD)
#include "kernels/neon/simd.h"
#elif defined(__AVX2__)
#include "kernels/avx2/simd.h"
#else
#include "kernels/avx/simd.h"
#endif

namespace ggml::cpu::GGML_ISA {

// Made of other words, so the same for all.
inline i256 nibbles_of(i256 a, bool high) {
    return high ? high_nibbles(a) : low_nibbles(a);
}
inline i256 lane_bytes(i256 a, int i) {
    return shuffle_lanes(a, 0x01010101 * i);
}

inline f32x8 powers_of_two(i256 e) {  // see power_bits in blocks.h
    const i256 one = splat32(1);
    return as_float(max32(shift_left32(sub32(e, one), 23), shift_left32(add32(e, one), 21)));
}

#ifndef __AVX2__  // two registers of 16 bytes: the 32 values of a block are in one i256 anyway
inline i256 words_16_apart(const uint8_t* p) {
    return words<0, 1, 2, 3, 4, 5, 6, 7>(p, 16);
}
// The scales of a stored block of Q3_K (ggml/blocks.h): of groups 2 i and 2 i + 1 in lane i.
inline i256 q3_scales(const uint8_t* packed) {
    uint64_t low, high = 0;
    std::memcpy(&low, packed, 8);
    std::memcpy(&high, packed + 8, 4);
    high |= high << 32;
    const i256 lows = shift_right_each<0, 0, 0, 0, 4, 4, 4, 4>(widen16(low, low));
    const i256 highs = shift_right_each<0, 0, 2, 2, 4, 4, 6, 6>(widen16(high, high));
    return sub8(low_nibbles(lows) | shift_left16(highs & splat8(3), 4), splat8(32));
}
inline b32 add_bit_4(b32 nibbles, const uint8_t* p) {
    return nibbles | (load_bits(p) & splat8(16));
}
inline b32 minus(b32 a, int n) {
    return sub8(a, splat8(n));
}
inline i256 load_codes(const uint8_t* p) {
    return load_nibbles(p);
}
inline i256 code_totals(const i256 (&v)[8]) {
    return lane_totals(v);
}
#endif

}  // namespace ggml::cpu::GGML_ISA
