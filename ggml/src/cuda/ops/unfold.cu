// Rows of the CPU's to rows of a device: what it gets from memory that the CPU computes with, too.
#include <iterator>

#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/ops/rows.h"
#include "cuda/pack.h"
#include "formats/members.h"
#include "ggml/tensor.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 128;

// Stores in one piece what is aligned.
struct StoreWord {
    template <int n>
    __device__ static void put(uint8_t* to, const uint8_t* from) {
        if constexpr (n == 16) {
            store<uint4>(to, from);
        } else if constexpr (n == 8) {
            store<uint2>(to, from);
        } else if constexpr (n == 4) {
            store<unsigned>(to, from);
        } else if constexpr (n == 2) {
            store<uint16_t>(to, from);
        } else {
            *to = *from;
        }
    }
    template <typename Word>
    __device__ static void store(uint8_t* to, const uint8_t* from) {
        Word word;
        std::memcpy(&word, from, sizeof word);
        *reinterpret_cast<Word*>(to) = word;
    }
};

// The block of row r in a block of a strip. Neighbouring rows are in neighbouring lanes, so that a
// warp reads whole sectors.
template <DType type, typename Block>
__device__ inline void load_block(const uint8_t* from, int r, Block& block) {
    constexpr Members format = kFormats[format_index(type)];
    auto* to = reinterpret_cast<uint8_t*>(&block);
    for (const Member& m : format.members) {
        for (int i = 0; i < m.bytes; i += m.unit) {
            const uint8_t* unit = from + kStrip * i + m.unit * r;
            if (m.unit == 4) {
                const auto word = load<unsigned>(unit);
                std::memcpy(to + i, &word, 4);
            } else if (m.unit == 2) {
                const auto half = load<uint16_t>(unit);
                std::memcpy(to + i, &half, 2);
            } else {
                to[i] = *unit;
            }
        }
        to += m.bytes;
        from += kStrip * m.bytes;
    }
}

// What is between the planes of a row.
__device__ inline void clear(uint8_t* row, int64_t from, int64_t to) {
    for (; from < to; from++) row[from] = 0;
}

// A thread a block: by rows of a strip, then by its blocks, then by strips.
template <DType type, typename Block>
__global__ void unfold_kernel(const uint8_t* from, DeviceRows to) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    const int n = to.cols / BlockTraits<Block>::size, r = int(i % kStrip);
    const int64_t block = i / kStrip % n, row = i / kStrip / n * kStrip + r;
    if (row >= to.rows) return;
    alignas(16) Block stored;
    load_block<type>(from + i / kStrip * kStrip * int64_t(sizeof(Block)), r, stored);
    constexpr PlaneBytes bytes = plane_bytes(type);
    const PlaneOffsets at(bytes, to.cols);
    auto* out = const_cast<uint8_t*>(to.data) + row * to.stride;
    pack_block<type, StoreWord>(stored, block, at, out);
    if (block > 0) return;
    const int64_t groups = to.cols / kQ;
    clear(out, groups * bytes.low, at.high);
    clear(out, at.high + groups * bytes.high, at.scale);
    clear(out, at.scale + groups * bytes.scale, at.super);
    clear(out, at.super + groups * kQ / kQK * bytes.super, at.end);
}

// Rows of floats, 16 bytes a thread. Block y is of row y.
__global__ void copy_rows_kernel(const uint8_t* from, int row_bytes, DeviceRows to) {
    const int i = (int(blockIdx.x) * kThreads + int(threadIdx.x)) * 16;
    if (i >= row_bytes) return;
    auto* out = const_cast<uint8_t*>(to.data) + blockIdx.y * to.stride + i;
    *reinterpret_cast<uint4*>(out) = load16(from + int64_t(blockIdx.y) * row_bytes + i);
}

}  // namespace

void unfold(DeviceStream* stream, const uint8_t* from, const DeviceRows& to) {
    const int64_t rows = (to.rows + kStrip - 1) / kStrip * kStrip;
#define UNFOLD(name, suffix, block, ...)                                                 \
    if (to.type == DType::name) {                                                        \
        return launch<unfold_kernel<DType::name, Block##name>>(                          \
            stream, blocks_for(rows * (to.cols / block), kThreads), kThreads, from, to); \
    }
    GGML_PLAIN_FORMATS(UNFOLD)
    GGML_K_FORMATS(UNFOLD)
#undef UNFOLD
    const int64_t bytes = info(to.type).size(to.cols);
    launch<copy_rows_kernel>(stream, dim3(blocks_for(bytes / 16, kThreads), unsigned(to.rows)),
                             kThreads, from, int(bytes), to);
}

}  // namespace ggml::GGML_GPU
