#include "device/prompt_upload.h"

#include <algorithm>
#include <cstring>

#include "ggml/carver.h"

namespace powerinfer {

using ggml::Carver;
using ggml::DeviceNeurons;
using ggml::DeviceRows;
using ggml::DType;
using ggml::NeuronRows;

namespace {

// The arrays of a piece of n neurons: rows as the device has them, and biases.
struct Piece {
    Piece(Carver& carver, const std::vector<DType>& formats, int64_t cols, int64_t n)
        : rows(formats.size()) {
        for (size_t i = 0; i < formats.size(); i++) {
            carver.take(rows[i], {n, ggml::device_row_bytes(formats[i], cols)});
        }
        for (float*& bias : biases) carver.take(bias, {n});
    }

    std::vector<uint8_t*> rows;
    float* biases[2] = {nullptr, nullptr};  // of gate and up
};

std::vector<const NeuronRows*> matrices(const ggml::Neurons& w) {
    if (w.gate) return {&w.gate, &w.up, &w.down};
    return {&w.up, &w.down};
}

// Packs some rows of a matrix for the device.
void pack(ggml::Context& context, const NeuronRows& w, int64_t cols, const int32_t* rows, int64_t n,
          uint8_t* out) {
    const int64_t stride = ggml::device_row_bytes(w.type, cols);
    const int64_t stored = ggml::info(w.type).size(cols);
    context.threads.run(n, PromptUpload::kNeurons, [&](int64_t begin, int64_t end, int) {
        std::vector<uint8_t> unfolded(w.folded ? size_t(stored) : 0);
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = w.row_at ? w.row_at[rows[i]] : rows[i];
            const uint8_t* row = w.data + at * w.stride;
            if (w.folded) {
                ggml::unfold_row(w.type, row, cols, unfolded.data());
                row = unfolded.data();
            }
            ggml::pack_device_row(w.type, row, cols, out + i * stride);
        }
    });
}

}  // namespace

PromptUpload::PromptUpload(ggml::Device& device, uint64_t piece)
    : device_(device),
      piece_(piece),
      there_(device, 2 * piece, "neurons on their way"),
      here_(device, 2 * piece, "neurons on their way") {
    for (int i = 0; i < 2; i++) {
        copied_[i] = {device, device.new_event()};
        used_[i] = {device, device.new_event()};
    }
    copies_ = {device, device.new_stream()};
}

uint64_t PromptUpload::bytes(const std::vector<DType>& formats, int64_t cols, int64_t n) {
    return ggml::carved_bytes<Piece>(formats, cols, n);
}

uint64_t PromptUpload::run(ggml::Context& context, const ggml::Neurons& w,
                           const std::vector<int32_t>& rows, const Bring& bring,
                           ggml::DeviceStream* stream, const Use& use) {
    const std::vector<const NeuronRows*> parts = matrices(w);
    std::vector<DType> formats;
    for (const NeuronRows* part : parts) formats.push_back(part->type);
    const auto n_rows = int64_t(rows.size());
    int64_t most = kNeurons;
    while (most < n_rows && bytes(formats, w.cols, most + kNeurons) <= piece_) most += kNeurons;
    uint64_t moved = 0;
    for (int64_t begin = 0; begin < n_rows; begin += most) {
        const int64_t n = std::min(most, n_rows - begin);
        const int32_t* const chosen = rows.data() + begin;
        const int half = next_++ % 2;
        uint8_t *const from = here_.get() + half * piece_, *const to = there_.get() + half * piece_;
        Carver here_carver(from, piece_), there_carver(to, piece_);
        const Piece here(here_carver, formats, w.cols, n), there(there_carver, formats, w.cols, n);

        device_.wait(copied_[half].get());
        for (int64_t done = 0, more = 0; done < n; done += more) {
            more = bring(chosen + done, n - done);
            for (size_t i = 0; i < parts.size(); i++) {
                const int64_t bytes = ggml::device_row_bytes(formats[i], w.cols);
                pack(context, *parts[i], w.cols, chosen + done, more, here.rows[i] + done * bytes);
            }
        }
        const float* const biases[2] = {w.gate_bias, w.up_bias};
        for (int i = 0; i < 2; i++) {
            for (int64_t k = 0; biases[i] && k < n; k++) here.biases[i][k] = biases[i][chosen[k]];
        }
        device_.wait(copies_.get(), used_[half].get());
        device_.copy_in(copies_.get(), to, from, here_carver.bytes());
        device_.record(copied_[half].get(), copies_.get());
        device_.wait(stream, copied_[half].get());

        DeviceNeurons piece;
        piece.n = int(n);
        std::vector<DeviceRows*> to_rows{&piece.up, &piece.down};
        if (w.gate) to_rows.insert(to_rows.begin(), &piece.gate);
        for (size_t i = 0; i < parts.size(); i++) {
            *to_rows[i] = {formats[i], there.rows[i], ggml::device_row_bytes(formats[i], w.cols),
                           int(n), int(w.cols)};
        }
        piece.gate_bias = w.gate_bias ? there.biases[0] : nullptr;
        piece.up_bias = w.up_bias ? there.biases[1] : nullptr;
        piece.act = w.act;
        piece.threshold = w.threshold;
        use(piece, begin + n == n_rows);
        device_.record(used_[half].get(), stream);
        moved += here_carver.bytes();
    }
    return moved;
}

}  // namespace powerinfer
