// Reference codecs of the element types. Every kernel is tested against them.
//
// For finite inputs they give the bits of the public reference quantisers, where such exist. n is a
// multiple of the block. Infinities and NaN in a quantised block give unspecified values, but never
// undefined behaviour.
#pragma once

#include <cstdint>

namespace ggml {

void decode_f32(const void* src, float* dst, int64_t n);
void encode_f32(const float* src, void* dst, int64_t n);
void decode_f16(const void* src, float* dst, int64_t n);
void encode_f16(const float* src, void* dst, int64_t n);
void decode_bf16(const void* src, float* dst, int64_t n);
void encode_bf16(const float* src, void* dst, int64_t n);

// Decoders of block formats are decode<Block> in parts.h.
void encode_q8_0(const float* src, void* dst, int64_t n);
void encode_mxfp4(const float* src, void* dst, int64_t n);
void encode_tq1_0(const float* src, void* dst, int64_t n);
void encode_tq2_0(const float* src, void* dst, int64_t n);
// Q4_0, Q4_1, Q5_0 and Q5_1; and by the searches of the formats below.
template <typename Block>
void encode_plain(const float* src, void* dst, int64_t n);
template <typename Block>
void weigh_plain(const float* src, const float* importance, void* dst, int64_t n);
// The public Python package has no encoders for these formats; these are our own searches.
// importance, [n]: weights of the squared errors, or null.
void encode_q2_k(const float* src, const float* importance, void* dst, int64_t n);
void encode_q3_k(const float* src, const float* importance, void* dst, int64_t n);
void encode_q4_k(const float* src, const float* importance, void* dst, int64_t n);
void encode_q5_k(const float* src, const float* importance, void* dst, int64_t n);
void encode_q6_k(const float* src, const float* importance, void* dst, int64_t n);
void encode_iq4_nl(const float* src, const float* importance, void* dst, int64_t n);
void encode_iq4_xs(const float* src, const float* importance, void* dst, int64_t n);

}  // namespace ggml
