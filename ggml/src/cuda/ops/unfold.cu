// Rows of the CPU's to rows of a device: what it gets from memory that the CPU computes with, too.
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/ops/rows.h"
#include "cuda/pack.h"
#include "ggml/tensor.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 128;

// Row r of a block of a strip (tensor.h). Neighbouring rows are in neighbouring lanes, so that a
// warp reads whole sectors.
struct StripBlock {
    const uint8_t* from;
    int r;

    __device__ uint32_t word(size_t at) const { return load<uint32_t>(from + kStrip * at + 4 * r); }
    __device__ uint32_t half(size_t at) const { return load<uint16_t>(from + kStrip * at + 2 * r); }
    __device__ uint32_t byte(size_t at) const { return from[kStrip * at + r]; }
};

// A block that lies by itself, at any address.
struct WholeBlock {
    const uint8_t* from;

    __device__ uint32_t word(size_t at) const { return half(at) | half(at + 2) << 16; }
    __device__ uint32_t half(size_t at) const { return byte(at) | byte(at + 1) << 8; }
    __device__ uint32_t byte(size_t at) const { return from[at]; }
};

// The first n bytes of some words to an address that is a multiple of n.
template <int n>
__device__ inline void put(uint8_t* to, const uint32_t* words) {
    if constexpr (n >= 16) {
        for (int i = 0; i < n / 16; i++) {
            const uint32_t* w = words + 4 * i;
            reinterpret_cast<uint4*>(to)[i] = {w[0], w[1], w[2], w[3]};
        }
    } else if constexpr (n == 8) {
        *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    } else if constexpr (n == 4) {
        *reinterpret_cast<uint32_t*>(to) = words[0];
    } else if constexpr (n == 2) {
        *reinterpret_cast<uint16_t*>(to) = uint16_t(words[0]);
    } else if constexpr (n == 1) {
        *to = uint8_t(words[0]);
    }
}

// What is between the planes of a row.
__device__ inline void clear(uint8_t* row, int64_t from, int64_t to) {
    for (; from < to; from++) row[from] = 0;
}

// Group g of a row to its planes.
template <DType type>
__device__ inline void put_group(const PackedGroup& group, int g, int64_t row,
                                 const DeviceRows& to) {
    constexpr int groups = BlockOf<type>::weights / kQ;  // of a block
    constexpr PlaneBytes bytes = plane_bytes(type);
    const int n = to.cols / kQ;
    const PlaneOffsets at(bytes, to.cols);
    auto* out = const_cast<uint8_t*>(to.data) + row * to.stride;
    put<bytes.low>(out + g * bytes.low, group.low);
    put<bytes.high>(out + at.high + g * bytes.high, group.high);
    put<bytes.scale>(out + at.scale + g * bytes.scale, &group.scale);
    if (g % groups == 0) put<bytes.super>(out + at.super + g / groups * bytes.super, &group.super);
    if (g > 0) return;
    clear(out, n * bytes.low, at.high);
    clear(out, at.high + n * bytes.high, at.scale);
    clear(out, at.scale + n * bytes.scale, at.super);
    clear(out, at.super + n / 8 * bytes.super, at.end);
}

// A thread a group of 32 weights: by rows of a strip, then by its groups, then by strips.
template <DType type>
__global__ void unfold_kernel(const uint8_t* from, DeviceRows to) {
    constexpr int groups = BlockOf<type>::weights / kQ;  // of a block
    constexpr int block_bytes = int(sizeof(typename BlockOf<type>::Block));
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    const int n = to.cols / kQ, r = int(i % kStrip), g = int(i / kStrip % n);
    const int64_t strip = i / kStrip / n, row = strip * kStrip + r;
    if (row >= to.rows) return;
    const int64_t block = strip * (n / groups) + g / groups;
    const PackedGroup group =
        pack_group<type>(StripBlock{from + block * kStrip * block_bytes, r}, g % groups);
    put_group<type>(group, g, row, to);
}

// The same of rows of neurons: of folded ones, of tiles, or of rows as stored.
template <DType type>
__global__ void unfold_neurons_kernel(NeuronRows from, DeviceRows to) {
    using Tiles = NeuronRows::Tiles;
    constexpr int groups = BlockOf<type>::weights / kQ;  // of a block
    constexpr int block_bytes = int(sizeof(typename BlockOf<type>::Block));
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    const int n = to.cols / kQ, r = int(i % kStrip), g = int(i / kStrip % n);
    const int64_t strip = i / kStrip / n, row = strip * kStrip + r;
    if (row >= to.rows) return;
    const int block = g / groups, eighth = n / groups / kStrip;  // blocks of an eighth
    PackedGroup group;
    if (from.tiles != Tiles::none) {
        const uint8_t* at =
            from.data + strip * kStrip * from.stride + int64_t(block) * kStrip * block_bytes;
        group = from.tiles == Tiles::strips
                    ? pack_group<type>(StripBlock{at, r}, g % groups)
                    : pack_group<type>(WholeBlock{at + r * block_bytes}, g % groups);
    } else if (from.folded) {
        const uint8_t* at = from.data + row * from.stride + block % eighth * kStrip * block_bytes;
        group = pack_group<type>(StripBlock{at, block / eighth}, g % groups);
    } else {
        const uint8_t* at = from.data + row * from.stride + int64_t(block) * block_bytes;
        group = pack_group<type>(WholeBlock{at}, g % groups);
    }
    put_group<type>(group, g, row, to);
}

// Rows of floats, 16 bytes a thread. Block y is of row y.
__global__ void copy_rows_kernel(const uint8_t* from, int64_t stride, int row_bytes,
                                 DeviceRows to) {
    const int i = (int(blockIdx.x) * kThreads + int(threadIdx.x)) * 16;
    if (i >= row_bytes) return;
    auto* out = const_cast<uint8_t*>(to.data) + blockIdx.y * to.stride + i;
    *reinterpret_cast<uint4*>(out) = load16(from + int64_t(blockIdx.y) * stride + i);
}

// The same from any address, four bytes a thread.
__global__ void copy_words_kernel(NeuronRows from, int row_bytes, DeviceRows to) {
    const int i = (int(blockIdx.x) * kThreads + int(threadIdx.x)) * 4;
    if (i >= row_bytes) return;
    auto* out = const_cast<uint8_t*>(to.data) + blockIdx.y * to.stride + i;
    const WholeBlock row{from.data + int64_t(blockIdx.y) * from.stride};
    *reinterpret_cast<uint32_t*>(out) = row.word(size_t(i));
}

void copy_rows(DeviceStream* stream, const uint8_t* from, int64_t stride, const DeviceRows& to) {
    const int64_t bytes = info(to.type).size(to.cols);
    launch<copy_rows_kernel>(stream, dim3(blocks_for(bytes / 16, kThreads), unsigned(to.rows)),
                             kThreads, from, stride, int(bytes), to);
}

}  // namespace

void unfold(DeviceStream* stream, const uint8_t* from, const DeviceRows& to) {
    const int64_t rows = (to.rows + kStrip - 1) / kStrip * kStrip;
#define UNFOLD(name, ...)                                                             \
    if (to.type == DType::name) {                                                     \
        return launch<unfold_kernel<DType::name>>(                                    \
            stream, blocks_for(rows * (to.cols / kQ), kThreads), kThreads, from, to); \
    }
    GGML_PLAIN_FORMATS(UNFOLD)
    GGML_K_FORMATS(UNFOLD)
#undef UNFOLD
    copy_rows(stream, from, info(to.type).size(to.cols), to);
}

void unfold_neurons(DeviceStream* stream, const NeuronRows& from, const DeviceRows& to) {
    const int64_t rows = (to.rows + kStrip - 1) / kStrip * kStrip;
#define UNFOLD(name, ...)                                                             \
    if (to.type == DType::name) {                                                     \
        return launch<unfold_neurons_kernel<DType::name>>(                            \
            stream, blocks_for(rows * (to.cols / kQ), kThreads), kThreads, from, to); \
    }
    GGML_PLAIN_FORMATS(UNFOLD)
    GGML_K_FORMATS(UNFOLD)
#undef UNFOLD
    const auto address = reinterpret_cast<uintptr_t>(from.data);
    if (address % 16 == 0 && from.stride % 16 == 0) {
        return copy_rows(stream, from.data, from.stride, to);
    }
    const int64_t bytes = info(to.type).size(to.cols);
    launch<copy_words_kernel>(stream, dim3(blocks_for(bytes / 4, kThreads), unsigned(to.rows)),
                              kThreads, from, int(bytes), to);
}

}  // namespace ggml::GGML_GPU
