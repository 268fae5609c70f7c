#include "ggml/dtype.h"

#include "formats/parts.h"
#include "formats/quants.h"
#include "ggml/blocks.h"
#include "ggml/status.h"

namespace ggml {

namespace {

template <void (*weighted)(const float*, const float*, void*, int64_t)>
void plain(const float* src, void* dst, int64_t n) {
    weighted(src, nullptr, dst, n);
}

constexpr DTypeInfo kTypes[] = {
    {DType::F32, "F32", 1, 4, decode_f32, encode_f32},
    {DType::F16, "F16", 1, 2, decode_f16, encode_f16},
    {DType::Q4_0, "Q4_0", kQ, sizeof(BlockQ4_0), decode<BlockQ4_0>, encode_q4_0, weigh_q4_0},
    {DType::Q4_1, "Q4_1", kQ, sizeof(BlockQ4_1), decode<BlockQ4_1>, encode_q4_1, weigh_q4_1},
    {DType::Q5_0, "Q5_0", kQ, sizeof(BlockQ5_0), decode<BlockQ5_0>, encode_q5_0, weigh_q5_0},
    {DType::Q5_1, "Q5_1", kQ, sizeof(BlockQ5_1), decode<BlockQ5_1>, encode_q5_1, weigh_q5_1},
    {DType::Q8_0, "Q8_0", kQ, sizeof(BlockQ8_0), decode<BlockQ8_0>, encode_q8_0},
    {DType::Q2_K, "Q2_K", kQK, sizeof(BlockQ2_K), decode<BlockQ2_K>, plain<encode_q2_k>,
     encode_q2_k},
    {DType::Q3_K, "Q3_K", kQK, sizeof(BlockQ3_K), decode<BlockQ3_K>, plain<encode_q3_k>,
     encode_q3_k},
    {DType::Q4_K, "Q4_K", kQK, sizeof(BlockQ4_K), decode<BlockQ4_K>, plain<encode_q4_k>,
     encode_q4_k},
    {DType::Q5_K, "Q5_K", kQK, sizeof(BlockQ5_K), decode<BlockQ5_K>, plain<encode_q5_k>,
     encode_q5_k},
    {DType::Q6_K, "Q6_K", kQK, sizeof(BlockQ6_K), decode<BlockQ6_K>, plain<encode_q6_k>,
     encode_q6_k},
    {DType::IQ4_NL, "IQ4_NL", kQ, sizeof(BlockIQ4_NL), decode<BlockIQ4_NL>, plain<encode_iq4_nl>,
     encode_iq4_nl},
    {DType::IQ4_XS, "IQ4_XS", kQK, sizeof(BlockIQ4_XS), decode<BlockIQ4_XS>, plain<encode_iq4_xs>,
     encode_iq4_xs},
    {DType::I8, "I8", 1, 1, nullptr, nullptr},
    {DType::I32, "I32", 1, 4, nullptr, nullptr},
    {DType::BF16, "BF16", 1, 2, decode_bf16, encode_bf16},
};

// Not toupper(), which depends on the locale.
char upper(char c) {
    return c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c;
}

}  // namespace

const DTypeInfo* find_dtype(uint32_t id) {
    for (const DTypeInfo& row : kTypes)
        if (uint32_t(row.type) == id) return &row;
    return nullptr;
}

const DTypeInfo* find_dtype(std::string_view name) {
    for (const DTypeInfo& row : kTypes) {
        const std::string_view own = row.name;
        bool same = own.size() == name.size();
        for (size_t i = 0; same && i < own.size(); i++) same = own[i] == upper(name[i]);
        if (same) return &row;
    }
    return nullptr;
}

const DTypeInfo& info(DType type) {
    if (const DTypeInfo* row = find_dtype(uint32_t(type))) return *row;
    throw Error(Code::internal, format("element type %u has no row", unsigned(type)));
}

}  // namespace ggml
