#include "ggml/dtype.h"

#include "ggml/blocks.h"
#include "ggml/status.h"
#include "quants/quants.h"

namespace ggml {

namespace {

constexpr DTypeInfo kTypes[] = {
    {DType::F32, "F32", 1, 4, decode_f32, encode_f32},
    {DType::F16, "F16", 1, 2, decode_f16, encode_f16},
    {DType::Q4_0, "Q4_0", kQ, sizeof(BlockQ4_0), decode_q4_0, encode_q4_0},
    {DType::Q8_0, "Q8_0", kQ, sizeof(BlockQ8_0), decode_q8_0, encode_q8_0},
    {DType::I8, "I8", 1, 1, nullptr, nullptr},
    {DType::I32, "I32", 1, 4, nullptr, nullptr},
    {DType::BF16, "BF16", 1, 2, decode_bf16, encode_bf16},
};

// Not toupper(): names are ASCII whatever the locale.
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
