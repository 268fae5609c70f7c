// A group of 32 weights of a block to what the planes of a row have of it (planes.h): for the CPU,
// which packs rows as a file has them, and for a device, which unfolds strips (ops/unfold.cu). All
// by words, so that a device keeps a group in registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/planes.h"
#include "ggml/blocks.h"

namespace ggml {

// Where the bytes of a block are. `at` is the offset of a half, of a byte that stands alone, or of
// four bytes of an array, as many words from its beginning.
struct StoredBlock {
    const uint8_t* from;

    uint32_t word(size_t at) const { return get<uint32_t>(at); }
    uint32_t half(size_t at) const { return get<uint16_t>(at); }
    uint32_t byte(size_t at) const { return from[at]; }

 private:
    template <typename T>
    T get(size_t at) const {
        T value;
        std::memcpy(&value, from + at, sizeof value);
        return value;
    }
};

// As many bytes of each member as the planes have (plane_bytes()), the first one lowest. super: of
// the block.
struct PackedGroup {
    uint32_t low[8], high[2], scale, super;
};

template <DType type>
struct BlockOf;
#define BLOCK_OF(name, suffix, n, ...)    \
    template <>                           \
    struct BlockOf<DType::name> {         \
        using Block = Block##name;        \
        static constexpr int weights = n; \
    };
GGML_PLAIN_FORMATS(BLOCK_OF)
GGML_K_FORMATS(BLOCK_OF)
#undef BLOCK_OF

namespace planes {

constexpr uint32_t kOnes = 0x01010101;  // 1 in every byte

// Two of the bits of eight words from bit `from` on, as in `low` of two bits: word w of two.
GGML_BOTH inline uint32_t two_bits(const uint32_t (&codes)[8], int from, int w) {
    uint32_t bits = 0;
    for (int s = 0; s < 4; s++) bits |= (codes[2 * s + w] >> from & 3 * kOnes) << 2 * s;
    return bits;
}

// Scales with an offset of 32, in the lowest two bytes.
GGML_BOTH inline uint32_t less_32(uint32_t two) {
    return ((two - 32) & 255) | (((two >> 8) - 32) & 255) << 8;
}

// The members of blocks of 32 are the planes' own.
template <DType type, typename From>
GGML_BOTH inline void take_plain(const From& block, PackedGroup& to) {
    using Block = typename BlockOf<type>::Block;
    constexpr PlaneBytes bytes = plane_bytes(type);
    for (int k = 0; k < bytes.low / 4; k++) {
        to.low[k] = block.word(offsetof(Block, qs) + 4 * size_t(k));
    }
    if constexpr (bytes.high > 0) to.high[0] = block.word(offsetof(Block, qh));
    if constexpr (bytes.scale == 1) {
        to.scale = block.byte(0);
    } else {
        to.scale = block.half(0);
        if constexpr (bytes.scale == 4) to.scale |= block.half(2) << 16;
    }
}

// Those of NVFP4 have 16 weights in 8 bytes: the low nibbles of both halves of group g, and the
// high ones.
template <typename From>
GGML_BOTH inline void take_halves(const From& block, int g, PackedGroup& to) {
    constexpr uint32_t low = 15 * kOnes, high = 240 * kOnes;
    for (int k = 0; k < 2; k++) {
        const size_t at = offsetof(BlockNVFP4, qs) + size_t(16 * g + 4 * k);
        const uint32_t first = block.word(at), second = block.word(at + 8);
        to.low[k] = (first & low) | (second & low) << 4;
        to.low[k + 2] = (first & high) >> 4 | (second & high);
    }
    to.scale = block.word(0) >> 16 * g & 0xffff;
}

// The codes of group g of a block of 256, four in a word (blocks.h, formats/parts.h).
template <DType type, typename From>
GGML_BOTH inline void take_codes(const From& block, int g, uint32_t (&codes)[8]) {
    using Block = typename BlockOf<type>::Block;
    const auto word = [&](size_t member, int i) { return block.word(member + 4 * size_t(i)); };
    const int h = g / 4, j = g % 4;  // halves of 128, as Q2_K, Q3_K and Q6_K have them
    for (int k = 0; k < 8; k++) {
        if constexpr (type == DType::IQ4_XS) {
            codes[k] = word(offsetof(Block, qs), 4 * g + k % 4) >> k / 4 * 4 & 15 * kOnes;
        } else if constexpr (type == DType::Q4_K || type == DType::Q5_K) {
            codes[k] = word(offsetof(Block, qs), g / 2 * 8 + k) >> g % 2 * 4 & 15 * kOnes;
        } else if constexpr (type == DType::Q6_K) {
            codes[k] =
                (word(offsetof(Block, ql), 16 * h + j % 2 * 8 + k) >> j / 2 * 4 & 15 * kOnes);
            codes[k] |= (word(offsetof(Block, qh), 8 * h + k) >> 2 * j & 3 * kOnes) << 4;
        } else {
            codes[k] = word(offsetof(Block, qs), 8 * h + k) >> 2 * j & 3 * kOnes;
        }
        if constexpr (type == DType::Q5_K) {
            codes[k] |= (word(offsetof(Block, qh), k) >> g & kOnes) << 4;
        } else if constexpr (type == DType::Q3_K) {
            codes[k] |= (word(offsetof(Block, hmask), k) >> g & kOnes) << 2;
        }
    }
}

// What scales group g of a block of 256: of both its halves, or its scale and min, or all of it.
template <DType type, typename From>
GGML_BOTH inline uint32_t take_scale(const From& block, int g) {
    using Block = typename BlockOf<type>::Block;
    if constexpr (type == DType::IQ4_XS) {
        const uint32_t low = block.word(offsetof(Block, scales_l)) >> 4 * g & 15;
        const uint32_t high = block.half(offsetof(Block, scales_h)) >> 2 * g & 3;
        return less_32(low | high << 4) & 255;
    } else if constexpr (type == DType::Q2_K || type == DType::Q6_K) {
        return block.word(offsetof(Block, scales) + size_t(g / 2 * 4)) >> g % 2 * 16 & 0xffff;
    } else {
        constexpr size_t scales = offsetof(Block, scales);
        const uint32_t third = block.word(scales + 8);
        if constexpr (type == DType::Q3_K) {
            const uint32_t low = block.word(scales + size_t(g / 2 % 2 * 4)) >> g % 2 * 16;
            const uint32_t high = third >> g % 2 * 16 >> g / 2 * 2;
            return less_32((low >> g / 4 * 4 & 0x0f0f) | (high & 0x0303) << 4);
        } else {
            const int at = g % 4 * 8;
            const uint32_t scale = block.word(scales) >> at, min = block.word(scales + 4) >> at;
            if (g < 4) return (scale & 63) | (min & 63) << 8;
            const uint32_t both = third >> at;
            return (both & 15) | (scale >> 2 & 48) | ((both >> 4 & 15) | (min >> 2 & 48)) << 8;
        }
    }
}

}  // namespace planes

// Group g of a block.
template <DType type, typename From>
GGML_BOTH inline PackedGroup pack_group(const From& block, int g) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    PackedGroup to = {};
    if constexpr (BlockOf<type>::weights == kQ) {
        planes::take_plain<type>(block, to);
    } else if constexpr (type == DType::NVFP4) {
        planes::take_halves(block, g, to);
    } else {
        using Block = typename BlockOf<type>::Block;
        uint32_t codes[8];
        planes::take_codes<type>(block, g, codes);
        for (int k = 0; k < bytes.low / 4; k++) {
            if constexpr (bytes.low == 8) {
                to.low[k] = planes::two_bits(codes, 0, k);
            } else {
                to.low[k] = (codes[k] & 15 * planes::kOnes) | (codes[k + 4] & 15 * planes::kOnes)
                                                                  << 4;
            }
        }
        if constexpr (bytes.high == 4) {
            constexpr int bit = bytes.low == 8 ? 2 : 4;
            // The product has the lowest bits of four bytes as its highest four.
            for (int k = 0; k < 8; k++) {
                to.high[0] |= (codes[k] >> bit & planes::kOnes) * 0x10204080 >> 28 << 4 * k;
            }
        } else if constexpr (bytes.high == 8) {
            for (int w = 0; w < 2; w++) to.high[w] = planes::two_bits(codes, 4, w);
        }
        to.scale = planes::take_scale<type>(block, g);
        to.super = block.half(offsetof(Block, d));
        if constexpr (bytes.super == 4) to.super |= block.half(offsetof(Block, dmin)) << 16;
    }
    return to;
}

}  // namespace ggml
