// Tests of the products of a mixture's experts.
#pragma once

#include "gpu/twins.h"

namespace gpu_test {

// Which experts rows chose, in the order of rows and in that of experts.
struct Choices {
    Choices(int n_rows, int n_chosen, int n_experts)
        : expert(chosen(n_rows, n_chosen, n_experts)),
          first(size_t(n_experts) + 1),
          pair(expert.size()),
          view{nullptr, nullptr, nullptr, nullptr, n_rows, n_chosen, n_experts} {
        for (int32_t e : expert) first[size_t(e) + 1]++;
        std::partial_sum(first.begin(), first.end(), first.begin());
        std::vector<int32_t> next = first;
        for (size_t i = 0; i < expert.size(); i++) pair[size_t(next[size_t(expert[i])]++)] = int(i);
        device.push_back(std::make_unique<Array<int32_t>>(expert));
        device.push_back(std::make_unique<Array<int32_t>>(first));
        device.push_back(std::make_unique<Array<int32_t>>(pair));
        view.expert = device[0]->get();
        view.first = device[1]->get();
        view.pair = device[2]->get();
    }
    // Every row has expert 3: with many rows it has several tiles.
    static std::vector<int32_t> chosen(int n_rows, int n_chosen, int n_experts) {
        std::vector<int32_t> all(static_cast<size_t>(n_experts)), some;
        std::iota(all.begin(), all.end(), 0);
        for (int t = 0; t < n_rows; t++) {
            std::shuffle(all.begin(), all.end(), rng);
            std::iter_swap(all.begin(), std::find(all.begin(), all.end(), 3));
            std::sort(all.begin(), all.begin() + n_chosen);
            some.insert(some.end(), all.begin(), all.begin() + n_chosen);
        }
        return some;
    }
    std::vector<int32_t> expert, first, pair;
    std::vector<std::unique_ptr<Array<int32_t>>> device;
    DeviceChoice view;
};

// Two matrices of every expert: the CPU's bits where an expert is on the device, nothing elsewhere.
inline void test_experts_of(DType type, DType other, int n_experts, int n_chosen, int rows,
                            int cols, const std::vector<int>& counts) {
    std::vector<std::unique_ptr<Weights>> matrices[2];
    std::vector<int32_t> frame(size_t(n_experts), -1);
    std::vector<uint8_t> bytes;
    int32_t frames = 0;
    const int heights[2] = {rows, rows + 3};
    const Floats bias = normal(n_experts * heights[0]);
    int64_t stride = 0, second = 0, third = 0;
    for (int e = 0; e < n_experts; e++) {
        for (int m = 0; m < 2; m++) {
            matrices[m].push_back(std::make_unique<Weights>(m ? other : type, heights[m], cols));
        }
        second = heights[0] * matrices[0][0]->device.stride;
        third = second + heights[1] * matrices[1][0]->device.stride;
        stride = (third + heights[0] * 4 + 127) / 64 * 64;
    }
    // Frames in another order than experts, some of which have none.
    for (int i = 0; i < n_experts; i++) {
        const int e = (5 * i + 3) % n_experts;
        if (i > 0 && rng() % 3 == 0) continue;
        frame[size_t(e)] = frames++;
        bytes.resize(size_t(frames * stride));
        for (int m = 0; m < 2; m++) {
            const std::vector<uint8_t> packed = matrices[m][size_t(e)]->planes->read();
            std::copy(packed.begin(), packed.end(), bytes.end() - stride + (m ? second : 0));
        }
        std::memcpy(bytes.data() + bytes.size() - size_t(stride - third),
                    bias.data() + e * heights[0], size_t(heights[0]) * 4);
    }
    const Array<uint8_t> weights(bytes);
    const Array<int32_t> device_frame(frame);
    const Floats scales = normal(n_experts);  // of the last matrix
    const Array<float> device_scales(scales);
    for (int n : counts) {
        const Choices choices(n, n_chosen, n_experts);
        for (bool each : {false, true}) {  // has each pair a row of x?
            const int pairs = n * n_chosen, inputs = each ? pairs : n;
            const Activations x(normal(inputs * cols, 1 / std::sqrt(float(cols))), inputs);
            ops.quantise(stream(), x.device);
            const float untouched = 12345;
            const Array<float> y(Floats(size_t(pairs * heights[0]), untouched)),
                z(Floats(size_t(pairs * heights[1]), untouched));
            DeviceRows first = matrices[0][0]->device, last = matrices[1][0]->device;
            first.data = weights.get();
            last.data = weights.get() + second;
            const auto* const first_bias = reinterpret_cast<const float*>(weights.get() + third);
            const DeviceProduct products[] = {{first, y.get(), first_bias},
                                              {last, z.get(), nullptr, device_scales.get()}};
            ops.matmul_experts(stream(), x.device, choices.view, {device_frame.get(), stride},
                               products, 2);
            const Floats got[2] = {noted(y.read()), noted(z.read())};
            Floats expected[2] = {Floats(got[0].size(), untouched),
                                  Floats(got[1].size(), untouched)};
            for (int e = 0; e < n_experts; e++) {
                const int32_t begin = choices.first[size_t(e)], end = choices.first[size_t(e) + 1];
                if (frame[size_t(e)] < 0 || begin == end) continue;
                for (int m = 0; m < 2; m++) {
                    const Floats all =
                        CpuMatrix(matrices[m][size_t(e)]->host)
                            .times(x.host, m ? nullptr : bias.data() + e * heights[0],
                                   m ? &scales[size_t(e)] : nullptr);
                    for (int32_t i = begin; i < end; i++) {
                        const int32_t pair = choices.pair[size_t(i)];
                        const int64_t row = each ? pair : pair / n_chosen;
                        std::copy_n(all.begin() + row * heights[m], heights[m],
                                    expected[m].begin() + pair * heights[m]);
                    }
                }
            }
            for (int m = 0; m < 2; m++) CHECK(like_the_cpus(got[m], expected[m]));
        }
    }
}

inline void test_experts() {
    for (DType type : kTypes) test_experts_of(type, type, 7, 2, 5, 256, {2, 8});
    test_experts_of(DType::Q4_K, DType::Q6_K, 40, 4, 21, 768, {1, 2, 5, 40, 100});
    test_experts_of(DType::Q4_0, DType::Q4_0, 12, 3, 70, 288, {5, 100});
    test_experts_of(DType::F16, DType::F16, 12, 3, 35, 288, {1, 40});
    test_experts_of(DType::MXFP4, DType::F32, 5, 1, 33, 96, {1, 4, 70});
}

}  // namespace gpu_test
