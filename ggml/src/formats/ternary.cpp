// Encoders of TQ1_0 and TQ2_0, with the bits of the public quantisers: d is the largest magnitude,
// and a weight becomes the nearest of -d, 0 and d.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml/blocks.h"
#include "quants.h"

namespace ggml {

namespace {

// Codes 0, 1 and 2 of the weights of a block; returns d.
float ternary_codes(const float* x, uint8_t* q) {
    float largest = 0;
    for (int i = 0; i < kQK; i++) largest = std::max(largest, std::fabs(x[i]));
    const float inverse = largest != 0 ? 1 / largest : 0;
    for (int i = 0; i < kQK; i++) {
        // Not finite if x is not, or if 1 / d overflows; then d is 0 as a half.
        const float value = std::round(x[i] * inverse);
        q[i] = std::isfinite(value) ? uint8_t(1 + int(std::clamp(value, -1.f, 1.f))) : uint8_t(1);
    }
    return largest;
}

// Bytes whose n digits of base 3 are codes, n_bytes apart; rounded up, so that a fraction that is
// not exact still has these digits.
template <int n, int n_bytes>
void put_digits(const uint8_t* q, uint8_t* bytes) {
    for (int i = 0; i < n_bytes; i++) {
        int all = 0;
        for (int d = 0; d < 5; d++) all = 3 * all + (d < n ? q[d * n_bytes + i] : 0);
        bytes[i] = uint8_t((all * 256 + 242) / 243);
    }
}

void put(const uint8_t* q, BlockTQ1_0& block) {
    put_digits<5, 32>(q, block.qs);
    put_digits<5, 16>(q + 160, block.qs + 32);
    put_digits<4, 4>(q + 240, block.qh);
}

void put(const uint8_t* q, BlockTQ2_0& block) {
    for (int i = 0; i < kQK; i++) {
        uint8_t& byte = block.qs[i / 128 * 32 + i % 32];
        byte = uint8_t(byte | q[i] << i / 32 % 4 * 2);
    }
}

template <typename Block>
void encode(const float* src, void* dst, int64_t n) {
    uint8_t* to = static_cast<uint8_t*>(dst);
    for (; n >= kQK; n -= kQK, src += kQK, to += sizeof(Block)) {
        uint8_t q[kQK];
        Block block = {};
        block.d = f32_to_f16(ternary_codes(src, q));
        put(q, block);
        std::memcpy(to, &block, sizeof(block));
    }
}

}  // namespace

void encode_tq1_0(const float* src, void* dst, int64_t n) {
    encode<BlockTQ1_0>(src, dst, n);
}

void encode_tq2_0(const float* src, void* dst, int64_t n) {
    encode<BlockTQ2_0>(src, dst, n);
}

}  // namespace ggml
