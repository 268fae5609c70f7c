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

#define ROW(name, ...)                                                           \
    DTypeInfo {                                                                  \
        DType::name, #name, BlockTraits<Block##name>::size, sizeof(Block##name), \
            decode<Block##name>, __VA_ARGS__                                     \
    }
constexpr DTypeInfo kTypes[] = {
    {DType::F32, "F32", 1, 4, decode_f32, encode_f32},
    {DType::F16, "F16", 1, 2, decode_f16, encode_f16},
    ROW(Q4_0, encode_plain<BlockQ4_0>, weigh_plain<BlockQ4_0>),
    ROW(Q4_1, encode_plain<BlockQ4_1>, weigh_plain<BlockQ4_1>),
    ROW(Q5_0, encode_plain<BlockQ5_0>, weigh_plain<BlockQ5_0>),
    ROW(Q5_1, encode_plain<BlockQ5_1>, weigh_plain<BlockQ5_1>),
    ROW(Q8_0, encode_q8_0),
    ROW(Q2_K, plain<encode_q2_k>, encode_q2_k),
    ROW(Q3_K, plain<encode_q3_k>, encode_q3_k),
    ROW(Q4_K, plain<encode_q4_k>, encode_q4_k),
    ROW(Q5_K, plain<encode_q5_k>, encode_q5_k),
    ROW(Q6_K, plain<encode_q6_k>, encode_q6_k),
    ROW(IQ2_XXS, nullptr),
    ROW(IQ2_XS, nullptr),
    ROW(IQ3_XXS, nullptr),
    ROW(IQ1_S, nullptr),
    ROW(IQ3_S, nullptr),
    ROW(IQ2_S, nullptr),
    ROW(IQ1_M, nullptr),
    ROW(IQ4_NL, plain<encode_iq4_nl>, encode_iq4_nl),
    ROW(IQ4_XS, plain<encode_iq4_xs>, encode_iq4_xs),
    ROW(TQ1_0, encode_tq1_0),
    ROW(TQ2_0, encode_tq2_0),
    {DType::I8, "I8", 1, 1, nullptr, nullptr},
    {DType::I32, "I32", 1, 4, nullptr, nullptr},
    {DType::BF16, "BF16", 1, 2, decode_bf16, encode_bf16},
    ROW(MXFP4, encode_mxfp4),
    ROW(NVFP4, nullptr),
};
#undef ROW

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
