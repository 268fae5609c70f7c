// A block as in a file to its places in the planes of a row (planes.h): for the CPU, which packs
// whole rows, and for a device, which unfolds strips (ops/unfold.cu).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/planes.h"
#include "formats/parts.h"

namespace ggml {

// Eight bytes at a time, the first one lowest.
GGML_BOTH inline uint64_t eight(const uint8_t* bytes) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return word;
}
constexpr uint64_t kOnes = 0x0101010101010101;  // 1 in every byte

// Bit i: the lowest bit of byte i. The other bits must be 0.
GGML_BOTH inline uint8_t gathered(uint64_t bytes) {
    return uint8_t(bytes * 0x0102040810204080 >> 56);
}

GGML_BOTH inline void pack_two_bits(const uint8_t* q, int shift, uint8_t* out) {
    uint64_t bits = 0;
    for (int s = 0; s < 4; s++) bits |= (eight(q + 8 * s) >> shift & 3 * kOnes) << 2 * s;
    std::memcpy(out, &bits, 8);
}

// Block i of a row whose planes begin at `row`. Put::put<n>(to, from) stores n bytes, 1 to 16 and a
// power of two, at a multiple of n behind `row`.
template <DType type, typename Put, typename Block>
GGML_BOTH inline void pack_block(const Block& block, int64_t i, const PlaneOffsets& at,
                                 uint8_t* row) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    const auto* stored = reinterpret_cast<const uint8_t*>(&block);
    if constexpr (BlockTraits<Block>::size == kQ) {
        // The members are the planes' own.
        const auto* qs = reinterpret_cast<const uint8_t*>(block.qs);
        for (int j = 0; j < bytes.low; j += 16) {
            Put::template put<16>(row + i * bytes.low + j, qs + j);
        }
        if constexpr (bytes.high > 0) {
            Put::template put<bytes.high>(row + at.high + i * bytes.high, block.qh);
        }
        // d, and m behind it; or e.
        Put::template put<bytes.scale>(row + at.scale + i * bytes.scale, stored);
    } else {
        constexpr int64_t groups = kQK / kQ;
        uint8_t* low = row + i * groups * bytes.low;
        uint8_t* high = row + at.high + i * groups * bytes.high;
        uint8_t* scale = row + at.scale + i * groups * bytes.scale;
        alignas(8) uint8_t q[kQK];
        int16_t scales_16[kQK / 16], mins_16[kQK / 16] = {};
        codes(block, q);
        scales(block, scales_16, mins_16);
        for (int g = 0; g < groups; g++) {
            const uint8_t* group = q + g * kQ;
            uint8_t some[16];
            if constexpr (bytes.low == 8) {
                pack_two_bits(group, 0, some);
            } else {
                for (int j = 0; j < 16; j++) {
                    some[j] = uint8_t((group[j] & 15) | (group[j + 16] & 15) << 4);
                }
            }
            Put::template put<bytes.low>(low, some);
            if constexpr (bytes.high == 4) {
                constexpr int bit = bytes.low == 8 ? 2 : 4;
                for (int j = 0; j < 4; j++) some[j] = gathered(eight(group + 8 * j) >> bit & kOnes);
            } else if constexpr (bytes.high == 8) {
                pack_two_bits(group, 4, some);
            }
            if constexpr (bytes.high > 0) Put::template put<bytes.high>(high, some);
            for (int j = 0; j < bytes.scale; j++) {
                // Of both halves of the group, or its scale and min; or all of it in two bytes.
                const int h = 2 * g + j;
                const bool is_min = j && BlockTraits<Block>::has_min;
                some[j] = uint8_t(type == DType::Q2_K ? scales_16[h] | mins_16[h] << 4
                                  : is_min            ? mins_16[h]
                                                      : scales_16[h]);
            }
            Put::template put<bytes.scale>(scale, some);
            low += bytes.low, high += bytes.high, scale += bytes.scale;
        }
        // d, and dmin behind it where there is one.
        Put::template put<bytes.super>(row + at.super + i * bytes.super,
                                       stored + offsetof(Block, d));
    }
}

}  // namespace ggml
