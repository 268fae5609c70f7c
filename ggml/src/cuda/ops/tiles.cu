// Products of weights with many rows of activations, in tiles of rows of each: a tile of the
// weights is read once for all of its activations. Quants are multiplied by the tensor cores,
// floats as floats, so that nothing is rounded. The bits are those of the CPU, hence of matmul.cu's
// kernel: every result has its chain (terms.h) or, of floats, its sums side by side (products.h).
#include <type_traits>

#include "cuda/ops/products.h"
#include "cuda/ops/tiles.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kThreads = 256;
constexpr int kResults = 16;  // of a thread
constexpr int kGroups = 4;    // of a chunk of quants

// Four bytes less a bias, as signed bytes. The bytes are less than 128, and the bias is 32 or less.
template <int bias>
__device__ inline unsigned less_bias(unsigned bytes) {
    if constexpr (bias == 0) return bytes;
    return ((bytes | 0x80808080) - bias * 0x01010101u) ^ 0x80808080;
}

// A chunk of quants: 4 groups of 32 columns.
template <DType type>
class ByteTile {
    static constexpr Terms kTerms = terms_of(type);
    static constexpr int kHalves = has_one_scale(type) ? 1 : 2;
    static constexpr int kStride = kGroups * kQ / 4 + 4;  // lanes of a fragment in different banks

 public:
    static constexpr int kColumns = kGroups * kQ;
    static constexpr int kTile = 64;  // rows of weights, and of activations
    static constexpr int weight_rows(int) { return kTile; }

    static constexpr int kWide = kTile + 8;  // threads of a warp store in different banks
    // What formats do not have is an array of one row.
    static constexpr int rows_if(bool has, int rows) { return has ? rows : 1; }
    struct Shared {
        alignas(16) unsigned w[kTile][kStride], x[kTile][kStride];
        float x_scale[kGroups][kWide];
        float d[rows_if(!has_parts(type), kGroups)][kWide];
        float m[rows_if(kTerms == Terms::with_min || kTerms == Terms::halves, kGroups)][kWide];
        int scale[rows_if(has_parts(type), kGroups)][kHalves][kWide];
        int min[rows_if(kTerms == Terms::and_min, kGroups)][2][kWide];
        int sums[rows_if(kTerms == Terms::and_min, kGroups)][2][kWide];  // of x
        // Of the groups of a part: m * min, and x.d * sum of x.
        float mins[rows_if(kTerms == Terms::and_mins, kPart)][kWide];
        float x_sum[kTerms == Terms::and_mins ? kPart : rows_if(kTerms == Terms::with_min, kGroups)]
                   [kWide];
        float2 unit[rows_if(has_parts(type), kTile)];
    };

    __device__ ByteTile(const DeviceInput& x, const DeviceProduct& p, const Share& share, int,
                        Shared& shared)
        : x_(x), p_(p), share_(share), shared_(shared), groups_(x.cols / kQ) {
        const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
        row_ = warp % 4 * 16 + lane / 4;
        column_ = warp / 4 * 32;
        lane_ = lane;
        // Past the end some row, whose results are not stored.
        x_row_ = own_row() < share.rows.n ? share.rows.x(own_row()) : 0;
    }

    // From memory to registers: one group of one row of each side.
    __device__ void fetch(int chunk) {
        const int i = kGroups * chunk + group();
        const int row = int(blockIdx.x) * kTile + own_row();
        stored_ = {};
        input_ = {};
        if (i >= groups_) return;
        if (row < p_.w.rows) {
            stored_ = load_stored<type>(share_.w + row * p_.w.stride,
                                        PlaneOffsets(plane_bytes(type), x_.cols), i);
        }
        input_ = load_input(x_, x_row_, i);
    }
    // From registers to the memory of the block.
    __device__ void store(int chunk) {
        const int at = own_row(), g = group(), of_part = (kGroups * chunk + g) % kPart;
        unsigned words[8];
        quants<type>(stored_, words);
        const GroupScales s = scales<type>(stored_);
        uint4* w = reinterpret_cast<uint4*>(&shared_.w[at][8 * g]);
        uint4* x = reinterpret_cast<uint4*>(&shared_.x[at][8 * g]);
        for (unsigned& word : words) word = less_bias<quant_bias(type)>(word);
        for (int k = 0; k < 2; k++) {
            w[k] = {words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]};
            x[k] = {input_.words[4 * k], input_.words[4 * k + 1], input_.words[4 * k + 2],
                    input_.words[4 * k + 3]};
        }
        shared_.x_scale[g][at] = input_.d;
        if constexpr (!has_parts(type)) {
            shared_.d[g][at] = plane_bytes(type).super ? s.d * float(s.scale[0]) : s.d;
        } else {
            for (int h = 0; h < kHalves; h++) shared_.scale[g][h][at] = s.scale[h];
            if (of_part == kGroups) shared_.unit[at] = {s.d, s.m};  // read at the part's end
        }
        if constexpr (kTerms == Terms::halves) {
            shared_.m[g][at] = s.m;
        } else if constexpr (kTerms == Terms::with_min) {
            shared_.m[g][at] = s.m;
            shared_.x_sum[g][at] = scaled_sum(input_);
        } else if constexpr (kTerms == Terms::and_mins) {
            shared_.mins[of_part][at] = s.m * float(s.min[0]);
            shared_.x_sum[of_part][at] = scaled_sum(input_);
        } else if constexpr (kTerms == Terms::and_min) {
            for (int h = 0; h < 2; h++) shared_.min[g][h][at] = s.min[h];
            shared_.sums[g][0][at] = input_.s0;
            shared_.sums[g][1][at] = input_.s1;
        }
    }

    // Chunk `chunk`, which is stored, to the results. What is past the end adds 0.
    __device__ void multiply(int chunk) {
        for (int g = 0; g < kGroups; g++) {
            const unsigned(*w)[kStride] = shared_.w + row_;
            const int word = 8 * g + lane_ % 4;
            const unsigned a[4] = {w[0][word], w[8][word], w[0][word + 4], w[8][word + 4]};
            for (int n = 0; n < 4; n++) {
                const unsigned* x = shared_.x[column_ + 8 * n + lane_ / 4];
                const unsigned b[2] = {x[word], x[word + 4]};
                int low[4] = {}, high[4] = {};
                if constexpr (has_one_scale(type)) {
                    multiply_bytes(low, a, b);
                } else {
                    multiply_bytes(low, a[0], a[1], b[0]);
                    multiply_bytes(high, a[2], a[3], b[1]);
                }
                for (int k = 0; k < 4; k++) add(g, 4 * n + k, low[k], high[k]);
            }
        }
        if (has_parts(type) && chunk % 2 == 1) end_part();
    }

    // Where result i of this thread belongs in the tile, and what it is.
    __device__ bool is_mine(int) const { return true; }
    __device__ int row(int i) const { return row_ + i % 4 / 2 * 8; }
    __device__ int column(int i) const { return column_ + i / 4 * 8 + lane_ % 4 * 2 + i % 2; }
    __device__ float result(int i) { return sum_[i]; }

 private:
    // Where a thread stands when a chunk is loaded.
    __device__ static int own_row() { return int(threadIdx.x) / kGroups; }
    __device__ static int group() { return int(threadIdx.x) % kGroups; }

    // The integers of group g to result i.
    __device__ void add(int g, int i, int low, int high) {
        const int r = row(i), t = column(i);
        const float x_scale = shared_.x_scale[g][t];
        if constexpr (kTerms == Terms::halves) {
            const float first = shared_.d[g][r] * float(low);
            sum_[i] = fmaf(x_scale, fmaf(shared_.m[g][r], float(high), first), sum_[i]);
        } else if constexpr (!has_parts(type)) {
            sum_[i] = fmaf(shared_.d[g][r] * x_scale, float(low), sum_[i]);
            if constexpr (kTerms == Terms::with_min) {
                sum_[i] = fmaf(shared_.m[g][r], shared_.x_sum[g][t], sum_[i]);
            }
        } else {
            int exact = low * shared_.scale[g][0][r];
            if constexpr (kHalves == 2) exact += high * shared_.scale[g][1][r];
            part_[i] = fmaf(x_scale, float(exact), part_[i]);
        }
        if constexpr (kTerms == Terms::and_min) {
            const int offset = shared_.sums[g][0][t] * shared_.min[g][0][r] +
                               shared_.sums[g][1][t] * shared_.min[g][1][r];
            part_min_[i] = fmaf(x_scale, float(offset), part_min_[i]);
        }
    }
    __device__ void end_part() {
        for (int i = 0; i < kResults; i++) {
            const float2 unit = shared_.unit[row(i)];
            sum_[i] = fmaf(unit.x, part_[i], sum_[i]);
            part_[i] = 0;
            if constexpr (kTerms == Terms::and_min) {
                sum_[i] = fmaf(-unit.y, part_min_[i], sum_[i]);
                part_min_[i] = 0;
            }
        }
        if constexpr (kTerms == Terms::and_mins) {
            for (int g = 0; g < kPart; g++) {
                for (int i = 0; i < kResults; i++) {
                    sum_[i] = fmaf(-shared_.mins[g][row(i)], shared_.x_sum[g][column(i)], sum_[i]);
                }
            }
        }
    }

    const DeviceInput& x_;
    const DeviceProduct& p_;
    const Share& share_;
    Shared& shared_;
    const int groups_;
    int row_, column_, lane_;
    int64_t x_row_;
    StoredGroup stored_;
    InputGroup input_;
    float sum_[kResults] = {}, part_[kResults] = {}, part_min_[kResults] = {};
};

// A chunk of floats: 32 columns, zeros past the end. A thread has four of the `lanes` sums of 4 x 4
// results.
template <DType type>
class FloatTile {
    static constexpr int kStride = 32 + 4;

 public:
    static constexpr int kColumns = 32;
    static constexpr int kTile = 32;  // rows of activations
    static constexpr int weight_rows(int lanes) { return 512 / lanes; }

    struct Shared {
        alignas(16) float w[64][kStride], x[kTile][kStride];
    };

    __device__ FloatTile(const DeviceInput& x, const DeviceProduct& p, const Share& share,
                         int lanes, Shared& shared)
        : x_(x),
          p_(p),
          share_(share),
          shared_(shared),
          lanes_(lanes),
          quarter_(int(threadIdx.x) % (lanes / 4)),
          row_(int(threadIdx.x) / (lanes / 4) / 8 * 4),
          column_(int(threadIdx.x) / (lanes / 4) % 8 * 4),
          x_row_(int(threadIdx.x) / 8 < share.rows.n ? share.rows.x(int(threadIdx.x) / 8) : 0) {}

    __device__ void fetch(int chunk) {
        const int row = int(blockIdx.x) * weight_rows(lanes_) + int(threadIdx.x) / 4;
        const int eighth = kColumns / 8 * chunk + int(threadIdx.x) % 4;
        for (float& v : eight_) v = 0;
        if (int(threadIdx.x) / 4 < weight_rows(lanes_) && row < p_.w.rows && 8 * eighth < x_.cols) {
            load8<type>(share_.w + row * p_.w.stride, eighth, eight_);
        }
        const int column = kColumns * chunk + int(threadIdx.x) % 8 * 4;
        four_ = {};
        if (column < x_.cols) {
            four_ = *reinterpret_cast<const float4*>(x_.x + x_row_ * x_.cols + column);
        }
    }
    __device__ void store(int) {
        float4* w =
            reinterpret_cast<float4*>(&shared_.w[threadIdx.x / 4][int(threadIdx.x) % 4 * 8]);
        w[0] = {eight_[0], eight_[1], eight_[2], eight_[3]};
        w[1] = {eight_[4], eight_[5], eight_[6], eight_[7]};
        *reinterpret_cast<float4*>(&shared_.x[threadIdx.x / 8][int(threadIdx.x) % 8 * 4]) = four_;
    }

    __device__ void multiply(int) {
        for (int c = 4 * quarter_; c < kColumns; c += lanes_) {
            float4 w[4], x[4];
            for (int k = 0; k < 4; k++) {
                w[k] = *reinterpret_cast<const float4*>(&shared_.w[row_ + k][c]);
                x[k] = *reinterpret_cast<const float4*>(&shared_.x[column_ + k][c]);
            }
            for (int i = 0; i < kResults; i++) add_products(sum_[i], w[i % 4], x[i / 4]);
        }
    }

    // The threads of a result take turns.
    __device__ bool is_mine(int i) const { return i % (lanes_ / 4) == quarter_; }
    __device__ int row(int i) const { return row_ + i % 4; }
    __device__ int column(int i) const { return column_ + i / 4; }
    __device__ float result(int i) { return sum_of_lanes(sum_[i], lanes_); }

 private:
    const DeviceInput& x_;
    const DeviceProduct& p_;
    const Share& share_;
    Shared& shared_;
    const int lanes_, quarter_, row_, column_;
    const int64_t x_row_;
    float eight_[8];
    float4 four_;
    float sum_[kResults][4] = {};
};

template <DType type>
using Tile = std::conditional_t<is_float_type(type), FloatTile<type>, ByteTile<type>>;

// Block (x, y, z): a tile of rows of weight z, and a tile of activations: of a mixture those of one
// expert.
template <DType type>
__global__ void __launch_bounds__(kThreads, 2)
    tile_kernel(DeviceInput x, SameInput products, Mixture mixture, int lanes) {
    using OfType = Tile<type>;
    GGML_SHARED(typename OfType::Shared, shared, 1);
    const DeviceProduct p = products.own();
    const Share share = tile_share(x, p, mixture, OfType::kTile);
    const int first = int(blockIdx.x) * OfType::weight_rows(lanes);
    if (share.rows.n <= 0 || first >= p.w.rows) return;
    OfType tile(x, p, share, lanes, shared[0]);
    const int chunks = (x.cols + OfType::kColumns - 1) / OfType::kColumns;
    tile.fetch(0);
    for (int c = 0; c < chunks; c++) {
        __syncthreads();  // the chunk before has been used
        tile.store(c);
        __syncthreads();
        if (c + 1 < chunks) tile.fetch(c + 1);
        tile.multiply(c);
    }
    for (int i = 0; i < kResults; i++) {
        const int row = first + tile.row(i), t = tile.column(i);
        float sum = tile.result(i);
        if (row >= p.w.rows || t >= share.rows.n || !tile.is_mine(i)) continue;
        if (share.scale) sum *= *share.scale;
        if (share.bias) sum += share.bias[row];
        p.y[share.rows.y(t) * p.y_row + row] = sum;
    }
}

}  // namespace

void launch_tiles(DeviceStream* stream, const DeviceInput& x, const SameInput& products, int n,
                  const Mixture& mixture, int pairs) {
    int rows = 0;
    for (int i = 0; i < n; i++) rows = products.p[i].w.rows > rows ? products.p[i].w.rows : rows;
    with_type(products.p[0].w.type, [&](auto tag) {
        constexpr DType type = decltype(tag)::type;
        using OfType = Tile<type>;
        const int lanes = lanes_of(products.p[0]);
        // Of a mixture, all tiles but one of each expert are full.
        const int alone = mixture.n_expert < pairs ? mixture.n_expert : pairs;
        const unsigned tiles = mixture.frame ? unsigned(pairs / OfType::kTile + alone)
                                             : blocks_for(x.rows, OfType::kTile);
        const dim3 grid(blocks_for(rows, OfType::weight_rows(lanes)), tiles, unsigned(n));
        launch<tile_kernel<type>>(stream, grid, kThreads, x, products, mixture, lanes);
    });
}

}  // namespace ggml::GGML_GPU
