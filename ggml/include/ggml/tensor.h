// Weight matrices and the two layouts they have in memory.
#pragma once

#include <cstdint>

#include "ggml/blocks.h"
#include "ggml/dtype.h"

namespace ggml {

// rows:   as in the file, one row of `cols` after the other.
// strips: eight rows interleaved block by block (StripQ4_0, StripQ8_0 below), so that one vector
//         register holds the same four columns of eight rows and a product ends with eight sums
//         side by side, without horizontal adds. The same size as the rows; the last strip is
//         filled up with zero rows.
enum class Layout : uint8_t { rows, strips };

constexpr int64_t kStrip = 8;  // rows in a strip

struct StripQ4_0 {
    f16_t d[kStrip];
    uint8_t qs[kStrip * kQ / 2];  // [4][8 rows][4]: byte j of group v of row r is qs[4 v + j] of its block
};
static_assert(sizeof(StripQ4_0) == kStrip * sizeof(BlockQ4_0));

struct StripQ8_0 {
    f16_t d[kStrip];
    int8_t qs[kStrip * kQ];  // [8][8 rows][4], likewise
};
static_assert(sizeof(StripQ8_0) == kStrip * sizeof(BlockQ8_0));

// A matrix of weights, [rows, cols], row n holding the weights of output n. Does not own its data.
struct Matrix {
    DType type = DType::F32;
    Layout layout = Layout::rows;
    int64_t rows = 0, cols = 0;
    const uint8_t* data = nullptr;

    explicit operator bool() const { return data != nullptr; }
    bool quantised() const { return data && info(type).is_quantised(); }
    int64_t row_bytes() const { return info(type).size(cols); }
    int64_t bytes() const {
        return (layout == Layout::strips ? (rows + kStrip - 1) / kStrip * kStrip : rows) * row_bytes();
    }
};

// Does the type have a strip form?
bool has_strips(DType type);

// Interleaves n rows (1..8) of `cols` weights into one strip of 8 * row_bytes.
void pack_strip(DType type, const uint8_t* rows, int64_t n, int64_t cols, uint8_t* strip);

// Weights of one row as floats [cols], whatever the layout.
void decode_row(const Matrix& w, int64_t row, float* out);

}  // namespace ggml
