#include "cuda/planes.h"

#include <cstddef>
#include <cstring>

#include "formats/parts.h"
#include "ggml/device_ops.h"

namespace ggml {

namespace {

// Eight bytes at a time, the first one lowest.
uint64_t eight(const uint8_t* bytes) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return word;
}
constexpr uint64_t kOnes = 0x0101010101010101;  // 1 in every byte

// Bit i: the lowest bit of byte i. The other bits must be 0.
uint8_t gathered(uint64_t bytes) {
    return uint8_t(bytes * 0x0102040810204080 >> 56);
}

void pack_two_bits(const uint8_t* q, int shift, uint8_t* out) {
    uint64_t bits = 0;
    for (int s = 0; s < 4; s++) bits |= (eight(q + 8 * s) >> shift & 3 * kOnes) << 2 * s;
    std::memcpy(out, &bits, 8);
}

// The members of a block of 32 are the planes' own.
template <DType type, typename Block>
void pack_plain(const Block* block, int64_t cols, uint8_t* out) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    const PlaneOffsets at(bytes, cols);
    std::memset(out, 0, size_t(at.end));
    for (int64_t i = 0; i < cols / kQ; i++, block++) {
        std::memcpy(out + i * bytes.low, block->qs, sizeof(block->qs));
        if constexpr (bytes.high)
            std::memcpy(out + at.high + i * bytes.high, block->qh, bytes.high);
        // d, and m behind it; or e.
        std::memcpy(out + at.scale + i * bytes.scale, block, bytes.scale);
    }
}

template <DType type, typename Block>
void pack_k(const Block* block, int64_t cols, uint8_t* out) {
    constexpr PlaneBytes bytes = plane_bytes(type);
    const PlaneOffsets at(bytes, cols);
    std::memset(out, 0, size_t(at.end));
    uint8_t *low = out, *high = out + at.high, *scale = out + at.scale, *super = out + at.super;
    for (int64_t c = 0; c < cols; c += kQK, block++) {
        uint8_t q[kQK];
        int16_t scales_16[kQK / 16], mins_16[kQK / 16] = {};
        codes(*block, q);
        scales(*block, scales_16, mins_16);
        for (const uint8_t* group = q; group < q + kQK; group += kQ) {
            if constexpr (bytes.low == 8) {
                pack_two_bits(group, 0, low);
            } else {
                for (int j = 0; j < 16; j++) {
                    low[j] = uint8_t((group[j] & 15) | (group[j + 16] & 15) << 4);
                }
            }
            if constexpr (bytes.high == 4) {
                constexpr int bit = bytes.low == 8 ? 2 : 4;
                for (int i = 0; i < 4; i++) high[i] = gathered(eight(group + 8 * i) >> bit & kOnes);
            } else if constexpr (bytes.high == 8) {
                pack_two_bits(group, 4, high);
            }
            for (int i = 0; i < bytes.scale; i++) {
                // Of both halves of the group, or its scale and min; or all of it in two bytes.
                const int64_t g = (group - q) / 16 + i;
                const bool is_min = i && BlockTraits<Block>::has_min;
                scale[i] = uint8_t(type == DType::Q2_K ? scales_16[g] | mins_16[g] << 4
                                   : is_min            ? mins_16[g]
                                                       : scales_16[g]);
            }
            low += bytes.low, high += bytes.high, scale += bytes.scale;
        }
        // d, and dmin behind it where there is one.
        std::memcpy(super, reinterpret_cast<const uint8_t*>(block) + offsetof(Block, d),
                    bytes.super);
        super += bytes.super;
    }
}

}  // namespace

int64_t device_row_bytes(DType type, int64_t cols) {
    if (!info(type).is_quantised()) return PlaneOffsets::padded(info(type).size(cols));
    return PlaneOffsets(plane_bytes(type), cols).end;
}

bool has_device_rows(DType type, int64_t cols) {
    const DTypeInfo& format = info(type);
    const bool known = format.is_quantised() ? plane_bytes(type).low > 0 : format.is_float();
    return known && cols % kQ == 0 && cols % format.block == 0;
}

void pack_device_row(DType type, const uint8_t* row, int64_t cols, uint8_t* out) {
#define PACK_PLAIN(name, ...) \
    if (type == DType::name)  \
        return pack_plain<DType::name>(reinterpret_cast<const Block##name*>(row), cols, out);
    GGML_PLAIN_FORMATS(PACK_PLAIN)
#define PACK_K(name, ...)    \
    if (type == DType::name) \
        return pack_k<DType::name>(reinterpret_cast<const Block##name*>(row), cols, out);
    GGML_K_FORMATS(PACK_K)
    std::memcpy(out, row, size_t(info(type).size(cols)));  // cols % 32 == 0: no padding
}

}  // namespace ggml
