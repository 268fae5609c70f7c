// Shared by the kernels of block formats, for strips of eight interleaved rows and for neuron rows.
//
// A register has eight lanes. Each lane belongs to one row of a strip, to one eighth of a folded
// row, or to one of the eight groups of 32 columns of a block of 256 as stored. So a product ends
// with eight sums side by side. The integer sum over a block of 32 columns is exact, and each
// output adds its blocks in ascending order for any number of tokens or rows in a tile. A group is
// bytes 4 v .. 4 v + 3 of a member of the block, for all eight lanes.
//
// Each format is described once by a struct in formats/, which derives from its family.
// block_kernels.h makes its kernels from these members:
//   Block, blocks       its block, of 32 * blocks columns
//   weights(w, j, v)    group v of the 32 columns j, as bytes
//   bias                the offset to subtract from these bytes
//   halves              scales per 32 columns: 1, or 2 if each 16 columns have one
//   straight            times 32 columns that rows are added of without a loop; see for_scales
//   tokens              tokens in the largest tile; see for_tiles
// and plain_rows.h, for blocks of 32 as stored, from these:
//   codes(block)        its 32 weights as bytes, before the bias is subtracted
//   unscaled(block, v)  the same less the bias, as floats
// For blocks of 64, whose 16 columns each have a scale, plain_rows.h takes these:
//   codes(block, j)     of its 32 columns j
//   values(block, j, v) the same as floats, with their scales
//   add_products(sum, block, j, products, x)
// The family provides:
//   multiply<T>(w, x, b, sum)     adds to T sums the product of a block with x from block b on
//   has_min, numbers(w, j, half)  decoding of the bytes less the bias: scale * byte + min
//   integers                      are scales integers, times a unit of 256 columns?
#pragma once

#include <cstddef>

#include "formats/parts.h"
#include "ggml/tensor.h"
#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace ggml::cpu::GGML_ISA {

constexpr int kGroup = 32;  // bytes of a group

struct Numbers {
    f32x8 scale, min;
};

// How a format with blocks of 256 reads its half floats for eight lanes. Interleaved: eight blocks
// are interleaved, and each lane takes 32 columns of its own block at a time. Stored: one block as
// stored, whose eight groups are the lanes.
struct Interleaved {
    static constexpr int blocks = 8;
    static f32x8 halves(const uint8_t* w, size_t member) { return load_f16(w + kStrip * member); }
};
struct Stored {
    static constexpr int blocks = 1;
    static f32x8 halves(const uint8_t* w, size_t member) {
        f16_t half;
        std::memcpy(&half, w + member, sizeof(half));
        return splat(f16_value(half));
    }
};

// The scales of blocks of 32, which are their first members: of eight interleaved blocks, of those
// at eight addresses, of one.
template <typename Block>
inline f32x8 load_scales(const uint8_t* w) {
    if constexpr (!kHasPower<Block>) return load_f16(w);
    uint64_t exponents;
    std::memcpy(&exponents, w, sizeof(exponents));
    return powers_of_two(widen8(exponents));
}
template <typename Block>
inline f32x8 gather_scales(const uint8_t* const (&block)[8]) {
    if constexpr (!kHasPower<Block>) return gather_f16(block);
    uint64_t exponents = 0;
    for (int i = 0; i < 8; i++) exponents |= uint64_t(*block[i]) << 8 * i;
    return powers_of_two(widen8(exponents));
}
template <typename Block>
inline float block_scale(const Block& block) {
    if constexpr (kHasPower<Block>) {
        return power_of_two(block.e);
    } else {
        return f16_value(block.d);
    }
}

// The two forms of 32 activations, as eight groups: the same for all lanes, or each lane's own.
struct SharedColumns {
    static constexpr bool shared = true;
    const int8_t* q;
    i256 operator[](int v) const { return word(q + 4 * v); }
};
struct OwnColumns {
    static constexpr bool shared = false;
    const int8_t* q;
    i256 operator[](int v) const { return load(q + kGroup * v); }
};

// Activations for strips: of tokens t0 + t, the same for all eight rows.
struct Tokens {
    Tokens(const Q8Rows& x, int64_t t0)
        : cols(x.cols),
          n_blocks(cols / kQ),
          q(x.q + t0 * x.cols),
          d(x.d + t0 * n_blocks),
          ds(x.ds + t0 * n_blocks),
          s8(x.s8 + t0 * n_blocks),
          s16(x.s16 + t0 * n_blocks * 2) {}

    SharedColumns values(int t, int64_t b) const { return {q + t * cols + b * kQ}; }
    f32x8 scale(int t, int64_t b) const { return splat(d[t * n_blocks + b]); }
    f32x8 scaled_sum(int t, int64_t b) const { return splat(ds[t * n_blocks + b]); }
    i256 sum8(int t, int64_t b) const { return splat32(s8[t * n_blocks + b]); }
    // The sums of the two groups of 16 columns, in the halves of each lane.
    i256 sums16(int t, int64_t b) const { return word(s16 + (t * n_blocks + b) * 2); }

    int64_t cols, n_blocks;
    const int8_t* q;
    const float *d, *ds;
    const int32_t* s8;
    const int16_t* s16;
};

// Activations for neuron rows: of any T tokens; each lane has its own columns.
template <int T>
struct Eighths {
    Eighths(const Q8Rows& x, const int32_t* tokens) : x_(x), n_blocks(x.cols / kQ / kStrip) {
        for (int t = 0; t < T; t++) first_[t] = tokens[t] * (x.cols / kQ);
    }

    // Index of the first of token t's eight blocks b.
    int64_t at(int t, int64_t b) const { return first_[t] + b * kStrip; }
    OwnColumns values(int t, int64_t b) const { return {x_.q + at(t, b) * kQ}; }
    f32x8 scale(int t, int64_t b) const { return load_f32(x_.d + at(t, b)); }
    f32x8 scaled_sum(int t, int64_t b) const { return load_f32(x_.ds + at(t, b)); }
    i256 sum8(int t, int64_t b) const { return load(x_.s8 + at(t, b)); }
    i256 sums16(int t, int64_t b) const { return load(x_.s16 + 2 * at(t, b)); }

 private:
    const Q8Rows x_;
    int64_t first_[T];

 public:
    int64_t n_blocks;
};

// sum + w_scales * x_scales * product, lane by lane.
inline f32x8 add_block(f32x8 sum, f32x8 w_scales, f32x8 x_scales, i256 product) {
    return add_product(sum, mul(w_scales, x_scales), to_float(product));
}

// Group v of 16 bytes of nibbles; the low nibbles come first.
inline i256 nibbles(const uint8_t* qs, int v) {
    return nibbles_of(load(qs + kGroup * (v % 4)), v >= 4);
}

// The same with bit 4 from qh: bit i of a lane's four bytes belongs to column i.
inline i256 nibbles_and_bits(const uint8_t* qh, const uint8_t* qs, int v) {
    const i256 bit = splat32(v % 2 ? int(0x80402010) : 0x08040201);
    return nibbles(qs, v) | (has_bit(lane_bytes(load(qh), v / 2), bit) & splat8(16));
}

// Group v of the codes of two bits (Q2_K, Q3_K, Q6_K, TQ2_0) of the 32 columns j of a strip.
inline i256 two_bits(const uint8_t* qs, int j, int v) {
    return shift_right16(load(qs + kGroup * (8 * (j / 4) + v)), 2 * (j % 4)) & splat8(3);
}

// The 2-bit codes of the eight groups of one block as stored. Each 32 bytes hold four groups.
inline i256 stored_two_bits(const uint8_t* qs, int v) {
    const i256 codes = words<0, 0, 0, 0, 1, 1, 1, 1>(qs + 4 * v, 32);
    return shift_right_each<0, 2, 4, 6, 0, 2, 4, 6>(codes) & splat8(3);
}

template <typename F>
inline void all_weights(const uint8_t* w, int j, i256 (&out)[8]) {
    for (int v = 0; v < 8; v++) out[v] = F::weights(w, j, v);
}

}  // namespace ggml::cpu::GGML_ISA
