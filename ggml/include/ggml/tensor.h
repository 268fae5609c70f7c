// Weight matrices and the two layouts they have in memory.
#pragma once

#include <cstdint>

#include "ggml/blocks.h"
#include "ggml/dtype.h"

namespace ggml {

// rows: as in the file, one row of `cols` weights after the other.
//
// strips: eight rows interleaved. One vector register holds the same four bytes of eight rows, so a
// product ends with eight sums side by side and needs no horizontal additions. A block of a strip
// is eight blocks of the format, interleaved member by member: a half float of row r goes to index
// [r], byte 4 v + j of a byte array to index [v][r][j]. A member starts at eight times its offset
// in the block, and a strip has the size of its rows. The last strip is filled up with zero rows.
enum class Layout : uint8_t { rows, strips };

constexpr int64_t kStrip = 8;  // rows in a strip

// A matrix of weights, [rows, cols]. Row n has the weights of output n. Does not own its data.
struct Matrix {
    DType type = DType::F32;
    Layout layout = Layout::rows;
    int64_t rows = 0, cols = 0;
    const uint8_t* data = nullptr;
    const float* scale = nullptr;  // [1], multiplies products with it; or null for 1

    explicit operator bool() const { return data != nullptr; }
    bool quantised() const { return data && info(type).is_quantised(); }
    int64_t row_bytes() const { return info(type).size(cols); }
    int64_t bytes() const {
        return (layout == Layout::strips ? (rows + kStrip - 1) / kStrip * kStrip : rows) *
               row_bytes();
    }
};

// Does the type have a strip layout? Every block format does.
bool has_strips(DType type);

// Interleaves n rows (1..8) of `cols` weights into one strip of 8 * row_bytes.
void pack_strip(DType type, const uint8_t* rows, int64_t n, int64_t cols, uint8_t* strip);

// The same for eight rows that lie anywhere.
void pack_strip(DType type, const uint8_t* const (&rows)[kStrip], int64_t cols, uint8_t* strip);

// Copies row r's block out of a block of a strip.
void unpack_block(DType type, const uint8_t* strip_block, int64_t r, uint8_t* block);
// The reverse: puts a block into row r of eight interleaved blocks.
void put_block(DType type, const uint8_t* block, int64_t r, uint8_t* strip_block);

// Decodes one row to floats [cols], in any layout.
void decode_row(const Matrix& w, int64_t row, float* out);

}  // namespace ggml
