// What the tests of a device's operators share: numbers, and matrices and activations in the form
// of the CPU and in that of the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "cuda/ops.h"
#include "ggml/math.h"
#include "ggml/random_blocks.h"
#include "ggml/sketch.h"
#include "gpu/device_arrays.h"
#include "kernels/kernels.h"

namespace gpu_test {

using namespace ggml;

using Floats = std::vector<float>;

inline const DeviceOps& ops = GGML_GPU::ops();
inline Context context(2);
inline std::mt19937 rng;

inline Floats normal(int64_t n, float scale = 1, float mean = 0) {
    std::normal_distribution<float> d(mean, scale);
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = d(rng);
    return v;
}

// What the results of one order were, to be met again in the others.
constexpr uint64_t kNoDigest = 0xcbf29ce484222325;
inline uint64_t digest = kNoDigest;
// The same of each result by itself, to compare devices.
inline std::vector<uint64_t> digests;
template <typename T>
const std::vector<T>& noted(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    uint64_t alone = kNoDigest;
    for (size_t i = 0; i < values.size() * sizeof(T); i++) {
        alone = (alone ^ bytes[i]) * 0x100000001b3;
    }
    digests.push_back(alone);
    digest = (digest ^ alone) * 0x100000001b3;
    return values;
}

// The largest difference, as a share of the root mean square.
inline double difference(const Floats& a, const Floats& b) {
    double largest = 0, squares = 0;
    for (size_t i = 0; i < b.size(); i++) {
        const double d = std::fabs(double(a[i]) - double(b[i]));
        largest = std::isnan(largest) || d <= largest ? largest : d;  // a NaN stays
        squares += double(b[i]) * b[i];
    }
    return largest / std::sqrt(squares / double(b.size()) + 1e-30);
}
constexpr double kRounding = 2e-5;

const DType kTypes[] = {DType::F32,   DType::F16,  DType::BF16, DType::Q4_0,   DType::Q4_1,
                        DType::Q5_0,  DType::Q5_1, DType::Q8_0, DType::Q2_K,   DType::Q3_K,
                        DType::Q4_K,  DType::Q5_K, DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS,
                        DType::MXFP4, DType::NVFP4};

// Few columns of whole blocks, no power of two where these are small.
inline int64_t few_columns(DType type) {
    const int64_t block = info(type).block;
    return block == kQK ? 256 : block > kQ ? 320 : 288;
}

// A matrix in both forms.
struct Weights {
    Weights(DType type, int64_t rows, int64_t cols)
        : Weights(type, rows, cols, normal(rows * cols)) {}
    Weights(DType type, int64_t rows, int64_t cols, const Floats& source)
        : bytes(info(type).size(cols)), stored(random_blocks(type, source)) {
        pack(type, rows, cols);
        host = {type, Layout::rows, rows, cols, stored.data()};
    }
    void pack(DType type, int64_t rows, int64_t cols) {
        const int64_t stride = device_row_bytes(type, cols);
        std::vector<uint8_t> packed(size_t(rows * stride));
        for (int64_t r = 0; r < rows; r++) {
            pack_device_row(type, stored.data() + r * bytes, cols, packed.data() + r * stride);
        }
        planes = std::make_unique<Array<uint8_t>>(packed);
        device = {type, planes->get(), stride, int(rows), int(cols)};
    }
    int64_t bytes;
    std::vector<uint8_t> stored;
    Matrix host;
    std::unique_ptr<Array<uint8_t>> planes;
    DeviceRows device;
};

// Does this machine's CPU have the bits of a device's products? Those without fused multiply and
// add do not (cuda/ops/terms.h).
inline bool cpu_fuses() {
    const std::string isa = isa_name(context.kernels);
    return isa != "generic" && isa != "avx";
}
inline bool like_the_cpus(const Floats& got, const Floats& expected, double rounding = kRounding) {
    return cpu_fuses() ? same_bits(got, expected) : difference(got, expected) < rounding;
}

// A matrix as products of the CPU read it: blocks in strips.
class CpuMatrix {
 public:
    explicit CpuMatrix(const Matrix& of) : m_(of) {
        if (!of.quantised()) return;
        const int64_t bytes = of.row_bytes();
        packed_.resize(size_t((of.rows + kStrip - 1) / kStrip * kStrip * bytes));
        for (int64_t r = 0; r < of.rows; r += kStrip) {
            pack_strip(of.type, of.data + r * bytes, std::min(kStrip, of.rows - r), of.cols,
                       packed_.data() + r * bytes);
        }
        m_.layout = Layout::strips;
        m_.data = packed_.data();
    }
    CpuMatrix(const CpuMatrix&) = delete;
    // Its product with some rows of an input, in 8 bits too.
    Floats times(const Input& x, const float* bias, const float* scale = nullptr) const {
        Floats y(size_t(x.rows * m_.rows));
        Matrix scaled = m_;
        scaled.scale = scale;
        matmul(context, x, {{scaled, y.data(), bias}});
        return y;
    }

 private:
    Matrix m_;
    std::vector<uint8_t> packed_;
};

// Rows of activations in both forms; in 8 bits too.
struct Activations {
    Activations(const Floats& values, int64_t rows)
        : n(rows),
          cols(int64_t(values.size()) / rows),
          host_x(values),
          buffer("input", rows, cols),
          x(values),
          q(values.size()),
          s((values.size() + kQ - 1) / kQ) {
        host = buffer->prepare(context, host_x.data(), n, cols, cols % kQ == 0);
        device = {x.get(), q.get(), s.get(), int(n), int(cols)};
    }
    int64_t n, cols;
    Floats host_x;
    Carved<InputBuffer> buffer;
    Input host;
    Array<float> x;
    Array<int8_t> q;
    Array<DeviceQ8Scale> s;
    DeviceInput device;

    // The 8-bit form on the device is that of these rows.
    bool quantised_as(const Floats& values) const {
        Floats copy = values;
        Carved<InputBuffer> other("input", n, cols);
        const Q8Rows q8 = other->prepare(context, copy.data(), n, cols, true).q8;
        const std::vector<int8_t> bytes = noted(q.read());
        const std::vector<DeviceQ8Scale> scales = noted(s.read());
        bool same = std::memcmp(bytes.data(), q8.q, bytes.size()) == 0;
        for (size_t i = 0; i < scales.size(); i++) {
            same = same && std::memcmp(&scales[i].d, q8.d + i, 4) == 0 &&
                   scales[i].s0 == q8.s16[2 * i] && scales[i].s1 == q8.s16[2 * i + 1];
        }
        return same;
    }
};

}  // namespace gpu_test
