// Blocks of any format, for tests: of values where the format has an encoder, else of random bytes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "ggml/blocks.h"
#include "ggml/dtype.h"

namespace ggml {

// Sets all scales of a block.
inline void set_scales(DType type, uint8_t* block, f16_t d) {
    if (type == DType::IQ1_M) {  // four bits in each word of its scales
        for (int i = 0; i < 4; i++) {
            uint8_t& high = block[offsetof(BlockIQ1_M, scales) + size_t(2 * i + 1)];
            high = uint8_t((high & 15) | (d >> 4 * i & 15) << 4);
        }
        return;
    }
    if (type == DType::MXFP4) {  // a power of two, of half the weights: the exponent of d
        block[0] = uint8_t((d >> 10 & 31) - 15 + 128);
        return;
    }
    if (type == DType::NVFP4) {  // different ones; the first is 8 d, as near as four bits come
        for (int i = 0; i < 4; i++) {
            const int e = (d >> 7 & 255) - 8 * (15 - 7 - 4) - 3 * i;
            block[i] = uint8_t(e < 0 ? 0 : e > 126 ? 126 : e);
        }
        return;
    }
    std::vector<size_t> at = {0};
    if (type == DType::Q4_1) at = {0, offsetof(BlockQ4_1, m)};
    if (type == DType::Q5_1) at = {0, offsetof(BlockQ5_1, m)};
    if (type == DType::Q2_K) at = {offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin)};
    if (type == DType::Q3_K) at = {offsetof(BlockQ3_K, d)};
    if (type == DType::Q4_K) at = {0, offsetof(BlockQ4_K, dmin)};
    if (type == DType::Q5_K) at = {0, offsetof(BlockQ5_K, dmin)};
    if (type == DType::Q6_K) at = {offsetof(BlockQ6_K, d)};
    if (type == DType::TQ1_0) at = {offsetof(BlockTQ1_0, d)};
    if (type == DType::TQ2_0) at = {offsetof(BlockTQ2_0, d)};
    for (size_t offset : at) std::memcpy(block + offset, &d, sizeof(d));
}

// Blocks of these values, or random ones of their size at most (a weight of IQ3_S is about 128 d):
// the same for the same values.
inline std::vector<uint8_t> random_blocks(DType type, const std::vector<float>& values) {
    const DTypeInfo& format = info(type);
    const auto n = int64_t(values.size());
    std::vector<uint8_t> bytes(size_t(format.size(n)));
    if (format.encode) {
        format.encode(values.data(), bytes.data(), n);
        return bytes;
    }
    std::mt19937 random(values.empty() ? 5 : float_to_bits(values.front()));
    for (uint8_t& byte : bytes) byte = uint8_t(random());
    for (int64_t b = 0; b < n / format.block; b++) {
        const float size = std::fabs(values[size_t(b * format.block)]);
        set_scales(type, &bytes[size_t(b * format.bytes)], f32_to_f16((size + 0.1f) / 128));
    }
    return bytes;
}

}  // namespace ggml
