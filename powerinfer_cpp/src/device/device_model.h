// The part of a model that is on a device.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/budget.h"
#include "base/placement.h"
#include "device/expert_frames.h"
#include "device/prompt_upload.h"
#include "ggml/device.h"
#include "ggml/device_ops.h"
#include "ggml/neurons.h"
#include "weights/weight_spec.h"

namespace powerinfer {

struct DeviceModel {
    // Opens a device. vram_budget: bytes for the model and its sessions; 0: what is free there,
    // less a margin. Throws Error(device).
    DeviceModel(const std::string& id, uint64_t vram_budget);

    std::unique_ptr<ggml::Device> device;
    ggml::DeviceCard& card;          // locked by the session that computes
    std::shared_ptr<Budget> budget;  // of the device's memory
    DeviceSplit split;
    Reservation reserved;                    // for the weights
    ggml::DeviceArray<uint8_t> weights;      // at the offsets of the plan
    ggml::DeviceArray<int32_t> slots;        // [neurons of layers on the device], see DeviceSplit
    ggml::DeviceArray<uint8_t> unpredicted;  // the same, see Ffn
    // The neurons of each layer that RAM has: [n_layer], n = 0 where there are none.
    std::vector<ggml::Neurons> cold;
    std::vector<std::vector<float>> cold_biases;
    // [n_layer]: rows of `cold` that the device does not have, ascending. They are all of them,
    // unless a bundled file's rows stay where they are.
    std::vector<std::vector<int32_t>> cold_rows;
    std::unique_ptr<PromptUpload> prompt_upload;  // brings them to the device; null: nobody does
    FrameShape frames;                            // of the experts of mixtures
    // Which of them are there changes with the text; null: the layers on the device have none.
    std::unique_ptr<ExpertFrames> experts;

    // A weight by the address of its member in Model; nothing if the device does not have it.
    ggml::DeviceRows matrix(const void* key) const;
    const float* vector(const void* key) const;

    // Uploads a weight. `rows` are as in the file, one after the other, and are those that the
    // device has from `first` on. Throws Error(device).
    void put(const WeightSpec& w, size_t part, int64_t first, int64_t n, const uint8_t* rows);
    void upload(void* to, const void* from, uint64_t bytes);

 private:
    std::unordered_map<const void*, ggml::DeviceRows> matrices_;
    ggml::Owned<ggml::DeviceStream> stream_;
    std::vector<uint8_t> packed_;
};

// What an allocation of so many bytes takes on a device.
uint64_t device_array_bytes(uint64_t bytes);

// Bytes of the tables of slots and unpredicted neurons, for n neurons.
uint64_t device_table_bytes(int64_t n);

}  // namespace powerinfer
