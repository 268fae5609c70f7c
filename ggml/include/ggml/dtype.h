// Tensor element types. A table has one row per format.
#pragma once

#include <cstdint>
#include <string_view>

namespace ggml {

// The ids are those of GGUF files (ggml_type in ggml.h of llama.cpp).
enum class DType : uint32_t {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I32 = 26,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
};

struct DTypeInfo {
    DType type;
    const char* name;
    int64_t block;  // elements in a block
    int64_t bytes;  // bytes of a block
    // Reference codecs for n elements; n must be a multiple of block. Null for integer types;
    // IQ1, IQ2, IQ3 and NVFP4 have no encoder.
    void (*decode)(const void* src, float* dst, int64_t n);
    void (*encode)(const float* src, void* dst, int64_t n);
    // The same, with weights of the squared errors: importance, [n], finite and not negative. Null
    // if they would change nothing.
    void (*encode_weighted)(const float* src, const float* importance, void* dst,
                            int64_t n) = nullptr;

    bool is_float() const { return decode != nullptr; }
    bool is_quantised() const { return block > 1; }
    // Bytes of n elements; n must be a multiple of block.
    int64_t size(int64_t n) const { return n / block * bytes; }
};

// Null if the engine does not know the id or name.
const DTypeInfo* find_dtype(uint32_t id);
const DTypeInfo* find_dtype(std::string_view name);  // "Q4_0", in any case

const DTypeInfo& info(DType type);  // every enumerator has a row

}  // namespace ggml
