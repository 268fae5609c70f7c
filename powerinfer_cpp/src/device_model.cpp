#include "device_model.h"

#include <algorithm>

#include "ggml/sizes.h"
#include "ggml/status.h"
#include "model.h"

namespace powerinfer {

using ggml::DeviceRows;

namespace {

// Of what is free: for graphs, and for what others take meanwhile.
constexpr uint64_t kMargin = 256 << 20;

uint64_t less_margin(uint64_t bytes) {
    return bytes > kMargin ? bytes - kMargin : 0;
}

// Are the rows in RAM those of all neurons, as in a bundled file?
bool stays_whole(const std::vector<int32_t>& slot) {
    for (size_t i = 0; i < slot.size(); i++) {
        if (slot[i] < 0 && -1 - slot[i] != int32_t(i)) return false;
    }
    return true;
}

// The elements of a table by neuron that RAM has.
std::vector<float> gathered(const float* all, const std::vector<int32_t>& slot) {
    std::vector<float> found;
    for (size_t i = 0; i < slot.size(); i++) {
        if (slot[i] < 0) found.push_back(all[i]);
    }
    return found;
}

}  // namespace

DeviceModel::DeviceModel(const std::string& id, uint64_t vram_budget)
    : device(ggml::open_device(id)),
      budget(std::make_shared<Budget>(
          "VRAM", vram_budget ? vram_budget : less_margin(device->free_bytes()), vram_budget != 0)),
      stream_(*device, device->new_stream()) {}

DeviceRows DeviceModel::matrix(const void* key) const {
    const auto found = matrices_.find(key);
    return found == matrices_.end() ? DeviceRows{} : found->second;
}

const float* DeviceModel::vector(const void* key) const {
    return reinterpret_cast<const float*>(matrix(key).data);
}

uint64_t device_table_bytes(int64_t n_layers, int64_t n_ff) {
    return ggml::size_product(n_layers * n_ff, sizeof(int32_t) + 1);
}

void DeviceModel::allocate(const Model& m) {
    const int64_t n = m.config.n_layer - share.first_layer, n_ff = m.config.n_ff;
    reserved = budget->reserve(m.file.gguf.path() + ": the weights on " + device->info().id,
                               total(m.plan.parts, Tier::gpu));
    if (m.plan.device) weights = {*device, m.plan.device, "weights"};
    if (n == 0) return;
    slots = {*device, uint64_t(n * n_ff), "slots"};
    unpredicted = {*device, uint64_t(n * n_ff), "unpredicted"};
}

void DeviceModel::put(const WeightSpec& w, size_t part, int64_t first, int64_t n,
                      const uint8_t* rows) {
    const std::vector<DeviceMatrix> parts = w.device_matrices();
    uint64_t offset = w.place.device_offset;
    for (size_t i = 0; i < part; i++) offset += parts[i].bytes(w.place.device_rows);
    const DeviceMatrix& m = parts[part];
    const int64_t stride =
        w.is<Vector>() ? m.cols * int64_t(sizeof(float)) : ggml::device_row_bytes(m.type, m.cols);
    uint8_t* const data = weights.get() + offset;
    if (first == 0) {
        matrices_[m.key] = {m.type, data, stride, int(w.place.device_rows), int(m.cols)};
    }
    if (n == 0) return;
    if (!w.is<Vector>()) {
        packed_.resize(size_t(n * stride));
        const int64_t row = ggml::info(m.type).size(m.cols);
        for (int64_t i = 0; i < n; i++) {
            ggml::pack_device_row(m.type, rows + i * row, m.cols, packed_.data() + i * stride);
        }
        rows = packed_.data();
    }
    device->copy_in(stream_.get(), data + first * stride, rows, uint64_t(n * stride));
    device->wait(stream_.get());
}

void DeviceModel::finish(const Model& m) {
    const int64_t first = share.first_layer, n_ff = m.config.n_ff;
    cold.resize(m.layers.size());
    for (size_t i = size_t(first); i < m.layers.size(); i++) {
        const Ffn& f = m.layers[i].ffn;
        const int64_t at = (int64_t(i) - first) * n_ff;
        if (!f.unpredicted.empty()) {
            device->copy_in(stream_.get(), unpredicted.get() + at, f.unpredicted.data(),
                            f.unpredicted.size());
        }
        if (!share.splits(int64_t(i))) continue;
        const std::vector<int32_t>& slot = share.slot[i];
        device->copy_in(stream_.get(), slots.get() + at, slot.data(),
                        slot.size() * sizeof(int32_t));
        device->wait(stream_.get());
        ggml::Neurons& w = cold[i];
        w = f.neurons;
        w.down_bias = nullptr;  // the device adds it
        if (stays_whole(slot)) continue;
        w.n = std::count_if(slot.begin(), slot.end(), [](int32_t s) { return s < 0; });
        for (const float** bias : {&w.gate_bias, &w.up_bias}) {
            if (!*bias) continue;
            cold_biases.push_back(gathered(*bias, slot));
            *bias = cold_biases.back().data();
        }
    }
    device->wait(stream_.get());
    packed_ = {};
}

}  // namespace powerinfer
