// Tests of experts in neuron rows: products, values and sums with the bits of the CPU, which
// computes the others of the same text; and their way to the device.
#pragma once

#include "ggml/neurons.h"
#include "gpu/expert_products.h"

namespace gpu_test {

// Rows of neurons of any kind: random blocks, as the CPU reads them and as the device does.
struct RowsOfNeurons {
    RowsOfNeurons(DType type, int64_t n, int64_t cols)
        : weights(type, n, cols, normal(n * cols, 1 / std::sqrt(float(cols)))) {
        view = {type, can_fold(type, cols), nullptr, weights.bytes};
        packed = weights.stored;
        for (int64_t i = 0; view.folded && i < n; i++) {
            const int64_t at = i * weights.bytes;
            fold_row(type, weights.stored.data() + at, cols, packed.data() + at);
        }
        view.data = packed.data();
    }
    Weights weights;
    std::vector<uint8_t> packed;
    NeuronRows view;
};

struct NeuronExpertShape {
    DType type, down;
    int64_t n, cols;
    Activation act = Activation::relu;
    float threshold = 0;
    bool gated = true, biases = false;
};

// Experts, some of which are on the device.
class NeuronExperts {
 public:
    static constexpr int kExperts = 5, kChosen = 2;

    explicit NeuronExperts(const NeuronExpertShape& shape) : s_(shape) {
        for (int e = 0; e < kExperts; e++) {
            for (int m = 0; m < 3; m++) {
                rows_[m].push_back(
                    std::make_unique<RowsOfNeurons>(m == 2 ? s_.down : s_.type, s_.n, s_.cols));
            }
            for (int m = 0; m < 3; m++) bias_[m].push_back(normal(m == 2 ? s_.cols : s_.n, 0.5f));
        }
        int64_t end = 0;
        for (int m = 0; m < 3; m++) {
            at_[m] = end;
            end += s_.n * rows_[m][0]->weights.device.stride;
        }
        for (int m = 0; m < 3; m++) {
            bias_at_[m] = end;
            end += int64_t(bias_[m][0].size()) * 4;
        }
        stride_ = (end + 63) / 64 * 64;
        std::vector<uint8_t> bytes;
        int32_t frames = 0;
        for (int i = 0; i < kExperts; i++) {
            const int e = (2 * i + 3) % kExperts;
            if (i == 1) continue;
            frame_[size_t(e)] = frames++;
            bytes.resize(size_t(frames * stride_));
            uint8_t* const to = bytes.data() + bytes.size() - stride_;
            for (int m = 0; m < 3; m++) {
                const std::vector<uint8_t> packed = rows_[m][size_t(e)]->weights.planes->read();
                std::copy(packed.begin(), packed.end(), to + at_[m]);
                const Floats& bias = bias_[m][size_t(e)];
                std::memcpy(to + bias_at_[m], bias.data(), bias.size() * 4);
            }
        }
        frames_ = std::make_unique<Array<uint8_t>>(bytes);
    }

    void test(int n_rows) const {
        const Choices choices(n_rows, kChosen, kExperts);
        const int pairs = n_rows * kChosen;
        const Activations x(normal(n_rows * s_.cols), n_rows);
        ops.quantise(stream(), x.device);
        const Floats untouched(size_t(pairs * s_.cols), 12345.0f);
        const Array<int32_t> device_frame(frame_);
        const DeviceFrames frames{device_frame.get(), stride_};
        const Array<float> h(Floats(size_t(pairs * s_.n), 12345.0f)), up(size_t(pairs * s_.n)),
            y(untouched);
        const Array<unsigned long long> counts(std::vector<unsigned long long>(3, 0));
        DeviceProduct first[2] = {product(s_.gated ? 0 : 1, h.get()), product(1, up.get())};
        ops.matmul_experts(stream(), x.device, choices.view, frames, first, s_.gated ? 2 : 1);
        ops.expert_values(stream(), s_.act, s_.threshold, choices.view, frames, int(s_.n), h.get(),
                          s_.gated ? up.get() : nullptr, counts.get());
        const DeviceProduct down = product(2, nullptr);
        ops.add_experts(stream(), down.w, down.bias, choices.view, frames, h.get(), y.get());
        Floats expected = untouched;
        NeuronCounts counted;
        const Floats values = h.read();
        for (int pair = 0; pair < pairs; pair++) {
            const int32_t e = choices.expert[size_t(pair)];
            if (frame_[size_t(e)] < 0) {
                CHECK(values[size_t(pair * s_.n)] == 12345.0f);
                continue;
            }
            const Floats one = on_cpu(e, x, pair / kChosen, counted);
            std::copy(one.begin(), one.end(), expected.begin() + pair * s_.cols);
        }
        CHECK(like_the_cpus(noted(y.read()), expected, 2e-3));
        const std::vector<unsigned long long> found = noted(counts.read());
        CHECK(int64_t(found[0]) == counted.proposed && int64_t(found[1]) == counted.computed &&
              int64_t(found[2]) == counted.fired);
    }

    // One of them for all rows, without a table.
    void test_alone(int n_rows) const {
        const Activations x(normal(n_rows * s_.cols), n_rows);
        ops.quantise(stream(), x.device);
        const Array<float> h(size_t(n_rows * s_.n)), up(size_t(n_rows * s_.n)),
            y(size_t(n_rows * s_.cols));
        const int e = 3;  // in frame 0
        DeviceProduct first[2] = {product(s_.gated ? 0 : 1, h.get()), product(1, up.get())};
        ops.matmul(stream(), x.device, first, s_.gated ? 2 : 1);
        DeviceChoice all;
        all.rows = n_rows, all.n_used = 1;
        ops.expert_values(stream(), s_.act, s_.threshold, all, {}, int(s_.n), h.get(),
                          s_.gated ? up.get() : nullptr, nullptr);
        const DeviceProduct down = product(2, nullptr);
        ops.add_experts(stream(), down.w, down.bias, all, {}, h.get(), y.get());
        Floats expected;
        NeuronCounts counted;
        for (int t = 0; t < n_rows; t++) {
            const Floats one = on_cpu(e, x, t, counted);
            expected.insert(expected.end(), one.begin(), one.end());
        }
        CHECK(like_the_cpus(noted(y.read()), expected, 2e-3));
    }

 private:
    DeviceProduct product(int m, float* y) const {
        DeviceProduct p{rows_[m][0]->weights.device, y};
        p.w.data = frames_->get() + at_[m];
        if (s_.biases) p.bias = reinterpret_cast<const float*>(frames_->get() + bias_at_[m]);
        p.of_neurons = true;
        return p;
    }
    Floats on_cpu(int32_t e, const Activations& x, int64_t row, NeuronCounts& counts) const {
        Neurons w;
        w.n = s_.n;
        w.cols = s_.cols;
        if (s_.gated) w.gate = rows_[0][size_t(e)]->view;
        w.up = rows_[1][size_t(e)]->view;
        w.down = rows_[2][size_t(e)]->view;
        if (s_.biases) {
            if (s_.gated) w.gate_bias = bias_[0][size_t(e)].data();
            w.up_bias = bias_[1][size_t(e)].data();
            w.down_bias = bias_[2][size_t(e)].data();
        }
        w.act = s_.act;
        w.threshold = s_.threshold;
        Carved<NeuronScratch> scratch("scratch", 1, s_.n, s_.cols, context.threads.size());
        Carved<Candidates> candidates("candidates", s_.n);
        Carved<InputBuffer> buffer("input", 1, s_.cols);
        Floats own(x.host_x.begin() + row * s_.cols, x.host_x.begin() + (row + 1) * s_.cols);
        const Input input = buffer->prepare(context, own.data(), 1, s_.cols, s_.cols % kQ == 0);
        select(context, {}, s_.n, *candidates);
        Floats sums(size_t(kSegmentPairs * s_.cols)), y(static_cast<size_t>(s_.cols));
        const int64_t n =
            partial_ffn(context, w, input, *candidates, *scratch, sums.data(), &counts, nullptr);
        merge(context, w, sums.data(), n, y.data());
        return y;
    }

    const NeuronExpertShape s_;
    std::vector<std::unique_ptr<RowsOfNeurons>> rows_[3];  // gate, up, down
    std::vector<Floats> bias_[3];
    std::vector<int32_t> frame_ = std::vector<int32_t>(kExperts, -1);
    int64_t at_[3], bias_at_[3], stride_ = 0;
    std::unique_ptr<Array<uint8_t>> frames_;
};

inline void test_neuron_experts() {
    for (DType type : kTypes) {
        for (int64_t cols : {64, 256, 288, 2048}) {
            if (!has_neuron_experts(type, cols)) continue;
            if (cols == 2048 && info(type).block < kQK && !full_circle()) continue;
            const NeuronExperts experts({type, type, cols == 64 ? 500 : 72, cols});
            experts.test(3);
            experts.test_alone(cols == 288 ? 20 : 2);
        }
    }
    for (Activation act : {Activation::relu2, Activation::silu, Activation::drelu, Activation::gelu,
                           Activation::gelu_tanh}) {
        const bool gated = act != Activation::relu2;
        NeuronExperts({DType::Q4_0, DType::Q8_0, 75, 256, act, 0.05f, gated, true}).test(2);
        NeuronExperts({DType::F16, DType::F32, 75, 72, act, 0, gated, true}).test(20);
        NeuronExperts({DType::Q8_0, DType::Q4_1, 300, 96, act, 0, gated, true}).test(20);
    }
}

// Rows of any bits at all, in every order that bundles have.
inline void test_unfold_neurons() {
    using Tiles = NeuronRows::Tiles;
    for (DType type : kTypes) {
        for (int64_t rows : {8, 21}) {
            for (int64_t cols : {256, 288, 2048}) {
                if (!has_device_rows(type, cols)) continue;
                Weights w(type, rows, cols);
                for (uint8_t& byte : w.stored) byte = uint8_t(rng());
                w.pack(type, rows, cols);
                const auto unfolded = [&](const std::vector<uint8_t>& bytes, NeuronRows from,
                                          int64_t at) {
                    const Array<uint8_t> bundle(bytes), got(size_t(rows * w.device.stride));
                    from.data = bundle.get() + at;
                    DeviceRows to = w.device;
                    to.data = got.get();
                    ops.unfold_neurons(stream(), from, to);
                    CHECK(same_bits(noted(got.read()), w.planes->read()));
                };
                for (int64_t beside : {0, 18, 144}) {  // bytes of the rows between
                    const int64_t step = w.bytes + beside;
                    for (bool fold : {false, true}) {
                        if (fold && (!can_fold(type, cols) || beside % 16)) continue;
                        std::vector<uint8_t> bytes(size_t(rows * step));
                        for (int64_t r = 0; r < rows; r++) {
                            const uint8_t* from = w.stored.data() + r * w.bytes;
                            uint8_t* const to = bytes.data() + r * step + beside;
                            if (fold) {
                                fold_row(type, from, cols, to);
                            } else {
                                std::copy_n(from, w.bytes, to);
                            }
                        }
                        unfolded(bytes, {type, fold, nullptr, step}, beside);
                    }
                }
                if (!can_tile(type, cols) || rows % kStrip) continue;
                for (Tiles tiles : {Tiles::strips, Tiles::blocks}) {
                    std::vector<uint8_t> bytes(w.stored.size());
                    for (int64_t r = 0; r < rows; r += kStrip) {
                        pack_tile(type, tiles, w.stored.data() + r * w.bytes, cols,
                                  bytes.data() + r * w.bytes);
                    }
                    unfolded(bytes, {type, false, nullptr, w.bytes, nullptr, tiles}, 0);
                }
            }
        }
    }
}

}  // namespace gpu_test
