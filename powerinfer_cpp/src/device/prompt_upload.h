// Neurons that RAM holds, on a device for as long as the rows of a prompt need them. Prompts
// compute every neuron: reading RAM's once over PCIe for many rows, while the device computes,
// takes less time than computing them on the CPU.
#pragma once

#include <functional>
#include <vector>

#include "ggml/context.h"
#include "ggml/device.h"
#include "ggml/device_ops.h"
#include "ggml/neurons.h"

namespace powerinfer {

class PromptUpload {
 public:
    // Allocates twice `piece` bytes on the device, and in pinned memory. Throws Error(memory |
    // device).
    PromptUpload(ggml::Device& device, uint64_t piece);

    // Puts into `stream` what use() puts there for each piece of the neurons: those of `rows`,
    // which are rows of w, ascending. A piece has as many neurons as fit, in multiples of kNeurons:
    // the pieces do not depend on the prompt, nor on where rows come from. bring(rows, n) says how
    // many of these, at least one, are in memory until its next call. use(piece, last) is given
    // weights and biases; what it puts in runs once they have arrived. Returns the bytes that went
    // to the device.
    using Bring = std::function<int64_t(const int32_t* rows, int64_t n)>;
    using Use = std::function<void(const ggml::DeviceNeurons& piece, bool last)>;
    uint64_t run(ggml::Context& context, const ggml::Neurons& w, const std::vector<int32_t>& rows,
                 const Bring& bring, ggml::DeviceStream* stream, const Use& use);

    static constexpr int64_t kNeurons = 8;
    // What n neurons take in a piece, if `formats` has the types of their rows.
    static uint64_t bytes(const std::vector<ggml::DType>& formats, int64_t cols, int64_t n);

 private:
    ggml::Device& device_;
    const uint64_t piece_;
    ggml::DeviceArray<uint8_t> there_;  // [2][piece]
    ggml::SharedArray<uint8_t> here_;   // [2][piece]
    // Of each half: it has been copied; the device is done with it.
    ggml::Owned<ggml::DeviceEvent> copied_[2], used_[2];
    ggml::Owned<ggml::DeviceStream> copies_;  // after what its work uses
    int next_ = 0;
};

}  // namespace powerinfer
