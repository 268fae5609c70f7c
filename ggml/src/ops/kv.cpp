// Stores keys and values in pages, and converts them from and to rows.
#include <algorithm>
#include <cstring>

#include "ggml/attention.h"
#include "ggml/tensor.h"
#include "kernels/value_blocks.h"

namespace ggml {

namespace {

// Keys of n_rows adjacent positions of a run of floats, from column c0 on, of rows `apart` bytes
// from each other. T has the size of a value.
template <typename T>
void put_floats(const uint8_t* rows, int64_t apart, int64_t n_rows, int64_t c0, int64_t n,
                int64_t at, uint8_t* run) {
    for (int64_t i = 0; i < n; i++) {
        T* const to = reinterpret_cast<T*>(run) + (c0 + i) * kKvPage + at;
        for (int64_t r = 0; r < n_rows; r++) {
            std::memcpy(to + r, rows + r * apart + i * int64_t(sizeof(T)), sizeof(T));
        }
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

// Puts n encoded values of each of n_rows adjacent positions, from column c0 and from position `at`
// on, into a run of keys. Rows are `apart` bytes from each other.
void put_keys(DType type, int64_t head_dim, const uint8_t* rows, int64_t apart, int64_t n_rows,
              int64_t c0, int64_t n, int64_t at, uint8_t* run) {
    if (type == DType::F32) return put_floats<uint32_t>(rows, apart, n_rows, c0, n, at, run);
    if (type == DType::F16) return put_floats<uint16_t>(rows, apart, n_rows, c0, n, at, run);
    const DTypeInfo& format = info(type);
    for (int64_t r = 0; r < n_rows; r++, at++, rows += apart) {
        for (int64_t b = 0; b < n / format.block; b++) {
            put_block(type, rows + b * format.bytes, at % kStrip,
                      run + strip_block(type, head_dim, at, c0 / format.block + b));
        }
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

// Four by four elements, four of them in a word: element j of word i becomes element i of word j.
template <typename Word>
void turn(Word (&w)[4]) {
    constexpr int kBits = int(sizeof(Word)) * 8 / 4;  // of an element
    constexpr Word even = Word(~Word(0)) / Word((Word(1) << kBits) + 1);
    constexpr Word low = (Word(1) << 2 * kBits) - 1;
    Word pairs[4];  // elements 0 and 2 of two words in turn, and 1 and 3
    for (int i = 0; i < 4; i += 2) {
        pairs[i] = (w[i] & even) | (w[i + 1] & even) << kBits;
        pairs[i + 1] = (w[i] >> kBits & even) | (w[i + 1] & ~even);
    }
    for (int i = 0; i < 2; i++) {
        w[i] = (pairs[i] & low) | pairs[i + 2] << 2 * kBits;
        w[i + 2] = pairs[i] >> 2 * kBits | (pairs[i + 2] & ~low);
    }
}

// Values of floats from the keys of a run: [n_cols][kKvPage] becomes [kKvPage][n_cols]. T has the
// size of a value.
template <typename T>
void turn_columns(const T* keys, int64_t c0, int64_t n_cols, T* values) {
    constexpr int64_t kColumns = 16;  // whose cache lines stay while positions pass
    for (; c0 < n_cols; c0 += kColumns) {
        const int64_t end = std::min(c0 + kColumns, n_cols);
        for (int64_t p = 0; p < kKvPage; p++) {
            for (int64_t c = c0; c < end; c++) values[p * n_cols + c] = keys[c * kKvPage + p];
        }
    }
}
void turn_halves(const uint16_t* keys, int64_t n_cols, uint16_t* values) {
    const int64_t fours = n_cols / 4 * 4;
    for (int64_t c = 0; c < fours; c += 4) {
        for (int64_t p = 0; p < kKvPage; p += 4) {
            uint64_t w[4];
            for (int k = 0; k < 4; k++) std::memcpy(w + k, keys + (c + k) * kKvPage + p, 8);
            turn(w);
            for (int k = 0; k < 4; k++) std::memcpy(values + (p + k) * n_cols + c, w + k, 8);
        }
    }
    turn_columns(keys, fours, n_cols, values);
}

// A block of columns of eight positions, from a strip of keys to a run of values.
void turn_block(const uint8_t* strip, const ValuePlace& to) {
    std::memcpy(to.scale, strip, kStrip * sizeof(f16_t));
    const uint8_t* codes = strip + kStrip * sizeof(f16_t);  // [kQ / 4][kStrip][4 columns]
    for (int64_t c = 0; c < kQ; c += 4) {
        for (int64_t p = 0; p < kStrip; p += 4, codes += 16) {
            uint32_t w[4];
            std::memcpy(w, codes, sizeof(w));
            turn(w);
            std::memcpy(to.codes + p * kQ + 4 * c, w, sizeof(w));
        }
    }
}

// What store_kv converts together.
constexpr int64_t kStoredRows = 16, kStoredColumns = 64;
constexpr int64_t kStored = kStoredColumns * int64_t(sizeof(float));  // bytes

}  // namespace

void store_kv(Context& context, const KvLayer& layer, const KvSlot* slots, int64_t n,
              const float* k, const float* v) {
    const OpTimer timer(context.profile, "store_kv");
    const int64_t heads = layer.n_head_kv;
    const auto encode = info(layer.type).encode;
    // Adjacent positions of a run of keys share cache lines, so they are put there together, head
    // after head. Calls put(rows, c, columns) for the encoded values of so many rows of a head,
    // from column c on, in pieces; rows are kStored bytes from each other.
    const auto in_pieces = [&](const float* from, int64_t width, int64_t n_rows, const auto& put) {
        uint8_t encoded[kStoredRows * kStored];
        for (int64_t c = 0; c < width; c += kStoredColumns) {
            const int64_t some = std::min(kStoredColumns, width - c);
            for (int64_t r = 0; r < n_rows; r++) {
                encode(from + r * heads * width + c, encoded + r * kStored, some);
            }
            put(encoded, c, some);
        }
    };
    // At least 2,048 values of keys and of values per piece: converting them takes a few
    // microseconds, which is worth waking a thread.
    const int64_t grain = std::max<int64_t>(kKvPage, 2048 / layer.head_dim);
    context.threads.run(n * heads, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin, rows = 1; i < end; i += rows) {
            const int64_t head = i / n, t = i % n, number = t * heads + head, at = slots[t].at;
            const int64_t most = std::min({kStoredRows, n - t, end - i});
            for (rows = 1; rows < most; rows++) {
                const KvSlot& next = slots[t + rows];
                if (next.page != slots[t].page || next.at != at + rows) break;
            }
            const int64_t page = slots[t].page * layer.page_stride;
            in_pieces(k + number * layer.head_dim, layer.head_dim, rows,
                      [&](const uint8_t* values, int64_t c, int64_t some) {
                          put_keys(layer.type, layer.head_dim, values, kStored, rows, c, some, at,
                                   layer.k + page + head * layer.key_run());
                      });
            if (!layer.v) continue;
            uint8_t* const run = layer.v + page + head * layer.value_run();
            in_pieces(v + number * layer.v_head_dim, layer.v_head_dim, rows,
                      [&](const uint8_t* values, int64_t c, int64_t some) {
                          for (int64_t r = 0; r < rows; r++) {
                              put_value(layer.type, layer.v_head_dim, values + r * kStored, c, some,
                                        at + r, run);
                          }
                      });
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
        put_keys(type, head_dim, rows + i * info(type).size(head_dim), 0, 1, 0, head_dim, i, run);
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

void keys_to_values(DType type, int64_t head_dim, int64_t v_head_dim, const uint8_t* keys,
                    uint8_t* values) {
    if (type == DType::F32) {
        return turn_columns(reinterpret_cast<const uint32_t*>(keys), 0, v_head_dim,
                            reinterpret_cast<uint32_t*>(values));
    }
    if (type == DType::F16) {
        return turn_halves(reinterpret_cast<const uint16_t*>(keys), v_head_dim,
                           reinterpret_cast<uint16_t*>(values));
    }
    for (int64_t b = 0; b < v_head_dim / kQ; b++) {
        for (int64_t p = 0; p < kKvPage; p += kStrip) {
            turn_block(keys + strip_block(type, head_dim, p, b),
                       value_place(values, v_head_dim, b, p));
        }
    }
}

}  // namespace ggml
