// Reference codecs of the element types: the specification that every kernel is tested against.
//
// They give the bits of the public reference quantisers for all finite inputs, where there are any.
// n is a multiple of the block. Infinities and NaN in a quantised block give some value, never
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

// Decoders of block formats are decode<Block> of parts.h.
void encode_q8_0(const float* src, void* dst, int64_t n);
void encode_q4_0(const float* src, void* dst, int64_t n);
void encode_q4_1(const float* src, void* dst, int64_t n);
void encode_q5_0(const float* src, void* dst, int64_t n);
void encode_q5_1(const float* src, void* dst, int64_t n);
// Formats of which the public Python package has no encoder: searches of our own.
void encode_q2_k(const float* src, void* dst, int64_t n);
void encode_q3_k(const float* src, void* dst, int64_t n);
void encode_q4_k(const float* src, void* dst, int64_t n);
void encode_q5_k(const float* src, void* dst, int64_t n);
void encode_q6_k(const float* src, void* dst, int64_t n);
void encode_iq4_nl(const float* src, void* dst, int64_t n);
void encode_iq4_xs(const float* src, void* dst, int64_t n);

}  // namespace ggml
