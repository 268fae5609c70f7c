#include "device/device_model.h"

#include "ggml/sizes.h"

namespace powerinfer {

using ggml::DeviceRows;

namespace {

// What a model may take where no budget is given: what is free, less a margin for graphs and for
// what others take meanwhile, and the context, which is there already.
uint64_t what_is_free(const ggml::Device& device) {
    constexpr uint64_t kMargin = 256 << 20;
    const uint64_t bytes = device.free_bytes();
    return (bytes > kMargin ? bytes - kMargin : 0) + device.context_bytes();
}

}  // namespace

DeviceModel::DeviceModel(const std::string& id, uint64_t vram_budget)
    : device(ggml::open_device(id)),
      card(device->card()),
      budget(std::make_shared<Budget>("VRAM", vram_budget ? vram_budget : what_is_free(*device),
                                      vram_budget != 0)) {
    const std::lock_guard<ggml::DeviceCard> lock(card);
    stream_ = {*device, device->new_stream()};
}

DeviceRows DeviceModel::matrix(const void* key) const {
    const auto found = matrices_.find(key);
    return found == matrices_.end() ? DeviceRows{} : found->second;
}

const float* DeviceModel::vector(const void* key) const {
    return reinterpret_cast<const float*>(matrix(key).data);
}

uint64_t device_array_bytes(uint64_t bytes) {
    return ggml::size_rounded_up(bytes, ggml::kDeviceGranule);
}

uint64_t device_table_bytes(int64_t n) {
    return ggml::size_sum(device_array_bytes(ggml::size_product(n, sizeof(int32_t))),
                          device_array_bytes(uint64_t(n)));
}

void DeviceModel::put(const WeightSpec& w, size_t part, int64_t first, int64_t n,
                      const uint8_t* rows) {
    const std::vector<DeviceMatrix> parts = w.device_matrices();
    uint64_t offset = w.location.device_offset;
    for (size_t i = 0; i < part; i++) offset += parts[i].bytes(w.location.device_rows);
    const DeviceMatrix& m = parts[part];
    const int64_t stride = m.stride();
    uint8_t* const data = weights.get() + offset;
    if (first == 0) {
        matrices_[m.key] = {m.type, data, stride, int(w.location.device_rows), int(m.cols)};
    }
    if (n == 0) return;
    if (!m.as_stored) {
        packed_.resize(size_t(n * stride));
        const int64_t row = ggml::info(m.type).size(m.cols);
        for (int64_t i = 0; i < n; i++) {
            ggml::pack_device_row(m.type, rows + i * row, m.cols, packed_.data() + i * stride);
        }
        rows = packed_.data();
    }
    upload(data + first * stride, rows, uint64_t(n * stride));
}

void DeviceModel::upload(void* to, const void* from, uint64_t bytes) {
    device->copy_in(stream_.get(), to, from, bytes);
    device->wait(stream_.get());
}

}  // namespace powerinfer
