// How blocks of IQ1, IQ2 and IQ3 are read: group by group, for decoders and kernels. blocks.h
// describes the bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "ggml/blocks.h"

namespace ggml {

// Entries are bytes of eight or four weights, the first in the lowest byte. Those of IQ1 are eight
// times the weights, so that its shifts are integers, too, plus eight.
struct Grids {
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq1[2048];
    uint32_t iq3_xxs[256], iq3_s[512];
};
extern const Grids kGrids;

// What the bits of signs mean: of eight weights seven are stored, or all; or the bit is the sign of
// what is added to the weight.
enum class Signs { seven, eight, shift };

[[gnu::always_inline]] inline uint32_t word16(const uint8_t* p) {
    uint16_t word;
    std::memcpy(&word, p, sizeof(word));
    return word;
}
[[gnu::always_inline]] inline uint32_t word32(const uint8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof(word));
    return word;
}
// Nibble i of some bytes.
[[gnu::always_inline]] inline int nibble(const uint8_t* p, int i) {
    return p[i / 2] >> 4 * (i % 2) & 15;
}

// Four times seven bits of signs, each with its eighth bit: the parity of the others.
[[gnu::always_inline]] inline uint32_t with_eighth_bits(uint32_t signs) {
    const uint32_t seven = 0x7f, all = (signs & seven) | (signs & seven << 7) << 1 |
                                       (signs & seven << 14) << 2 | (signs & seven << 21) << 3;
    uint32_t parity = all ^ all >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return all | (parity & 0x01010101) << 7;
}

// Group g of a block, 32 weights, is w = d(block) * unit * scale(block, g, half) * q. Of weights
// 8 l .. 8 l + 7, eight(block, g, l) are the bytes of q without signs (of IQ1: q plus eight).
// stored_signs: see Signs; seven bits leave the upper four of the word to others. halves: scales
// per group.
template <typename Block>
struct GridBlock;

template <typename Block>
struct GridOf {
    [[gnu::always_inline]] static f16_t d(const Block& b) { return f16_t(word16(b.d)); }
};

template <>
struct GridBlock<BlockIQ2_XXS> : GridOf<BlockIQ2_XXS> {
    using Block = BlockIQ2_XXS;
    static constexpr int halves = 1;
    static constexpr int scale_bits = 4;
    static constexpr float unit = 0.125f;
    static constexpr Signs signs = Signs::seven;
    [[gnu::always_inline]] static uint64_t eight(const Block& b, int g, int l) {
        return kGrids.iq2_xxs[b.qs[8 * g + l]];
    }
    [[gnu::always_inline]] static uint32_t stored_signs(const Block& b, int g) {
        return word32(b.qs + 8 * g + 4);
    }
    [[gnu::always_inline]] static uint32_t scales(const Block& b, int g) {
        return b.qs[8 * g + 7] >> 4;
    }
};

template <>
struct GridBlock<BlockIQ2_XS> : GridOf<BlockIQ2_XS> {
    using Block = BlockIQ2_XS;
    static constexpr int halves = 2;
    static constexpr int scale_bits = 4;
    static constexpr float unit = 0.125f;
    static constexpr Signs signs = Signs::seven;
    [[gnu::always_inline]] static uint64_t eight(const Block& b, int g, int l) {
        return kGrids.iq2_xs[word16(b.qs + 8 * g + 2 * l) & 511];
    }
    [[gnu::always_inline]] static uint32_t stored_signs(const Block& b, int g) {
        const uint32_t low = word32(b.qs + 8 * g), high = word32(b.qs + 8 * g + 4);
        return (low >> 9 & 0x7f) | (low >> 18 & 0x3f80) | (high << 5 & 0x1fc000) |
               (high >> 4 & 0xfe00000);
    }
    [[gnu::always_inline]] static uint32_t scales(const Block& b, int g) { return b.scales[g]; }
};

template <>
struct GridBlock<BlockIQ2_S> : GridOf<BlockIQ2_S> {
    using Block = BlockIQ2_S;
    static constexpr int halves = 2;
    static constexpr int scale_bits = 4;
    static constexpr float unit = 0.125f;
    static constexpr Signs signs = Signs::eight;
    [[gnu::always_inline]] static uint64_t eight(const Block& b, int g, int l) {
        return kGrids.iq2_s[b.qs[4 * g + l] | (b.qh[g] >> 2 * l & 3) << 8];
    }
    [[gnu::always_inline]] static uint32_t stored_signs(const Block& b, int g) {
        return word32(b.signs + 4 * g);
    }
    [[gnu::always_inline]] static uint32_t scales(const Block& b, int g) { return b.scales[g]; }
};

template <>
struct GridBlock<BlockIQ3_XXS> : GridOf<BlockIQ3_XXS> {
    using Block = BlockIQ3_XXS;
    static constexpr int halves = 1;
    static constexpr int scale_bits = 4;
    static constexpr float unit = 0.25f;
    static constexpr Signs signs = Signs::seven;
    [[gnu::always_inline]] static uint64_t eight(const Block& b, int g, int l) {
        const uint8_t* const index = b.qs + 8 * g + 2 * l;
        return kGrids.iq3_xxs[index[0]] | uint64_t(kGrids.iq3_xxs[index[1]]) << 32;
    }
    [[gnu::always_inline]] static uint32_t stored_signs(const Block& b, int g) {
        return word32(b.scales + 4 * g);
    }
    [[gnu::always_inline]] static uint32_t scales(const Block& b, int g) {
        return b.scales[4 * g + 3] >> 4;
    }
};

template <>
struct GridBlock<BlockIQ3_S> : GridOf<BlockIQ3_S> {
    using Block = BlockIQ3_S;
    static constexpr int halves = 1;
    static constexpr int scale_bits = 4;
    static constexpr float unit = 1;
    static constexpr Signs signs = Signs::eight;
    [[gnu::always_inline]] static uint64_t eight(const Block& b, int g, int l) {
        const uint8_t* const index = b.qs + 8 * g + 2 * l;
        const int ninth = b.qh[g] >> 2 * l;
        return kGrids.iq3_s[index[0] | (ninth & 1) << 8] |
               uint64_t(kGrids.iq3_s[index[1] | (ninth & 2) << 7]) << 32;
    }
    [[gnu::always_inline]] static uint32_t stored_signs(const Block& b, int g) {
        return word32(b.signs + 4 * g);
    }
    [[gnu::always_inline]] static uint32_t scales(const Block& b, int g) {
        return uint32_t(nibble(b.scales, g));
    }
};

template <>
struct GridBlock<BlockIQ1_S> : GridOf<BlockIQ1_S> {
    using Block = BlockIQ1_S;
    static constexpr int halves = 1;
    static constexpr int scale_bits = 3;
    static constexpr float unit = 0.125f;
    static constexpr Signs signs = Signs::shift;
    [[gnu::always_inline]] static uint64_t eight(const Block& b, int g, int l) {
        return kGrids.iq1[b.qs[4 * g + l] | (word16(b.qh + 2 * g) >> 3 * l & 7) << 8];
    }
    [[gnu::always_inline]] static uint32_t stored_signs(const Block& b, int g) {
        return 0 - (word16(b.qh + 2 * g) >> 15);
    }
    [[gnu::always_inline]] static uint32_t scales(const Block& b, int g) {
        return word16(b.qh + 2 * g) >> 12;
    }
};

template <>
struct GridBlock<BlockIQ1_M> {
    using Block = BlockIQ1_M;
    static constexpr int halves = 2;
    static constexpr int scale_bits = 3;
    static constexpr float unit = 0.125f;
    static constexpr Signs signs = Signs::shift;
    [[gnu::always_inline]] static f16_t d(const Block& b) {
        return f16_t(b.scales[1] >> 4 | (b.scales[3] & 0xf0) | (b.scales[5] & 0xf0) << 4 |
                     (b.scales[7] & 0xf0) << 8);
    }
    [[gnu::always_inline]] static uint64_t eight(const Block& b, int g, int l) {
        return kGrids.iq1[b.qs[4 * g + l] | (nibble(b.qh, 4 * g + l) & 7) << 8];
    }
    [[gnu::always_inline]] static uint32_t stored_signs(const Block& b, int g) {
        const uint32_t high = word16(b.qh + 2 * g);
        const uint32_t bits =
            (high >> 3 & 1) | (high << 1 & 0x100) | (high << 5 & 0x10000) | (high << 9 & 0x1000000);
        return bits * 255;
    }
    [[gnu::always_inline]] static uint32_t scales(const Block& b, int g) {
        return word16(b.scales + g / 2 * 2) >> 6 * (g % 2);
    }
};

template <typename Block>
inline constexpr bool is_grid = false;
#define IS_GRID(name, ...) \
    template <>            \
    inline constexpr bool is_grid<Block##name> = true;
GGML_GRID_FORMATS(IS_GRID)
#undef IS_GRID

// Which scale a half of 16 weights has, in the bits of its group.
template <typename Grid>
[[gnu::always_inline]] constexpr int scale_at(int half) {
    return half % Grid::halves * Grid::scale_bits;
}
template <typename Grid>
constexpr uint32_t kScaleMask = (1 << Grid::scale_bits) - 1;

// All 32 bits of signs of group g.
template <typename Grid, typename Block>
[[gnu::always_inline]] inline uint32_t sign_bits(const Block& b, int g) {
    const uint32_t stored = Grid::stored_signs(b, g);
    return Grid::signs == Signs::seven ? with_eighth_bits(stored) : stored;
}

}  // namespace ggml
