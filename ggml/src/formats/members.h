// The members of every format's block, for those that take blocks apart without knowing them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "ggml/dtype.h"

namespace ggml {

// The members of a block in order: half floats, or bytes, alone or in groups of four.
struct Member {
    uint8_t bytes, unit;
};
constexpr int kMembers = 5;
struct Members {
    DType type;
    Member members[kMembers];
};
constexpr Member kByte = {1, 1}, kHalf = {2, 2};
constexpr Members kFormats[] = {
    {DType::Q4_0, {kHalf, {16, 4}}},
    {DType::Q4_1, {kHalf, kHalf, {16, 4}}},
    {DType::Q5_0, {kHalf, {4, 4}, {16, 4}}},
    {DType::Q5_1, {kHalf, kHalf, {4, 4}, {16, 4}}},
    {DType::Q8_0, {kHalf, {32, 4}}},
    {DType::Q2_K, {{16, 4}, {64, 4}, kHalf, kHalf}},
    {DType::Q3_K, {{32, 4}, {64, 4}, {12, 4}, kHalf}},
    {DType::Q4_K, {kHalf, kHalf, {12, 4}, {128, 4}}},
    {DType::Q5_K, {kHalf, kHalf, {12, 4}, {32, 4}, {128, 4}}},
    {DType::Q6_K, {{128, 4}, {64, 4}, {16, 4}, kHalf}},
    {DType::IQ4_NL, {kHalf, {16, 4}}},
    {DType::IQ4_XS, {kHalf, kHalf, {4, 4}, {128, 4}}},
    {DType::MXFP4, {kByte, {16, 4}}},
    {DType::IQ2_XXS, {kHalf, {64, 4}}},
    {DType::IQ2_XS, {kHalf, {64, 4}, {8, 4}}},
    {DType::IQ3_XXS, {kHalf, {64, 4}, {32, 4}}},
    {DType::IQ1_S, {kHalf, {32, 4}, {16, 4}}},
    {DType::IQ3_S, {kHalf, {64, 4}, {8, 4}, {32, 4}, {4, 4}}},
    {DType::IQ2_S, {kHalf, {32, 4}, {32, 4}, {8, 4}, {8, 4}}},
    {DType::IQ1_M, {{32, 4}, {16, 4}, {8, 4}}},
    {DType::TQ1_0, {{48, 4}, {4, 4}, kHalf}},
    {DType::TQ2_0, {{64, 4}, kHalf}},
};

// The place of a type in that list; behind its end if it has no blocks.
constexpr size_t format_index(DType type) {
    size_t i = 0;
    while (i < std::size(kFormats) && kFormats[i].type != type) i++;
    return i;
}

}  // namespace ggml
