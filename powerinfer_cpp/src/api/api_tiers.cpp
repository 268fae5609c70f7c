// C API (powerinfer.h): where an open model's neurons are.
#include <algorithm>
#include <cstdio>

#include "api/api.h"
#include "device/device_model.h"
#include "storage/experts/expert_store.h"
#include "storage/neurons/store.h"

using namespace powerinfer::api;

namespace {

// The experts of a mixture on a device; null: none are there.
const powerinfer::ExpertFrames* frames_of(const powerinfer::Model& model) {
    return model.device ? model.device->experts.get() : nullptr;
}

}  // namespace

extern "C" {

int64_t pi_model_device_neurons(const pi_model* m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->model->config.n_layer; i++) n += m->model->device_neurons(i);
    return n;
}

int64_t pi_model_layer_device_neurons(const pi_model* m, int32_t layer) {
    return layer >= 0 && layer < m->model->config.n_layer ? m->model->device_neurons(layer) : 0;
}

uint64_t pi_model_device_bytes(const pi_model* m) {
    return guarded_or(uint64_t(0), [&]() -> uint64_t {
        if (!m->model->device) return 0;
        const ggml::Device& device = *m->model->device->device;
        return device.allocated_bytes() + device.context_bytes();
    });
}

pi_status pi_model_experts(const pi_model* m, pi_expert_report* out) {
    return guarded([&] {
        require(m && out, "model and out must not be NULL");
        pi_expert_report r{};
        r.experts = m->model->n_experts();
        if (const powerinfer::ExpertFrames* const frames = frames_of(*m->model)) {
            r.device_room = m->model->device->frames.card.frames();
            r.device_has = frames->n_here();
            r.copies = frames->copies();
            r.copied_bytes = frames->copied_bytes();
        }
        give(out, r);
    });
}

pi_status pi_model_storage(const pi_model* m, pi_storage_report* out) {
    return guarded([&] {
        require(m && out, "model and out must not be NULL");
        pi_storage_report r{};
        r.path = "";
        const auto enter = [&](const powerinfer::StoreStatus& s) {
            r.first_slots = s.first_slots, r.rest_slots = s.rest_slots;
            r.first_used = s.first_used, r.rest_used = s.rest_used;
        };
        if (powerinfer::NeuronStore* const store = m->model->store.get()) {
            const ggml::Reader& reader = store->reader();
            const powerinfer::StoreShape& shape = store->shape();
            r.stored = true;
            r.direct = reader.direct();
            std::snprintf(r.io, sizeof r.io, "%s", reader.name());
            std::snprintf(r.note, sizeof r.note, "%s", reader.note().c_str());
            r.path = reader.path().c_str();
            r.arena_bytes = shape.arena_bytes();
            store->status.read(enter);
        } else if (powerinfer::ExpertStore* const experts = m->model->experts.get()) {
            const ggml::Reader& reader = experts->reader();
            r.stored = true;
            r.direct = reader.direct();
            std::snprintf(r.io, sizeof r.io, "%s", reader.name());
            std::snprintf(r.note, sizeof r.note, "%s", reader.note().c_str());
            r.path = reader.path().c_str();
            r.arena_bytes = experts->shape().bytes();
            experts->status.read(enter);
            r.blocks = experts->shape().in_order;
            r.experts = !r.blocks;
        }
        give(out, r);
    });
}

int64_t pi_model_layer_stored_neurons(const pi_model* m, int32_t layer) {
    return guarded_or(int64_t(0), [&] {
        powerinfer::NeuronStore* const store = m->model->store.get();
        int64_t n = 0;
        if (layer < 0 || layer >= m->model->config.n_layer) return n;
        const powerinfer::FeedForward* const part = m->model->ffn_of(layer);
        if (!part) return n;
        if (powerinfer::ExpertStore* const experts = m->model->experts.get()) {
            const powerinfer::ExpertFrames* const frames = frames_of(*m->model);
            experts->status.read([&](const powerinfer::StoreStatus& s) {
                for (int64_t i = 0; i < part->n_blocks(); i++) {
                    const int32_t block = part->number(i);
                    const bool here = s.has(block) || (frames && frames->has(block));
                    n += here ? 0 : part->n_ff;
                }
            });
        }
        if (!store) return n;
        store->status.read([&](const powerinfer::StoreStatus& s) {
            const powerinfer::ResidencyShape& blocks = store->blocks();
            const int64_t end = blocks.first(part->number(part->n_blocks() - 1) + 1);
            for (int64_t i = blocks.first(part->number(0)); i < end; i++) n += !s.has(i);
        });
        return n;
    });
}

pi_status pi_model_tiers(const pi_model* m, int32_t layer, uint8_t* out, size_t capacity) {
    enum : uint8_t { storage, ram, on_device };
    return guarded([&] {
        require(m && out, "model and out must not be NULL");
        const powerinfer::Model& model = *m->model;
        require(layer >= 0 && layer < model.config.n_layer, "no such layer");
        const powerinfer::FeedForward* const there = model.ffn_of(layer);
        if (!there) return;
        const powerinfer::FeedForward& part = *there;
        const int64_t n_ff = part.n_ff, n = part.n_blocks() * n_ff;
        require(capacity >= size_t(n), "the buffer for the tiers is too small");
        std::fill_n(out, n, ram);
        if (!part.routed() && model.device_neurons(layer)) {
            const std::vector<int32_t>& slot = model.device->split.slot[size_t(layer)];
            for (int64_t i = 0; i < n_ff; i++) {
                if (slot.empty() || slot[size_t(i)] >= 0) out[i] = on_device;
            }
        }
        if (powerinfer::ExpertStore* const experts = model.experts.get()) {
            experts->status.read([&](const powerinfer::StoreStatus& s) {
                for (int64_t block = 0; block < part.n_blocks(); block++) {
                    if (s.has(part.number(block))) continue;
                    std::fill_n(out + block * n_ff, n_ff, storage);
                }
            });
        }
        // Whatever RAM has of them.
        if (const powerinfer::ExpertFrames* const frames = frames_of(model)) {
            for (int64_t block = 0; block < part.n_blocks(); block++) {
                if (!frames->has(part.number(block))) continue;
                std::fill_n(out + block * n_ff, n_ff, on_device);
            }
        }
        powerinfer::NeuronStore* const store = model.store.get();
        if (!store) return;
        store->status.read([&](const powerinfer::StoreStatus& s) {
            for (int64_t expert = 0; expert < part.n_blocks(); expert++) {
                const int32_t b = part.number(expert);
                const int64_t first = store->blocks().first(b);
                uint8_t* const block = out + expert * n_ff;
                for (int32_t i = 0; i < store->blocks().size(b); i++) {
                    if (!s.has(first + i)) block[store->row_of(b, i)] = storage;
                }
            }
        });
    });
}

}  // extern "C"
