// Stores keys and values in pages, and converts them from and to rows.
#include <algorithm>
#include <cstring>

#include "ggml/attention.h"
#include "ggml/tensor.h"
#include "kernels/value_blocks.h"

namespace ggml {

namespace {

// Values of one position of a run of floats, from column c0 on. T has the size of a value.
template <typename T>
void put_values(const uint8_t* values, int64_t c0, int64_t n, int64_t at, uint8_t* run) {
    for (int64_t i = 0; i < n; i++) {
        std::memcpy(run + ((c0 + i) * kKvPage + at) * int64_t(sizeof(T)),
                    values + i * int64_t(sizeof(T)), sizeof(T));
    }
}
template <typename T>
void take_values(const uint8_t* run, int64_t n, int64_t at, uint8_t* values) {
    for (int64_t i = 0; i < n; i++) {
        std::memcpy(values + i * int64_t(sizeof(T)), run + (i * kKvPage + at) * int64_t(sizeof(T)),
                    sizeof(T));
    }
}

// Where block b of position `at` begins in a run of strips.
int64_t strip_block(DType type, int64_t head_dim, int64_t at, int64_t b) {
    return at / kStrip * kStrip * info(type).size(head_dim) + b * kStrip * info(type).bytes;
}

// Puts n encoded values of position `at`, from column c0 on, into a run of keys.
void put_key(DType type, int64_t head_dim, const uint8_t* values, int64_t c0, int64_t n, int64_t at,
             uint8_t* run) {
    if (type == DType::F32) return put_values<uint32_t>(values, c0, n, at, run);
    if (type == DType::F16) return put_values<uint16_t>(values, c0, n, at, run);
    const DTypeInfo& format = info(type);
    for (int64_t b = 0; b < n / format.block; b++) {
        put_block(type, values + b * format.bytes, at % kStrip,
                  run + strip_block(type, head_dim, at, c0 / format.block + b));
    }
}

void take_key(DType type, int64_t head_dim, const uint8_t* run, int64_t at, uint8_t* row) {
    if (type == DType::F32) return take_values<uint32_t>(run, head_dim, at, row);
    if (type == DType::F16) return take_values<uint16_t>(run, head_dim, at, row);
    const DTypeInfo& format = info(type);
    for (int64_t b = 0; b < head_dim / format.block; b++) {
        unpack_block(type, run + strip_block(type, head_dim, at, b), at % kStrip,
                     row + b * format.bytes);
    }
}

// Where column 32 b of position `at` is in a run of values in blocks; the next one is four bytes
// further on.
struct ValuePlace {
    uint8_t *codes, *scale;
};
ValuePlace value_place(uint8_t* run, int64_t head_dim, int64_t b, int64_t at) {
    return {run + cpu::codes_at(b) + at / 4 * 4 * kQ + at % 4,
            run + cpu::scales_at(head_dim, b) + at * int64_t(sizeof(f16_t))};
}

// Puts n encoded values of position `at`, from column c0 on, into a run of values.
void put_value(DType type, int64_t head_dim, const uint8_t* values, int64_t c0, int64_t n,
               int64_t at, uint8_t* run) {
    const DTypeInfo& format = info(type);
    if (!format.is_quantised()) {
        std::memcpy(run + at * format.size(head_dim) + format.size(c0), values,
                    size_t(format.size(n)));
        return;
    }
    const auto* blocks = reinterpret_cast<const BlockQ8_0*>(values);
    for (int64_t b = c0 / kQ; b < (c0 + n) / kQ; b++, blocks++) {
        const ValuePlace to = value_place(run, head_dim, b, at);
        std::memcpy(to.scale, &blocks->d, sizeof(blocks->d));
        for (int64_t c = 0; c < kQ; c++) to.codes[4 * c] = uint8_t(blocks->qs[c]);
    }
}

void take_value(DType type, int64_t head_dim, const uint8_t* run, int64_t at, uint8_t* row) {
    const DTypeInfo& format = info(type);
    if (!format.is_quantised()) {
        std::memcpy(row, run + at * format.size(head_dim), size_t(format.size(head_dim)));
        return;
    }
    auto* blocks = reinterpret_cast<BlockQ8_0*>(row);
    for (int64_t b = 0; b < head_dim / kQ; b++, blocks++) {
        const ValuePlace from = value_place(const_cast<uint8_t*>(run), head_dim, b, at);
        std::memcpy(&blocks->d, from.scale, sizeof(blocks->d));
        for (int64_t c = 0; c < kQ; c++) blocks->qs[c] = int8_t(from.codes[4 * c]);
    }
}

}  // namespace

void store_kv(Context& context, const KvLayer& layer, const KvSlot* slots, int64_t n,
              const float* k, const float* v) {
    const OpTimer timer(context.profile, "store_kv");
    const int64_t dim = layer.head_dim, heads = layer.n_head_kv;
    const auto encode = info(layer.type).encode;
    // At least 2,048 values of keys and of values per piece: converting them takes a few
    // microseconds, which is worth waking a thread. Head after head, because adjacent positions of
    // a run of keys share cache lines.
    const int64_t grain = std::max<int64_t>(kKvPage, 2048 / dim);
    context.threads.run(n * heads, grain, [&](int64_t begin, int64_t end, int) {
        constexpr int64_t kPiece = 256;  // columns
        uint8_t encoded[kPiece * sizeof(float)];
        for (int64_t i = begin; i < end; i++) {
            const int64_t head = i / n, t = i % n, from = (t * heads + head) * dim;
            const int64_t run = slots[t].page * layer.page_stride + head * layer.head_bytes();
            for (int64_t c = 0; c < dim; c += kPiece) {
                const int64_t some = std::min(kPiece, dim - c);
                encode(k + from + c, encoded, some);
                put_key(layer.type, dim, encoded, c, some, slots[t].at, layer.k + run);
                encode(v + from + c, encoded, some);
                put_value(layer.type, dim, encoded, c, some, slots[t].at, layer.v + run);
            }
        }
    });
}

void keys_to_rows(DType type, int64_t head_dim, const uint8_t* run, int64_t n, uint8_t* rows) {
    for (int64_t i = 0; i < n; i++) {
        take_key(type, head_dim, run, i, rows + i * info(type).size(head_dim));
    }
}

void rows_to_keys(DType type, int64_t head_dim, const uint8_t* rows, int64_t n, uint8_t* run) {
    for (int64_t i = 0; i < n; i++) {
        put_key(type, head_dim, rows + i * info(type).size(head_dim), 0, head_dim, i, run);
    }
}

void values_to_rows(DType type, int64_t head_dim, const uint8_t* run, int64_t n, uint8_t* rows) {
    for (int64_t i = 0; i < n; i++) {
        take_value(type, head_dim, run, i, rows + i * info(type).size(head_dim));
    }
}

void rows_to_values(DType type, int64_t head_dim, const uint8_t* rows, int64_t n, uint8_t* run) {
    for (int64_t i = 0; i < n; i++) {
        put_value(type, head_dim, rows + i * info(type).size(head_dim), 0, head_dim, i, run);
    }
}

}  // namespace ggml
