// Encoders of Q4_1, Q5_0 and Q5_1, with the bits of the public quantisers. Products and sums are
// rounded separately, see q4_0.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml/blocks.h"
#include "quants.h"
#include "search.h"

namespace ggml {

namespace {

// x is not finite if the input is not, or if the scale is so small that its inverse overflows.
uint8_t code(float x, float largest) {
    return std::isfinite(x) ? uint8_t(std::clamp(x, 0.f, largest)) : uint8_t(0);
}

void put_nibbles(const uint8_t* q, uint8_t* qs) {
    for (int i = 0; i < kQ / 2; i++) qs[i] = uint8_t((q[i] & 15) | q[i + kQ / 2] << 4);
}

void put_fifth_bits(const uint8_t* q, uint8_t* qh) {
    for (int i = 0; i < kQ / 8; i++) qh[i] = 0;
    for (int i = 0; i < kQ; i++) qh[i / 8] = uint8_t(qh[i / 8] | q[i] >> 4 << i % 8);
}

// d and m follow from the smallest and largest weight, which become the first and the last code.
template <typename Block>
void encode_range(const float* x, float steps, Block& block, uint8_t* q) {
    float low = x[0], high = x[0];
    for (int i = 1; i < kQ; i++) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
    }
    const float d = (high - low) / steps, inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < kQ; i++) {
        const float product = (x[i] - low) * inverse;
        q[i] = code(product + 0.5f, steps);
    }
    block.d = f32_to_f16(d);
    block.m = f32_to_f16(low);
    put_nibbles(q, block.qs);
}

// The same by a search. Halves of d and m are known before the codes are chosen.
template <typename Block>
void search_range(const float* x, const float* importance, float steps, Block& block, uint8_t* q) {
    float w[kQ], d, min;
    error_weights(x, importance, kQ, 1, w);
    search_group(x, w, kQ, steps, false, &d, &min);
    block.d = f32_to_f16(d);
    block.m = f32_to_f16(-min);
    d = f16_to_f32(block.d);
    const float m = f16_to_f32(block.m), inverse = d > 0 ? 1 / d : 0;
    for (int i = 0; i < kQ; i++) q[i] = uint8_t(nearest((x[i] - m) * inverse, 0, steps));
    put_nibbles(q, block.qs);
}

// Calls encode(x, importance, block, codes) for each block.
template <typename Block, typename F>
void each_block(const float* src, const float* importance, void* dst, int64_t n, const F& encode) {
    for (int64_t b = 0; b < n / kQ; b++) {
        Block block;
        uint8_t q[kQ];
        encode(src + b * kQ, importance + b * kQ, block, q);
        std::memcpy(static_cast<uint8_t*>(dst) + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

}  // namespace

void encode_q4_1(const float* src, void* dst, int64_t n) {
    for (int64_t b = 0; b < n / kQ; b++) {
        BlockQ4_1 block;
        uint8_t q[kQ];
        encode_range(src + b * kQ, 15, block, q);
        std::memcpy(static_cast<uint8_t*>(dst) + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

void encode_q5_1(const float* src, void* dst, int64_t n) {
    for (int64_t b = 0; b < n / kQ; b++) {
        BlockQ5_1 block;
        uint8_t q[kQ];
        encode_range(src + b * kQ, 31, block, q);
        put_fifth_bits(q, block.qh);
        std::memcpy(static_cast<uint8_t*>(dst) + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

// As in Q4_0, the weight of the largest magnitude gets q = 0.
void encode_q5_0(const float* src, void* dst, int64_t n) {
    for (int64_t b = 0; b < n / kQ; b++) {
        const float* x = src + b * kQ;
        float extreme = 0;
        for (int i = 0; i < kQ; i++)
            if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
        const float d = extreme / -16, inverse = d != 0 ? 1 / d : 0;
        BlockQ5_0 block;
        uint8_t q[kQ];
        for (int i = 0; i < kQ; i++) {
            const float product = x[i] * inverse;
            q[i] = code(product + 16.5f, 31);
        }
        block.d = f32_to_f16(d);
        put_nibbles(q, block.qs);
        put_fifth_bits(q, block.qh);
        std::memcpy(static_cast<uint8_t*>(dst) + b * int64_t(sizeof(block)), &block, sizeof(block));
    }
}

void weigh_q4_1(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ4_1>(src, importance, dst, n,
                          [](const float* x, const float* w, BlockQ4_1& block, uint8_t* q) {
                              search_range(x, w, 15, block, q);
                          });
}

void weigh_q5_1(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ5_1>(src, importance, dst, n,
                          [](const float* x, const float* w, BlockQ5_1& block, uint8_t* q) {
                              search_range(x, w, 31, block, q);
                              put_fifth_bits(q, block.qh);
                          });
}

void weigh_q5_0(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ5_0>(src, importance, dst, n,
                          [](const float* x, const float* w, BlockQ5_0& block, uint8_t* q) {
                              int8_t centred[kQ];
                              block.d = search_codes(Uniform{16}, x, w, 0.1f, centred);
                              for (int i = 0; i < kQ; i++) q[i] = uint8_t(centred[i] + 16);
                              put_nibbles(q, block.qs);
                              put_fifth_bits(q, block.qh);
                          });
}

}  // namespace ggml
