// Products with neuron rows and their weighted sums, in plain C++: the specification of dot__*,
// add__*, stored_dot__*, stored_add__* and tiled_add__*.
#include "ggml/neurons.h"

#include "formats/parts.h"
#include "kernels/generic/block_product.h"
#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

// Adds eight lanes in the order of a horizontal sum of a vector register.
float add_lanes(const float lane[8]) {
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = lane[i] + lane[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

template <typename Block, DType type>
void dot_blocks(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const NeuronInput& in, const int32_t* tokens, int64_t nt, float* y) {
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

// Blocks of 32 or 64, one after the other; of those of 256, lane r takes group r.
template <typename Block>
void dot_stored(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const NeuronInput& in, const int32_t* tokens, int64_t nt, float* y) {
    constexpr int size = BlockTraits<Block>::size;
    constexpr bool lanes = size == kQK;
    for (int64_t i = 0; i < n * nt; i++) {
        const uint8_t* row = w + ids[i / nt] * stride;
        float lane[kStrip] = {};
        for (int64_t c = 0; c < cols; c += size, row += sizeof(Block)) {
            Block block;
            Parts p;
            std::memcpy(&block, row, sizeof(block));
            take_apart(block, p);
            const int64_t x0 = (tokens[i % nt] * cols + c) / kQ;
            for (int g = 0; g < size / kQ; g++) {
                float& sum = lane[lanes ? g : 0];
                sum = add_group<Block>(sum, p, g, in.q8, x0 + g);
            }
        }
        y[i] = lanes ? add_lanes(lane) : lane[0];
    }
}

// y += h * row for each row. `row` decodes it in stored order.
template <typename Row>
void add_rows(int64_t cols, int64_t span, const int32_t* ids, const WeightedRows& weighted,
              int64_t nt, float* y, int64_t ldy, const Row& row) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t t = 0; t < nt; t++) {
        for (int64_t k = weighted.first[t]; k < weighted.first[t + 1]; k++) {
            row(ids[weighted.row[k]], values.data());
            for (int64_t c = 0; c < cols; c++) {
                y[t * ldy + c] += weighted.h[k] * values[size_t(span ? column_at(c, span) : c)];
            }
        }
    }
}

template <DType type>
void add_blocks(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t, int64_t cols,
                const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy) {
    std::vector<uint8_t> stored(size_t(info(type).size(cols)));
    add_rows(cols, cols, ids, weighted, nt, y, ldy, [&](int64_t id, float* values) {
        unfold_row(type, w + id * stride, cols, stored.data());
        info(type).decode(stored.data(), values, cols);
    });
}

template <DType type>
void add_stored(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t, int64_t cols,
                const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy) {
    add_rows(cols, info(type).block == kQK ? kQK : 0, ids, weighted, nt, y, ldy,
             [&](int64_t id, float* values) { info(type).decode(w + id * stride, values, cols); });
}

template <DType type>
void add_tiled(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t, int64_t cols,
               const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy) {
    const int64_t size = info(type).bytes, n = info(type).block;
    add_rows(cols, 0, ids, weighted, nt, y, ldy, [&](int64_t id, float* values) {
        const uint8_t* block = tiled_row(w, stride, int32_t(id), size);
        for (int64_t c = 0; c < cols; c += n, block += kStrip * size) {
            info(type).decode(block, values + c, n);
        }
    });
}

template <DType type>
void dot_values(const uint8_t* w, int64_t stride, const int32_t* ids, int64_t n, int64_t cols,
                const NeuronInput& in, const int32_t* tokens, int64_t nt, float* y) {
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

}  // namespace

#define VALUES(type, suffix)                              \
    const dot_fn dot__##suffix = dot_values<DType::type>; \
    const add_fn add__##suffix = add_stored<DType::type>;
VALUES(F32, f32)
VALUES(F16, f16)
VALUES(BF16, bf16)
#define BLOCKS(type, suffix, ...)                                       \
    const dot_fn dot__##suffix = dot_blocks<Block##type, DType::type>;  \
    const add_fn add__##suffix = add_blocks<DType::type>;               \
    const stored_dot_fn stored_dot__##suffix = dot_stored<Block##type>; \
    const stored_add_fn stored_add__##suffix = add_stored<DType::type>;
GGML_BLOCK_FORMATS(BLOCKS)
#define TILED(type, suffix, ...) const tiled_add_fn tiled_add__##suffix = add_tiled<DType::type>;
GGML_PLAIN_FORMATS(TILED)

}  // namespace ggml::cpu::generic
