#include "cuda/planes.h"

#include <cstddef>
#include <cstring>

#include "ggml/blocks.h"
#include "ggml/device_ops.h"

namespace ggml {

namespace {

// Quants and scales of one group of 32 weights.
struct Group {
    uint8_t q[32];     // before the offset of the format: 0 to 2^bits - 1; int8 of Q8_0
    uint8_t scale[4];  // as many bytes as the plane has
};

template <typename Block>
void halves(const Block& b, Group& g) {
    std::memcpy(g.scale, &b.d, 2);
}
template <typename Block>
void halves_dm(const Block& b, Group& g) {
    std::memcpy(g.scale, &b.d, 2);
    std::memcpy(g.scale + 2, &b.m, 2);
}

// Eight bytes at a time, the first one lowest.
uint64_t eight(const uint8_t* bytes) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return word;
}
constexpr uint64_t kOnes = 0x0101010101010101;  // 1 in every byte

// Bit i of `bits` in byte i.
uint64_t spread(uint8_t bits) {
    const uint64_t apart = bits * kOnes & 0x8040201008040201;  // bit i of byte i
    return (apart + 0x7f * kOnes) >> 7 & kOnes;
}
// Bit i: the lowest bit of byte i. The other bits must be 0.
uint8_t gathered(uint64_t bytes) {
    return uint8_t(bytes * 0x0102040810204080 >> 56);
}

void nibbles(const uint8_t* qs, uint8_t* q) {
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
}

// The group of a format with blocks of 32.
Group read(const BlockQ4_0& b, int) {
    Group g;
    nibbles(b.qs, g.q);
    halves(b, g);
    return g;
}
Group read(const BlockIQ4_NL& b, int) {
    Group g;
    nibbles(b.qs, g.q);
    halves(b, g);
    return g;
}
Group read(const BlockQ4_1& b, int) {
    Group g;
    nibbles(b.qs, g.q);
    halves_dm(b, g);
    return g;
}
template <typename Block>
Group five_bits(const Block& b) {
    Group g;
    nibbles(b.qs, g.q);
    for (int i = 0; i < 4; i++) {
        const uint64_t q = eight(g.q + 8 * i) | spread(b.qh[i]) << 4;
        std::memcpy(g.q + 8 * i, &q, 8);
    }
    return g;
}
Group read(const BlockQ5_0& b, int) {
    Group g = five_bits(b);
    halves(b, g);
    return g;
}
Group read(const BlockQ5_1& b, int) {
    Group g = five_bits(b);
    halves_dm(b, g);
    return g;
}
Group read(const BlockQ8_0& b, int) {
    Group g;
    std::memcpy(g.q, b.qs, 32);
    halves(b, g);
    return g;
}

// Group `at` (0 to 7) of a format with blocks of 256.
Group read(const BlockQ2_K& b, int at) {
    Group g;
    const int shift = 2 * (at % 4);
    for (int i = 0; i < 32; i++) g.q[i] = b.qs[at / 4 * 32 + i] >> shift & 3;
    std::memcpy(g.scale, b.scales + 2 * at, 2);
    return g;
}
Group read(const BlockQ3_K& b, int at) {
    Group g;
    const int shift = 2 * (at % 4);
    for (int i = 0; i < 32; i++) {
        g.q[i] = uint8_t((b.qs[at / 4 * 32 + i] >> shift & 3) | (b.hmask[i] >> at & 1) << 2);
    }
    for (int half = 0; half < 2; half++) {
        const int s = 2 * at + half;  // of 16: the low four bits, then the upper two
        const int low = s < 8 ? b.scales[s] & 15 : b.scales[s - 8] >> 4;
        const int high = b.scales[8 + s % 4] >> 2 * (s / 4) & 3;
        g.scale[half] = uint8_t(int8_t((low | high << 4) - 32));
    }
    return g;
}
// Scale and min of Q4_K and Q5_K.
void six_bits(const uint8_t* scales, int at, uint8_t* out) {
    if (at < 4) {
        out[0] = scales[at] & 63;
        out[1] = scales[at + 4] & 63;
    } else {
        out[0] = uint8_t((scales[at + 4] & 15) | scales[at - 4] >> 6 << 4);
        out[1] = uint8_t(scales[at + 4] >> 4 | scales[at] >> 6 << 4);
    }
}
Group read(const BlockQ4_K& b, int at) {
    Group g;
    for (int i = 0; i < 32; i++) g.q[i] = b.qs[at / 2 * 32 + i] >> 4 * (at % 2) & 15;
    six_bits(b.scales, at, g.scale);
    return g;
}
Group read(const BlockQ5_K& b, int at) {
    Group g;
    for (int i = 0; i < 32; i++) {
        g.q[i] = uint8_t((b.qs[at / 2 * 32 + i] >> 4 * (at % 2) & 15) | (b.qh[i] >> at & 1) << 4);
    }
    six_bits(b.scales, at, g.scale);
    return g;
}
Group read(const BlockQ6_K& b, int at) {
    Group g;
    const int h = at / 4, j = at % 4;
    for (int i = 0; i < 32; i++) {
        const int low = b.ql[64 * h + 32 * (j % 2) + i] >> (j < 2 ? 0 : 4) & 15;
        g.q[i] = uint8_t(low | (b.qh[32 * h + i] >> 2 * j & 3) << 4);
    }
    std::memcpy(g.scale, b.scales + 2 * at, 2);
    return g;
}
Group read(const BlockIQ4_XS& b, int at) {
    Group g;
    nibbles(b.qs + 16 * at, g.q);
    const int low = b.scales_l[at / 2] >> 4 * (at % 2) & 15, high = b.scales_h >> 2 * at & 3;
    g.scale[0] = uint8_t(int8_t((low | high << 4) - 32));
    return g;
}

void pack_two_bits(const uint8_t* q, int shift, uint8_t* out) {
    uint64_t bits = 0;
    for (int s = 0; s < 4; s++) bits |= (eight(q + 8 * s) >> shift & 3 * kOnes) << 2 * s;
    std::memcpy(out, &bits, 8);
}

template <typename Block>
void pack(const uint8_t* row, int64_t cols, PlaneBytes bytes, uint8_t* out) {
    const auto* blocks = reinterpret_cast<const Block*>(row);
    constexpr int64_t weights = sizeof(Block) <= sizeof(BlockQ8_0) ? kQ : kQK;
    constexpr int64_t groups = weights / kQ;  // of a block
    const PlaneOffsets at(bytes, cols);
    std::memset(out, 0, size_t(at.end));
    for (int64_t i = 0; i < cols / kQ; i++) {
        const Block& block = blocks[i / groups];
        const Group group = read(block, int(i % groups));
        uint8_t* low = out + i * bytes.low;
        switch (bytes.low) {
            case 8:
                pack_two_bits(group.q, 0, low);
                break;
            case 16:
                for (int j = 0; j < 16; j++) {
                    low[j] = uint8_t((group.q[j] & 15) | (group.q[j + 16] & 15) << 4);
                }
                break;
            default:
                std::memcpy(low, group.q, kQ);
        }
        uint8_t* high = out + at.high + i * bytes.high;
        if (bytes.high == 4) {
            const int bit = bytes.low == 8 ? 2 : 4;
            for (int i = 0; i < 4; i++) {
                high[i] = gathered(eight(group.q + 8 * i) >> bit & kOnes);
            }
        } else if (bytes.high == 8) {
            pack_two_bits(group.q, 4, high);
        }
        std::memcpy(out + at.scale + i * bytes.scale, group.scale, size_t(bytes.scale));
        if (bytes.super && i % groups == 0) {
            // d, and dmin behind it where there is one.
            std::memcpy(out + at.super + i / groups * bytes.super,
                        reinterpret_cast<const uint8_t*>(&block) + offsetof(Block, d),
                        size_t(bytes.super));
        }
    }
}

}  // namespace

int64_t device_row_bytes(DType type, int64_t cols) {
    if (!info(type).is_quantised()) return PlaneOffsets::padded(info(type).size(cols));
    return PlaneOffsets(plane_bytes(type), cols).end;
}

bool has_device_rows(DType type, int64_t cols) {
    const DTypeInfo& format = info(type);
    return format.is_float() && cols % kQ == 0 && cols % format.block == 0;
}

void pack_device_row(DType type, const uint8_t* row, int64_t cols, uint8_t* out) {
    const PlaneBytes bytes = plane_bytes(type);
    switch (type) {
        case DType::Q4_0:
            return pack<BlockQ4_0>(row, cols, bytes, out);
        case DType::Q4_1:
            return pack<BlockQ4_1>(row, cols, bytes, out);
        case DType::Q5_0:
            return pack<BlockQ5_0>(row, cols, bytes, out);
        case DType::Q5_1:
            return pack<BlockQ5_1>(row, cols, bytes, out);
        case DType::Q8_0:
            return pack<BlockQ8_0>(row, cols, bytes, out);
        case DType::Q2_K:
            return pack<BlockQ2_K>(row, cols, bytes, out);
        case DType::Q3_K:
            return pack<BlockQ3_K>(row, cols, bytes, out);
        case DType::Q4_K:
            return pack<BlockQ4_K>(row, cols, bytes, out);
        case DType::Q5_K:
            return pack<BlockQ5_K>(row, cols, bytes, out);
        case DType::Q6_K:
            return pack<BlockQ6_K>(row, cols, bytes, out);
        case DType::IQ4_NL:
            return pack<BlockIQ4_NL>(row, cols, bytes, out);
        case DType::IQ4_XS:
            return pack<BlockIQ4_XS>(row, cols, bytes, out);
        default:
            std::memcpy(out, row, size_t(info(type).size(cols)));  // cols % 32 == 0: no padding
    }
}

}  // namespace ggml
