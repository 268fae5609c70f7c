// Products of weights with many rows of activations, in tiles of 64 rows of each: a tile of the
// weights is read once for all of its activations. Quants are multiplied by the tensor cores,
// floats as floats, so that nothing is rounded. The sums have the order of lanes_sum() in rows.h,
// hence the bits of matmul.cu's kernel.
#include <type_traits>

#include "cuda/ops/rows.h"
#include "cuda/ops/tiles.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kTile = 64;  // rows of weights, and of activations
constexpr int kThreads = 256;
constexpr int kResults = kTile * kTile / kThreads;  // of a thread
// Chunks of kTogether groups that are this far apart add to the same sums.
constexpr int kApart = kWarp / kTogether;

// Where a thread stands when a chunk is loaded: one group of one row of each side.
struct Loader {
    int row, group;
    __device__ Loader() : row(int(threadIdx.x) / kTogether), group(int(threadIdx.x) % kTogether) {}
};

// A chunk of quants: 4 groups of 32.
template <DType type>
class ByteTile {
 public:
    static constexpr int kGroup = kQ;
    static constexpr int kWords = kTogether * kQ / 4;
    static constexpr int kStride = kWords + 4;  // lanes of a fragment in different banks
    static constexpr int kScales = has_one_scale(type) ? 1 : 2;
    struct Shared {
        alignas(16) unsigned w[kTile][kStride], x[kTile][kStride];
        float d[kTogether][kScales][kTile], m[kTogether][kScales][kTile];
        alignas(16) uint2 s[kTogether][kTile];  // DeviceQ8Scale
    };

    __device__ ByteTile(const DeviceInput& x, const DeviceRows& w, Shared& shared)
        : x_(x), w_(w), shared_(shared), groups_(x.cols / kQ) {
        const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
        row_ = warp % 4 * 16 + lane / 4;
        column_ = warp / 4 * 32;
        lane_ = lane;
    }

    // From memory to registers.
    __device__ void fetch(int chunk) {
        const Loader at;
        const int i = kTogether * chunk + at.group;
        const int row = int(blockIdx.x) * kTile + at.row, t = int(blockIdx.y) * kTile + at.row;
        group_ = {};
        if (row < w_.rows && i < groups_) {
            group_ = load_group<type>(w_.data + row * w_.stride,
                                      PlaneOffsets(plane_bytes(type), x_.cols), i);
        }
        q_[0] = q_[1] = {};
        s_ = {};
        if (t < x_.rows && i < groups_) {
            const uint4* q = reinterpret_cast<const uint4*>(x_.q + int64_t(t) * x_.cols + kQ * i);
            q_[0] = q[0];
            q_[1] = q[1];
            s_ = *reinterpret_cast<const uint2*>(x_.s + int64_t(t) * groups_ + i);
        }
    }
    // From registers to the memory of the block.
    __device__ void store() {
        const Loader at;
        for (int k = 0; k < 8; k++) shared_.w[at.row][8 * at.group + k] = group_.words[k];
        uint4* x = reinterpret_cast<uint4*>(&shared_.x[at.row][8 * at.group]);
        x[0] = q_[0];
        x[1] = q_[1];
        for (int k = 0; k < kScales; k++) {
            shared_.d[at.group][k][at.row] = group_.d[k];
            shared_.m[at.group][k][at.row] = group_.m[k];
        }
        shared_.s[at.group][at.row] = s_;
    }

    __device__ void multiply(float (&sum)[kTogether][kResults]) const {
        for (int u = 0; u < kTogether; u++) {
            const unsigned(*w)[kStride] = shared_.w + row_;
            const int word = 8 * u + lane_ % 4;
            const unsigned a[4] = {w[0][word], w[8][word], w[0][word + 4], w[8][word + 4]};
            float d[2][2] = {}, m[2][2] = {};  // of both rows
            for (int k = 0; k < kScales; k++) {
                for (int r = 0; r < 2; r++) {
                    d[r][k] = shared_.d[u][k][row_ + 8 * r];
                    m[r][k] = shared_.m[u][k][row_ + 8 * r];
                }
            }
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
                const uint2* s = &shared_.s[u][column_ + 8 * n + lane_ % 4 * 2];
                for (int k = 0; k < 4; k++) {
                    const uint2 scale = s[k % 2];
                    const float part = scaled_dot<type>(d[k / 2], m[k / 2], low[k], high[k],
                                                        int16_t(scale.y), int(scale.y) >> 16);
                    float& to = sum[u][4 * n + k];
                    to = fmaf(math::bits_as<float>(scale.x), part, to);
                }
            }
        }
    }

    // Where result i of this thread belongs in the tile.
    __device__ int row(int i) const { return row_ + i % 4 / 2 * 8; }
    __device__ int column(int i) const { return column_ + i / 4 * 8 + lane_ % 4 * 2 + i % 2; }

 private:
    const DeviceInput& x_;
    const DeviceRows& w_;
    Shared& shared_;
    const int groups_;
    int row_, column_, lane_;
    Group group_;
    uint4 q_[2];
    uint2 s_;
};

// A chunk of floats: 4 groups of 8.
template <DType type>
class FloatTile {
 public:
    static constexpr int kGroup = 8;
    static constexpr int kStride = kTile + 4;
    struct Shared {
        alignas(16) float w[kTogether * kGroup][kStride], x[kTogether * kGroup][kStride];
    };

    __device__ FloatTile(const DeviceInput& x, const DeviceRows& w, Shared& shared)
        : x_(x),
          w_(w),
          shared_(shared),
          row_(int(threadIdx.x) % 16 * 4),
          column_(int(threadIdx.x) / 16 * 4) {}

    __device__ void fetch(int chunk) {
        const Loader at;
        const int i = kTogether * chunk + at.group;
        const int row = int(blockIdx.x) * kTile + at.row, t = int(blockIdx.y) * kTile + at.row;
        for (int k = 0; k < kGroup; k++) eight_[k] = 0;
        if (row < w_.rows && kGroup * i < x_.cols) {
            load8<type>(w_.data + row * w_.stride, i, eight_);
        }
        v_[0] = v_[1] = {};
        if (t < x_.rows && kGroup * i < x_.cols) {
            const float4* v =
                reinterpret_cast<const float4*>(x_.x + int64_t(t) * x_.cols + kGroup * i);
            v_[0] = v[0];
            v_[1] = v[1];
        }
    }
    __device__ void store() {
        const Loader at;
        const float v[kGroup] = {v_[0].x, v_[0].y, v_[0].z, v_[0].w,
                                 v_[1].x, v_[1].y, v_[1].z, v_[1].w};
        for (int k = 0; k < kGroup; k++) {
            shared_.w[kGroup * at.group + k][at.row] = eight_[k];
            shared_.x[kGroup * at.group + k][at.row] = v[k];
        }
    }

    __device__ void multiply(float (&sum)[kTogether][kResults]) const {
        for (int u = 0; u < kTogether; u++) {
            for (int k = kGroup * u; k < kGroup * (u + 1); k++) {
                const float4 w = *reinterpret_cast<const float4*>(&shared_.w[k][row_]);
                const float4 x = *reinterpret_cast<const float4*>(&shared_.x[k][column_]);
                const float a[4] = {w.x, w.y, w.z, w.w}, b[4] = {x.x, x.y, x.z, x.w};
                for (int i = 0; i < kResults; i++) {
                    sum[u][i] = fmaf(a[i % 4], b[i / 4], sum[u][i]);
                }
            }
        }
    }

    __device__ int row(int i) const { return row_ + i % 4; }
    __device__ int column(int i) const { return column_ + i / 4; }

 private:
    const DeviceInput& x_;
    const DeviceRows& w_;
    Shared& shared_;
    const int row_, column_;
    float eight_[kGroup];
    float4 v_[2];
};

// Block (x, y): 64 rows of weights from 64 x on, 64 of activations from 64 y on.
template <DType type>
__global__ void __launch_bounds__(kThreads) tile_kernel(DeviceInput x, DeviceProduct p) {
    using Tile = std::conditional_t<is_float_type(type), FloatTile<type>, ByteTile<type>>;
    GGML_SHARED(typename Tile::Shared, shared, 1);
    Tile tile(x, p.w, shared[0]);
    constexpr int chunk = kTogether * Tile::kGroup;
    const int chunks = (x.cols + chunk - 1) / chunk;
    float total[kResults] = {};
    tile.fetch(0);
    for (int first = 0; first < kApart; first++) {
        float sum[kTogether][kResults] = {};
        for (int c = first; c < chunks; c += kApart) {
            __syncthreads();  // the chunk before has been used
            tile.store();
            __syncthreads();
            const int next = c + kApart < chunks ? c + kApart : first + 1;
            if (next < chunks) tile.fetch(next);
            tile.multiply(sum);
        }
        for (int i = 0; i < kResults; i++) {
            const float four = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
            total[i] = first == 0 ? four : total[i] + four;
        }
    }
    for (int i = 0; i < kResults; i++) {
        const int row = int(blockIdx.x) * kTile + tile.row(i);
        const int t = int(blockIdx.y) * kTile + tile.column(i);
        if (row >= p.w.rows || t >= x.rows) continue;
        p.y[int64_t(t) * p.w.rows + row] = total[i] + (p.bias ? p.bias[row] : 0.0f);
    }
}

}  // namespace

void matmul_tiles(DeviceStream* stream, const DeviceInput& x, const DeviceProduct& p) {
    const dim3 grid(blocks_for(p.w.rows, kTile), blocks_for(x.rows, kTile));
    with_type(p.w.type, [&](auto tag) {
        launch<tile_kernel<decltype(tag)::type>>(stream, grid, kThreads, x, p);
    });
}

}  // namespace ggml::GGML_GPU
