// Products with single neuron rows, and their weighted sums, in plain C++: the specification of
// dot__* and add__*.
#include "ggml/neurons.h"

#include "cpu/generic/block_product.h"
#include "cpu/kernels.h"
#include "quants/parts.h"

namespace ggml::cpu::generic {

namespace {

// Sums of the eight eighths of a row, side by side, then added in pairs as a register would.
float add_lanes(const float lane[8]) {
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = lane[i] + lane[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

template <typename Block>
void dot_blocks(DType type, const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                int64_t cols, const NeuronInput& in, const int32_t* tokens, int64_t nt, float* y) {
    constexpr int size = BlockTraits<Block>::size;
    const int64_t eighth = cols / kStrip;
    for (int64_t i = 0; i < n * nt; i++) {
        const uint8_t* row = w + ids[i / nt] * stride;
        float lane[kStrip] = {};
        for (int64_t r = 0; r < kStrip; r++) {
            for (int64_t b = 0; b < eighth / size; b++) {
                Block block;
                Parts p;
                unpack_block(type, row + b * kStrip * int64_t(sizeof(block)), r,
                             reinterpret_cast<uint8_t*>(&block));
                take_apart(block, p);
                const int64_t x0 = (tokens[i % nt] * cols + r * eighth + b * size) / kQ;
                lane[r] = add_block<Block>(lane[r], p, in.q8, x0);
            }
        }
        y[i] = add_lanes(lane);
    }
}

// The column that stands at a place of the folded order.
int64_t column_at(int64_t place, int64_t cols) {
    const int64_t r = place % 8, j = place / 8 % 4, group = place / 32;
    return r * (cols / 8) + 4 * group + j;
}

void add_blocks(DType type, const uint8_t* w, int64_t stride, const int32_t* ids, int64_t,
                int64_t cols, const Shares& shares, int64_t nt, float* y, int64_t ldy) {
    const DTypeInfo& format = info(type);
    std::vector<uint8_t> row(size_t(format.size(cols)));
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t t = 0; t < nt; t++) {
        for (int64_t k = shares.first[t]; k < shares.first[t + 1]; k++) {
            unfold_row(type, w + ids[shares.row[k]] * stride, cols, row.data());
            format.decode(row.data(), values.data(), cols);
            for (int64_t c = 0; c < cols; c++) {
                y[t * ldy + c] += shares.h[k] * values[size_t(column_at(c, cols))];
            }
        }
    }
}

void dot_values(DType type, const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,
                int64_t cols, const NeuronInput& in, const int32_t* tokens, int64_t nt, float* y) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t i = 0; i < n; i++) {
        info(type).decode(w + ids[i] * stride, values.data(), cols);
        for (int64_t j = 0; j < nt; j++) {
            float sum = 0;
            for (int64_t c = 0; c < cols; c++) {
                sum += values[size_t(c)] * in.x[tokens[j] * cols + c];
            }
            y[i * nt + j] = sum;
        }
    }
}

void add_values(DType type, const uint8_t* w, int64_t stride, const int32_t* ids, int64_t,
                int64_t cols, const Shares& shares, int64_t nt, float* y, int64_t ldy) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t t = 0; t < nt; t++) {
        for (int64_t k = shares.first[t]; k < shares.first[t + 1]; k++) {
            info(type).decode(w + ids[shares.row[k]] * stride, values.data(), cols);
            for (int64_t c = 0; c < cols; c++) y[t * ldy + c] += shares.h[k] * values[size_t(c)];
        }
    }
}

}  // namespace

#define NEURON(suffix, type, dot, add)                                                          \
    void dot__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,         \
                       int64_t cols, const NeuronInput& x, const int32_t* tokens, int64_t nt,   \
                       float* y) {                                                              \
        dot(DType::type, w, stride, ids, n, cols, x, tokens, nt, y);                            \
    }                                                                                           \
    void add__##suffix(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n,         \
                       int64_t cols, const Shares& shares, int64_t nt, float* y, int64_t ldy) { \
        add(DType::type, w, stride, ids, n, cols, shares, nt, y, ldy);                          \
    }
NEURON(f32, F32, dot_values, add_values)
NEURON(f16, F16, dot_values, add_values)
NEURON(bf16, BF16, dot_values, add_values)
NEURON(q4_0, Q4_0, dot_blocks<BlockQ4_0>, add_blocks)
NEURON(q4_1, Q4_1, dot_blocks<BlockQ4_1>, add_blocks)
NEURON(q5_0, Q5_0, dot_blocks<BlockQ5_0>, add_blocks)
NEURON(q5_1, Q5_1, dot_blocks<BlockQ5_1>, add_blocks)
NEURON(q8_0, Q8_0, dot_blocks<BlockQ8_0>, add_blocks)
NEURON(q2_k, Q2_K, dot_blocks<BlockQ2_K>, add_blocks)
NEURON(q3_k, Q3_K, dot_blocks<BlockQ3_K>, add_blocks)
NEURON(q4_k, Q4_K, dot_blocks<BlockQ4_K>, add_blocks)
NEURON(q5_k, Q5_K, dot_blocks<BlockQ5_K>, add_blocks)
NEURON(q6_k, Q6_K, dot_blocks<BlockQ6_K>, add_blocks)
NEURON(iq4_nl, IQ4_NL, dot_blocks<BlockIQ4_NL>, add_blocks)
NEURON(iq4_xs, IQ4_XS, dot_blocks<BlockIQ4_XS>, add_blocks)

}  // namespace ggml::cpu::generic
