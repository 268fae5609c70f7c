// The C API: reading from the disk.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>

#include "api/api.h"
#include "device/device_model.h"
#include "powerinfer.h"
#include "storage/store.h"
#include "tools/measure.h"

using namespace powerinfer::api;

extern "C" {

pi_disk_params pi_disk_default_params(void) {
    const powerinfer::DiskLoad load;
    return {sizeof(pi_disk_params), load.bytes, load.depth, load.in_order, load.size,
            load.seconds,           load.seed};
}

pi_status pi_measure_disk(const char* path, const pi_disk_params* params, pi_disk_report* out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        const pi_disk_params p = params_or(params, pi_disk_default_params());
        require(p.n_bytes >= 512 && p.n_bytes <= 1 << 24 && p.n_bytes % 512 == 0,
                "n_bytes must be a multiple of 512, at most 16 MiB");
        require(p.depth >= 1 && p.depth <= 1024, "depth must be from 1 to 1024");
        require(std::isfinite(p.seconds) && p.seconds > 0, "seconds must be above 0");
        const powerinfer::DiskReport found = powerinfer::measure_disk(
            path, {p.n_bytes, p.depth, p.in_order, p.size, p.seconds, p.seed});
        pi_disk_report r{};
        std::snprintf(r.io, sizeof r.io, "%s", found.io.c_str());
        std::snprintf(r.note, sizeof r.note, "%s", found.note.c_str());
        r.direct = found.direct;
        r.align = found.align;
        r.file_bytes = found.file_bytes;
        r.reads = found.reads;
        r.reads_per_s = found.reads_per_s;
        r.bytes_per_s = found.bytes_per_s;
        r.cpu_s = found.cpu_s;
        give(out, r);
    });
}

pi_status pi_model_storage(const pi_model* m, pi_storage_report* out) {
    return guarded([&] {
        require(m && out, "model and out must not be NULL");
        pi_storage_report r{};
        r.path = "";
        if (powerinfer::NeuronStore* const store = m->model->store.get()) {
            const ggml::Reader& reader = store->reader();
            const powerinfer::StoreShape& shape = store->shape();
            r.stored = true;
            r.direct = reader.direct();
            std::snprintf(r.io, sizeof r.io, "%s", reader.name());
            std::snprintf(r.note, sizeof r.note, "%s", reader.note().c_str());
            r.path = reader.path().c_str();
            r.arena_bytes = shape.arena_bytes();
            const std::lock_guard<std::mutex> alone(store->mutex);
            r.first_slots = store->residency().shape().first_slots;
            r.rest_slots = store->residency().shape().rest_slots;
            r.first_used = store->residency().used(powerinfer::Half::first);
            r.rest_used = store->residency().used(powerinfer::Half::rest);
        }
        give(out, r);
    });
}

int64_t pi_model_layer_stored_neurons(const pi_model* m, int32_t layer) {
    return guarded_or(int64_t(0), [&] {
        powerinfer::NeuronStore* const store = m->model->store.get();
        int64_t n = 0;
        if (!store || layer < 0 || layer >= m->model->config.n_layer) return n;
        const std::lock_guard<std::mutex> alone(store->mutex);
        const auto experts = int32_t(std::max<int64_t>(1, m->model->config.n_expert));
        for (int32_t b = layer * experts; b < (layer + 1) * experts; b++) {
            n += store->blocks().size(b) - store->resident(b);
        }
        return n;
    });
}

pi_status pi_model_tiers(const pi_model* m, int32_t layer, uint8_t* out, size_t capacity) {
    enum : uint8_t { storage, ram, on_device };
    return guarded([&] {
        require(m && out, "model and out must not be NULL");
        const powerinfer::Model& model = *m->model;
        const int64_t n_layer = int64_t(model.layers.size()), n_ff = model.config.n_ff;
        require(layer >= 0 && layer < n_layer, "no such layer");
        const int64_t experts = std::max<int64_t>(1, model.config.n_expert);
        require(capacity >= size_t(experts * n_ff), "the buffer for the tiers is too small");
        std::fill_n(out, experts * n_ff, ram);
        if (model.device_neurons(layer)) {
            const std::vector<int32_t>& slot = model.device->share.slot[size_t(layer)];
            for (int64_t i = 0; i < n_ff; i++) {
                if (slot.empty() || slot[size_t(i)] >= 0) out[i] = on_device;
            }
        }
        powerinfer::NeuronStore* const store = model.store.get();
        if (!store) return;
        const std::lock_guard<std::mutex> alone(store->mutex);
        for (int32_t b = layer * int32_t(experts); b < (layer + 1) * int32_t(experts); b++) {
            uint8_t* const block = out + (b % experts) * n_ff;
            for (int32_t i = 0; i < store->blocks().size(b); i++) {
                if (!store->is_resident(b, i)) block[store->row_of(b, i)] = storage;
            }
        }
    });
}

}  // extern "C"
