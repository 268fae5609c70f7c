// Strips of eight rows: every format's bytes, against an interleave that goes unit by unit.
#include <cstddef>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "check.h"
#include "ggml/blocks.h"
#include "ggml/neurons.h"
#include "ggml/tensor.h"

using namespace ggml;

namespace {

// The halves of each format's blocks, which are interleaved by two bytes; MXFP4's exponents by one,
// all else by four.
struct Halves {
    DType type;
    std::vector<size_t> at;
};
const Halves kHalves[] = {
    {DType::Q4_0, {offsetof(BlockQ4_0, d)}},
    {DType::Q4_1, {offsetof(BlockQ4_1, d), offsetof(BlockQ4_1, m)}},
    {DType::Q5_0, {offsetof(BlockQ5_0, d)}},
    {DType::Q5_1, {offsetof(BlockQ5_1, d), offsetof(BlockQ5_1, m)}},
    {DType::Q8_0, {offsetof(BlockQ8_0, d)}},
    {DType::Q2_K, {offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin)}},
    {DType::Q3_K, {offsetof(BlockQ3_K, d)}},
    {DType::Q4_K, {offsetof(BlockQ4_K, d), offsetof(BlockQ4_K, dmin)}},
    {DType::Q5_K, {offsetof(BlockQ5_K, d), offsetof(BlockQ5_K, dmin)}},
    {DType::Q6_K, {offsetof(BlockQ6_K, d)}},
    {DType::IQ4_NL, {offsetof(BlockIQ4_NL, d)}},
    {DType::IQ4_XS, {offsetof(BlockIQ4_XS, d), offsetof(BlockIQ4_XS, scales_h)}},
    {DType::MXFP4, {}},
    {DType::NVFP4, {}},
    {DType::IQ2_XXS, {offsetof(BlockIQ2_XXS, d)}},
    {DType::IQ2_XS, {offsetof(BlockIQ2_XS, d)}},
    {DType::IQ3_XXS, {offsetof(BlockIQ3_XXS, d)}},
    {DType::IQ1_S, {offsetof(BlockIQ1_S, d)}},
    {DType::IQ3_S, {offsetof(BlockIQ3_S, d)}},
    {DType::IQ2_S, {offsetof(BlockIQ2_S, d)}},
    {DType::IQ1_M, {}},
    {DType::TQ1_0, {offsetof(BlockTQ1_0, d)}},
    {DType::TQ2_0, {offsetof(BlockTQ2_0, d)}},
};

// n rows, and zeros for the others.
std::vector<uint8_t> interleaved(const Halves& format, const uint8_t* const* rows, int64_t n,
                                 int64_t cols) {
    const DTypeInfo& t = info(format.type);
    const size_t block = size_t(t.bytes), size = size_t(t.size(cols));
    std::vector<uint8_t> strip(size * kStrip);
    for (size_t at = 0; at < size;) {
        bool half = false;
        for (const size_t h : format.at) half = half || at % block == h;
        const bool exponent = format.type == DType::MXFP4 && at % block == 0;
        const size_t unit = exponent ? 1 : half ? 2 : 4;
        for (size_t r = 0; r < size_t(n); r++) {
            std::memcpy(&strip[at * kStrip + unit * r], rows[r] + at, unit);
        }
        at += unit;
    }
    return strip;
}

void test_format(const Halves& format) {
    const DTypeInfo& t = info(format.type);
    CHECK(has_strips(format.type));
    std::mt19937 random(3);
    for (const int64_t blocks : {1, 2, 3, 5, 8, 24, 33}) {
        const int64_t cols = blocks * t.block, size = t.size(cols);
        for (int64_t n = 1; n <= kStrip; n++) {
            // Exactly as large as needed, so that sanitizers see a read or write beyond it. The
            // odd offset is that of a file.
            std::vector<uint8_t> stored(size_t(n * size) + 1);
            for (uint8_t& byte : stored) byte = uint8_t(random());
            const uint8_t* rows[kStrip] = {};
            for (int64_t r = 0; r < n; r++) rows[r] = stored.data() + 1 + r * size;
            const std::vector<uint8_t> expected = interleaved(format, rows, n, cols);
            std::vector<uint8_t> strip(expected.size(), 0xaa);
            pack_strip(format.type, rows[0], n, cols, strip.data());
            CHECK(strip == expected);
            std::vector<uint8_t> block(size_t(t.bytes));
            for (int64_t r = 0; r < n; r++) {
                for (int64_t b = 0; b < blocks; b++) {
                    unpack_block(format.type, &strip[size_t(b * kStrip * t.bytes)], r,
                                 block.data());
                    CHECK(std::memcmp(block.data(), rows[r] + b * t.bytes, block.size()) == 0);
                }
            }
            if (n < kStrip) continue;
            // Rows in any order, also the same one twice.
            const uint8_t* const mixed[kStrip] = {rows[3], rows[0], rows[7], rows[7],
                                                  rows[1], rows[6], rows[2], rows[4]};
            pack_strip(format.type, mixed, cols, strip.data());
            CHECK(strip == interleaved(format, mixed, kStrip, cols));
            // A row made of eight parts is a strip of them.
            if (!can_fold(format.type, cols * kStrip)) continue;
            std::vector<uint8_t> back(size_t(kStrip * size));
            fold_row(format.type, rows[0], cols * kStrip, strip.data());
            CHECK(strip == expected);
            unfold_row(format.type, strip.data(), cols * kStrip, back.data());
            CHECK(std::memcmp(back.data(), rows[0], back.size()) == 0);
        }
    }
}

}  // namespace

int main() {
    int formats = 0;
    for (int i = 0; i <= int(DType::NVFP4); i++) formats += has_strips(DType(i));
    CHECK(formats == int(std::size(kHalves)));
    for (const Halves& format : kHalves) test_format(format);
    return check::summary("layout");
}
