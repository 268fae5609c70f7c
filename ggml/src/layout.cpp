// Strips of eight interleaved rows: packing, and extracting one row.
#include <cstring>

#include "ggml/neurons.h"
#include "ggml/tensor.h"

namespace ggml {

namespace {

// The members of a block in order: half floats, or bytes in groups of four.
struct Member {
    uint8_t bytes, unit;
};
constexpr int kMembers = 5;
struct Members {
    DType type;
    Member members[kMembers];
};
constexpr Member kHalf = {2, 2};
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
};

const Members* members_of(DType type) {
    for (const Members& f : kFormats) {
        if (f.type == type) return &f;
    }
    return nullptr;
}

template <int unit>
void interleave(const uint8_t* from, int64_t bytes, int64_t r, uint8_t* to) {
    for (int64_t i = 0; i < bytes; i += unit)
        std::memcpy(to + kStrip * i + unit * r, from + i, unit);
}

template <int unit>
void gather(const uint8_t* from, int64_t bytes, int64_t r, uint8_t* to) {
    for (int64_t i = 0; i < bytes; i += unit)
        std::memcpy(to + i, from + kStrip * i + unit * r, unit);
}

}  // namespace

bool has_strips(DType type) {
    return members_of(type) != nullptr;
}

void pack_strip(DType type, const uint8_t* rows, int64_t n, int64_t cols, uint8_t* strip) {
    const Members& format = *members_of(type);
    const int64_t bytes = info(type).bytes, n_blocks = cols / info(type).block;
    if (n < kStrip) std::memset(strip, 0, size_t(kStrip * n_blocks * bytes));
    for (int64_t b = 0; b < n_blocks; b++) {
        for (int64_t r = 0; r < n; r++) {
            const uint8_t* from = rows + (r * n_blocks + b) * bytes;
            uint8_t* to = strip + b * kStrip * bytes;
            for (const Member& m : format.members) {
                if (m.unit == 2) {
                    interleave<2>(from, m.bytes, r, to);
                } else {
                    interleave<4>(from, m.bytes, r, to);
                }
                from += m.bytes;
                to += kStrip * m.bytes;
            }
        }
    }
}

void unpack_block(DType type, const uint8_t* strip_block, int64_t r, uint8_t* block) {
    for (const Member& m : members_of(type)->members) {
        if (m.unit == 2) {
            gather<2>(strip_block, m.bytes, r, block);
        } else {
            gather<4>(strip_block, m.bytes, r, block);
        }
        block += m.bytes;
        strip_block += kStrip * m.bytes;
    }
}

void decode_row(const Matrix& w, int64_t row, float* out) {
    const DTypeInfo& format = info(w.type);
    if (w.layout == Layout::rows) {
        format.decode(w.data + row * w.row_bytes(), out, w.cols);
        return;
    }
    const uint8_t* strip = w.data + row / kStrip * kStrip * w.row_bytes();
    uint8_t block[sizeof(BlockQ6_K)];  // the largest block
    for (int64_t b = 0; b < w.cols / format.block; b++) {
        unpack_block(w.type, strip + b * kStrip * format.bytes, row % kStrip, block);
        format.decode(block, out + b * format.block, format.block);
    }
}

bool can_fold(DType type, int64_t cols) {
    return has_strips(type) && cols % (kStrip * info(type).block) == 0;
}

void fold_row(DType type, const uint8_t* row, int64_t cols, uint8_t* folded) {
    pack_strip(type, row, kStrip, cols / kStrip, folded);
}

void unfold_row(DType type, const uint8_t* folded, int64_t cols, uint8_t* row) {
    const DTypeInfo& format = info(type);
    const int64_t n_blocks = cols / kStrip / format.block;
    for (int64_t r = 0; r < kStrip; r++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            unpack_block(type, folded + b * kStrip * format.bytes, r,
                         row + (r * n_blocks + b) * format.bytes);
        }
    }
}

}  // namespace ggml
