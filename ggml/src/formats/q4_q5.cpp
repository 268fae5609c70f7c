// Encoders of Q4_0, Q4_1, Q5_0 and Q5_1, with the bits of the public quantisers. Products and sums
// are rounded separately, as there. An FMA would move values that are on the edge between two
// codes; the build forbids that contraction everywhere.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ggml/blocks.h"
#include "quants.h"
#include "search.h"

namespace ggml {

namespace {

template <typename Block>
constexpr bool kFive = std::is_same_v<Block, BlockQ5_0> || std::is_same_v<Block, BlockQ5_1>;
template <typename Block>
constexpr float kTop = kFive<Block> ? 31 : 15;  // the last code

// x is not finite if the input is not, or if the scale is so small that its inverse overflows; then
// the scale is 0 as a half.
uint8_t code(float x, float top) {
    return std::isfinite(x) ? uint8_t(std::clamp(x, 0.f, top)) : uint8_t(0);
}

template <typename Block>
void put(const uint8_t* q, Block& block) {
    for (int i = 0; i < kQ / 2; i++) block.qs[i] = uint8_t((q[i] & 15) | q[i + kQ / 2] << 4);
    if constexpr (kFive<Block>) {
        for (int i = 0; i < kQ; i++) {
            block.qh[i / 8] = uint8_t(block.qh[i / 8] | q[i] >> 4 << i % 8);
        }
    }
}

}  // namespace

template <typename Block>
void encode_plain(const float* src, void* dst, int64_t n) {
    each_block<Block>(src, nullptr, dst, n, [](const float* x, const float*, Block& block) {
        uint8_t q[kQ];
        if constexpr (BlockTraits<Block>::has_min) {
            // d and m follow from the smallest and largest weight, which become the first and the
            // last code.
            float low = x[0], high = x[0];
            for (int i = 1; i < kQ; i++) {
                low = std::min(low, x[i]);
                high = std::max(high, x[i]);
            }
            const float d = (high - low) / kTop<Block>, inverse = d != 0 ? 1 / d : 0;
            for (int i = 0; i < kQ; i++) {
                const float product = (x[i] - low) * inverse;
                q[i] = code(product + 0.5f, kTop<Block>);
            }
            block.d = f32_to_f16(d);
            block.m = f32_to_f16(low);
        } else {
            // The weight w of the largest magnitude gets q = 0, with d = -w / bias. A weight of the
            // same magnitude and the opposite sign would need the code after the last one, which it
            // gets.
            constexpr float bias = BlockTraits<Block>::bias;
            float most = 0;
            for (int i = 0; i < kQ; i++) most = std::fabs(x[i]) > std::fabs(most) ? x[i] : most;
            const float d = most / -bias, inverse = d != 0 ? 1 / d : 0;
            for (int i = 0; i < kQ; i++) {
                const float product = x[i] * inverse;
                q[i] = code(product + (bias + 0.5f), kTop<Block>);
            }
            block.d = f32_to_f16(d);
        }
        put(q, block);
    });
}

// The same by a search. Halves of d and m are known before the codes are chosen.
template <typename Block>
void weigh_plain(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<Block>(src, importance, dst, n,
                      [](const float* x, const float* columns, Block& block) {
                          uint8_t q[kQ];
                          if constexpr (BlockTraits<Block>::has_min) {
                              float w[kQ], d, min;
                              error_weights(x, columns, kQ, 1, w);
                              search_group(x, w, kQ, kTop<Block>, false, &d, &min);
                              block.d = f32_to_f16(d);
                              block.m = f32_to_f16(-min);
                              d = f16_to_f32(block.d);
                              const float m = f16_to_f32(block.m), inverse = d > 0 ? 1 / d : 0;
                              for (int i = 0; i < kQ; i++) {
                                  q[i] = uint8_t(nearest((x[i] - m) * inverse, 0, kTop<Block>));
                              }
                          } else {
                              constexpr int bias = BlockTraits<Block>::bias;
                              int8_t centred[kQ];
                              block.d = search_codes(Uniform{bias}, x, columns, 0.1f, centred);
                              for (int i = 0; i < kQ; i++) q[i] = uint8_t(centred[i] + bias);
                          }
                          put(q, block);
                      });
}

#define ENCODERS(Block)                                              \
    template void encode_plain<Block>(const float*, void*, int64_t); \
    template void weigh_plain<Block>(const float*, const float*, void*, int64_t);
ENCODERS(BlockQ4_0)
ENCODERS(BlockQ4_1)
ENCODERS(BlockQ5_0)
ENCODERS(BlockQ5_1)

}  // namespace ggml
