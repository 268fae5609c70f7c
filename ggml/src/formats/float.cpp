// Codecs of F32, F16 and BF16. Halves are read and written by memcpy, because a row may start at
// any address.
#include <cstring>

#include "ggml/blocks.h"
#include "quants.h"

namespace ggml {

void decode_f32(const void* src, float* dst, int64_t n) {
    if (n > 0) std::memcpy(dst, src, size_t(n) * sizeof(float));
}

void encode_f32(const float* src, void* dst, int64_t n) {
    if (n > 0) std::memcpy(dst, src, size_t(n) * sizeof(float));
}

namespace {

template <float (*convert)(uint16_t)>
void decode_half(const void* src, float* dst, int64_t n) {
    const uint8_t* p = static_cast<const uint8_t*>(src);
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        std::memcpy(&h, p + 2 * i, 2);
        dst[i] = convert(h);
    }
}

template <uint16_t (*convert)(float)>
void encode_half(const float* src, void* dst, int64_t n) {
    uint8_t* p = static_cast<uint8_t*>(dst);
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h = convert(src[i]);
        std::memcpy(p + 2 * i, &h, 2);
    }
}

}  // namespace

void decode_f16(const void* src, float* dst, int64_t n) {
    decode_half<f16_to_f32>(src, dst, n);
}
void encode_f16(const float* src, void* dst, int64_t n) {
    encode_half<f32_to_f16>(src, dst, n);
}
void decode_bf16(const void* src, float* dst, int64_t n) {
    decode_half<bf16_to_f32>(src, dst, n);
}
void encode_bf16(const float* src, void* dst, int64_t n) {
    encode_half<f32_to_bf16>(src, dst, n);
}

}  // namespace ggml
