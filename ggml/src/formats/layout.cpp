// Strips of eight interleaved rows: packing, and extracting one row.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "ggml/neurons.h"
#include "ggml/tensor.h"

namespace ggml {

namespace {

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
    {DType::NVFP4, {{4, 4}, {32, 4}}},
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

const Members* members_of(DType type) {
    for (const Members& f : kFormats) {
        if (f.type == type) return &f;
    }
    return nullptr;
}

using StripRows = const uint8_t* const (&)[kStrip];

// Four bytes of four rows each: `to` gets the first word of all rows, then the second, and so on,
// 32 bytes apart.
inline void interleave_four(const uint8_t* const* rows, int64_t at, uint8_t* to) {
#if defined(__SSE2__)
    __m128i row[4];
    for (int r = 0; r < 4; r++) {
        row[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + at));
    }
    const __m128i a = _mm_unpacklo_epi32(row[0], row[1]), b = _mm_unpackhi_epi32(row[0], row[1]);
    const __m128i c = _mm_unpacklo_epi32(row[2], row[3]), d = _mm_unpackhi_epi32(row[2], row[3]);
    auto* const out = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(out, _mm_unpacklo_epi64(a, c));
    _mm_storeu_si128(out + 2, _mm_unpackhi_epi64(a, c));
    _mm_storeu_si128(out + 4, _mm_unpacklo_epi64(b, d));
    _mm_storeu_si128(out + 6, _mm_unpackhi_epi64(b, d));
#else
    for (int r = 0; r < 4; r++) {
        for (int v = 0; v < 4; v++) std::memcpy(to + 32 * v + 4 * r, rows[r] + at + 4 * v, 4);
    }
#endif
}

// One unit of each row. By single small stores, the 16-byte loads of what reads the strip next
// would wait for them.
template <int unit>
void interleave_one(StripRows rows, int64_t at, uint8_t* to) {
#if defined(__SSE2__)
    [[maybe_unused]] auto* const out = reinterpret_cast<__m128i*>(to);
    if constexpr (unit == 1) {
        uint64_t all = 0;
        for (int r = 0; r < kStrip; r++) all |= uint64_t(rows[r][at]) << 8 * r;
        std::memcpy(to, &all, sizeof(all));
        return;
    } else if constexpr (unit == 2) {
        const auto half = [&](int r) {
            uint16_t bits;
            std::memcpy(&bits, rows[r] + at, sizeof(bits));
            return int(bits);
        };
        __m128i all = _mm_cvtsi32_si128(half(0));
        all = _mm_insert_epi16(all, half(1), 1);
        all = _mm_insert_epi16(all, half(2), 2);
        all = _mm_insert_epi16(all, half(3), 3);
        all = _mm_insert_epi16(all, half(4), 4);
        all = _mm_insert_epi16(all, half(5), 5);
        all = _mm_insert_epi16(all, half(6), 6);
        _mm_storeu_si128(out, _mm_insert_epi16(all, half(7), 7));
        return;
    } else if constexpr (unit == 4) {
        const auto two = [&](int r) {
            int word[2];
            std::memcpy(&word[0], rows[r] + at, sizeof(word[0]));
            std::memcpy(&word[1], rows[r + 1] + at, sizeof(word[1]));
            return _mm_unpacklo_epi32(_mm_cvtsi32_si128(word[0]), _mm_cvtsi32_si128(word[1]));
        };
        _mm_storeu_si128(out, _mm_unpacklo_epi64(two(0), two(2)));
        _mm_storeu_si128(out + 1, _mm_unpacklo_epi64(two(4), two(6)));
        return;
    }
#endif
    for (int64_t r = 0; r < kStrip; r++) std::memcpy(to + unit * r, rows[r] + at, unit);
}

template <int bytes, int unit>
inline void interleave(StripRows rows, int64_t at, uint8_t* to) {
    int64_t i = 0;
    if constexpr (unit == 4) {
        for (; i + 16 <= bytes; i += 16) {
            interleave_four(rows, at + i, to + kStrip * i);
            interleave_four(rows + 4, at + i, to + kStrip * i + 16);
        }
    }
    for (; i < bytes; i += unit) interleave_one<unit>(rows, at + i, to + kStrip * i);
}

template <size_t format, size_t member>
inline void pack_member(StripRows rows, int64_t& at, uint8_t* strip) {
    constexpr Member m = kFormats[format].members[member];
    if constexpr (m.bytes > 0) interleave<m.bytes, m.unit>(rows, at, strip + kStrip * at);
    at += m.bytes;
}

// Rows of `size` bytes. Each format has a loop of its own: with members that are read from the
// list, packing blocks of 32 took 1.3 to 1.7 times as long.
template <size_t format, size_t... member>
void pack_rows(StripRows rows, int64_t size, uint8_t* strip, std::index_sequence<member...>) {
    for (int64_t at = 0; at < size;) (pack_member<format, member>(rows, at, strip), ...);
}
template <size_t format>
void pack_format(StripRows rows, int64_t size, uint8_t* strip) {
    pack_rows<format>(rows, size, strip, std::make_index_sequence<kMembers>());
}

using Pack = void (*)(StripRows, int64_t, uint8_t*);
template <size_t... format>
constexpr std::array<Pack, sizeof...(format)> all_packs(std::index_sequence<format...>) {
    return {pack_format<format>...};
}
constexpr auto kPacks = all_packs(std::make_index_sequence<std::size(kFormats)>());

template <int unit>
void gather(const uint8_t* from, int64_t bytes, int64_t r, uint8_t* to) {
    for (int64_t i = 0; i < bytes; i += unit)
        std::memcpy(to + i, from + kStrip * i + unit * r, unit);
}
template <int unit>
void scatter(const uint8_t* from, int64_t bytes, int64_t r, uint8_t* to) {
    for (int64_t i = 0; i < bytes; i += unit)
        std::memcpy(to + kStrip * i + unit * r, from + i, unit);
}

}  // namespace

bool has_strips(DType type) {
    return members_of(type) != nullptr;
}

void pack_strip(DType type, const uint8_t* const (&rows)[kStrip], int64_t cols, uint8_t* strip) {
    kPacks[size_t(members_of(type) - kFormats)](rows, info(type).size(cols), strip);
}

void pack_strip(DType type, const uint8_t* rows, int64_t n, int64_t cols, uint8_t* strip) {
    const int64_t size = info(type).size(cols);
    const uint8_t* each[kStrip];
    for (int64_t r = 0; r < kStrip; r++) each[r] = rows + std::min(r, n - 1) * size;
    pack_strip(type, each, cols, strip);
    if (n == kStrip) return;
    const Members& format = *members_of(type);
    for (int64_t at = 0; at < size;) {  // the rows that are not there
        for (const Member& m : format.members) {
            for (int64_t i = 0; i < m.bytes; i += m.unit) {
                std::memset(strip + kStrip * (at + i) + n * m.unit, 0,
                            size_t((kStrip - n) * m.unit));
            }
            at += m.bytes;
        }
    }
}

void unpack_block(DType type, const uint8_t* strip_block, int64_t r, uint8_t* block) {
    for (const Member& m : members_of(type)->members) {
        if (m.unit == 1) {
            gather<1>(strip_block, m.bytes, r, block);
        } else if (m.unit == 2) {
            gather<2>(strip_block, m.bytes, r, block);
        } else {
            gather<4>(strip_block, m.bytes, r, block);
        }
        block += m.bytes;
        strip_block += kStrip * m.bytes;
    }
}

void put_block(DType type, const uint8_t* block, int64_t r, uint8_t* strip_block) {
    for (const Member& m : members_of(type)->members) {
        if (m.unit == 1) {
            scatter<1>(block, m.bytes, r, strip_block);
        } else if (m.unit == 2) {
            scatter<2>(block, m.bytes, r, strip_block);
        } else {
            scatter<4>(block, m.bytes, r, strip_block);
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

bool can_tile(DType type, int64_t cols) {
    const int64_t block = info(type).block;
    return has_strips(type) && block < kQK && cols % block == 0 && !can_fold(type, cols);
}

void pack_tile(DType type, NeuronRows::Tiles tiles, const uint8_t* rows, int64_t cols,
               uint8_t* tile) {
    if (tiles == NeuronRows::Tiles::strips) return pack_strip(type, rows, kStrip, cols, tile);
    const int64_t row = info(type).size(cols), size = info(type).bytes;
    for (int64_t at = 0; at < row; at += size) {
        for (int64_t r = 0; r < kStrip; r++, tile += size) {
            std::memcpy(tile, rows + r * row + at, size_t(size));
        }
    }
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
