// Products of weights with a few rows of activations: a block of threads has some rows of weights.
#include "cuda/ops.h"
#include "cuda/ops/products.h"
#include "cuda/ops/tiles.h"
#include "ggml/context.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kMost = 8;      // rows of activations that share a reading of the weights
constexpr int kBlocks = 256;  // enough for a card, whose processors have two of them each

// Block (x, y, z) takes `planned` rows of weight z, and `most` rows of activations or, of a
// mixture, one row with one of its experts.
template <DType type, int most>
__global__ void __launch_bounds__(kRowThreads)
    matmul_kernel(DeviceInput x, SameInput products, Mixture mixture, int planned, int lanes) {
    using Rows = Products<type, most>;
    GGML_SHARED(typename Rows::Shared, shared, 1);
    const DeviceProduct p = products.own();
    const Share share = few_share(x, p, mixture, most);
    const int first = int(blockIdx.x) * planned;
    if (share.rows.n <= 0 || first >= p.w.rows) return;
    const int n_rows = p.w.rows - first < planned ? p.w.rows - first : planned;
    Rows::multiply([&](int r) { return share.w + (first + r) * p.w.stride; }, n_rows, planned, x,
                   share.rows.x(0), share.rows.n, lanes, shared[0]);
    const int t = int(threadIdx.x) % most, r = int(threadIdx.x) / most;
    if (r >= n_rows || t >= share.rows.n) return;
    float sum = shared[0].sum[int(threadIdx.x)];
    if (share.scale) sum *= *share.scale;
    if (share.bias) sum += share.bias[first + r];
    p.y[share.rows.y(t) * p.y_row + first + r] = sum;
}

// n products of one type. pairs: of a mixture.
template <DType type, int most>
void launch_rows(DeviceStream* stream, const DeviceInput& x, const SameInput& products, int n,
                 const Mixture& mixture, int pairs) {
    int rows = 0;
    for (int i = 0; i < n; i++) rows = products.p[i].w.rows > rows ? products.p[i].w.rows : rows;
    const unsigned calls = mixture.frame ? unsigned(pairs) : blocks_for(x.rows, most);
    // Fewer rows of weights in a block where there would be too few blocks for a card, and a warp
    // has no more. Of floats, a block has more bytes on their way.
    constexpr int all = Products<type, most>::kRows;
    int planned = all;
    if constexpr (all > 8 && !is_float_type(type)) {
        const bool few = int64_t(rows) * calls * n < kBlocks * all;
        if (few && QuantProducts<type, most>::lanes_of(x.cols / kQ) > 8) planned = all / 2;
    }
    const dim3 grid(blocks_for(rows, planned), calls, unsigned(n));
    launch<matmul_kernel<type, most>>(stream, grid, kRowThreads, x, products, mixture, planned,
                                      lanes_of(products.p[0]));
}

constexpr int kFoldedThreads = 64, kFoldedRows = kFoldedThreads / kStrip;

// Of rows of neurons that are folded on the CPU: it has a sum for each eighth of a row and adds
// them last. Eight neighbouring lanes have a row, and each of them an eighth.
template <DType type>
__global__ void folded_kernel(DeviceInput x, SameInput products, Mixture mixture) {
    const DeviceProduct p = products.own();
    const Share share = few_share(x, p, mixture, 1);
    if (share.rows.n <= 0) return;  // a whole block
    const int n = int(blockIdx.x) * kFoldedRows + int(threadIdx.x) / kStrip;
    const int eighth = int(threadIdx.x) % kStrip, groups = x.cols / kQ / kStrip;
    // Past the end the last row again: all lanes of a warp come to the shuffles.
    const uint8_t* row = share.w + (n < p.w.rows ? n : p.w.rows - 1) * p.w.stride;
    const PlaneOffsets at(plane_bytes(type), x.cols);
    constexpr int some = has_parts(type) ? kPart : 1;  // groups at a time
    float sum = 0;
    for (int begin = eighth * groups; begin < (eighth + 1) * groups; begin += some) {
        alignas(16) float terms[some * term_floats(type)];
        alignas(16) float inputs[some * input_floats(type) + 4];
        float2 unit = {};
        for (int i = 0; i < some; i++) {
            const InputGroup input = load_input(x, share.rows.x(0), begin + i);
            const StoredGroup stored = load_stored<type>(row, at, begin + i);
            unsigned words[8];
            quants<type>(stored, words);
            const GroupScales s = scales<type>(stored);
            store_term<type>(terms + i * term_floats(type), term_of<type>(words, s, input));
            store_input<type>(inputs + i * input_floats(type), input);
            if (i == 0) unit = {s.d, s.m};
        }
        sum = add_terms<type>(sum, terms, inputs, &unit, some);
    }
    for (int apart = kStrip / 2; apart > 0; apart /= 2) {
        sum += __shfl_xor_sync(kAll, sum, unsigned(apart));
    }
    if (eighth > 0 || n >= p.w.rows) return;
    p.y[share.rows.y(0) * p.y_row + n] = sum + (share.bias ? share.bias[n] : 0.0f);
}

bool is_folded(const SameInput& products) {
    const DeviceProduct& p = products.p[0];
    return p.of_neurons && can_fold(p.w.type, p.w.cols);
}

void launch_folded(DeviceStream* stream, const DeviceInput& x, const SameInput& products, int n,
                   const Mixture& mixture, int pairs) {
    int rows = 0;
    for (int i = 0; i < n; i++) rows = products.p[i].w.rows > rows ? products.p[i].w.rows : rows;
    with_type(products.p[0].w.type, [&](auto tag) {
        constexpr DType type = decltype(tag)::type;
        if constexpr (!is_float_type(type)) {
            const dim3 grid(blocks_for(rows, kFoldedRows), unsigned(pairs), unsigned(n));
            launch<folded_kernel<type>>(stream, grid, kFoldedThreads, x, products, mixture);
        }
    });
}

}  // namespace

int lanes_of(const DeviceProduct& product) {
    return product.of_neurons ? 8 : float_lanes();
}

int float_lanes() {
    static const int lanes = ggml::float_lanes(select_kernels());
    return lanes < 8 ? 8 : lanes;
}

void launch_few(DeviceStream* stream, const DeviceInput& x, const SameInput& products, int n,
                const Mixture& mixture, int pairs) {
    with_type(products.p[0].w.type, [&](auto tag) {
        constexpr DType type = decltype(tag)::type;
        if (mixture.frame || x.rows == 1) {
            launch_rows<type, 1>(stream, x, products, n, mixture, pairs);
        } else {
            launch_rows<type, kMost>(stream, x, products, n, mixture, pairs);
        }
    });
}

void matmul(DeviceStream* stream, const DeviceInput& x, const DeviceProduct* products, int n) {
    const auto launch_them = x.rows >= kDeviceTileRows ? launch_tiles : launch_few;
    by_type(products, n, [&](const SameInput& same, int count) {
        (is_folded(same) ? launch_folded : launch_them)(stream, x, same, count, {}, x.rows);
    });
}

// Of a mixture's experts with the rows that chose them, by the same kernels.
void matmul_experts(DeviceStream* stream, const DeviceInput& x, const DeviceChoice& choice,
                    const DeviceFrames& frames, const DeviceProduct* products, int n) {
    const int pairs = choice.pairs();
    Mixture mixture;
    mixture.expert = choice.expert;
    mixture.first = choice.first;
    mixture.pair = choice.pair;
    mixture.frame = frames.frame;
    mixture.stride = frames.stride;
    mixture.n_expert = choice.n_expert;
    mixture.per = x.rows == choice.rows ? choice.n_used : 1;
    // Where experts have two rows on average, reading each of them once pays for tiles.
    const auto launch_them = pairs >= 2 * choice.n_expert ? launch_tiles : launch_few;
    by_type(products, n, [&](const SameInput& same, int count) {
        (is_folded(same) ? launch_folded : launch_them)(stream, x, same, count, mixture, pairs);
    });
}

}  // namespace ggml::GGML_GPU
