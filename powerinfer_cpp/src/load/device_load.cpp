// The device's part of loading: memory before the weights, tables after them.
#include <algorithm>

#include "ggml/status.h"
#include "load/load.h"

namespace powerinfer {

namespace {

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

void allocate_device(Model& m) {
    DeviceModel& on = *m.device;
    const std::lock_guard<ggml::DeviceCard> lock(on.card);
    const auto n = uint64_t(m.neurons_from(on.split.first_layer));
    on.reserved =
        on.budget->reserve(m.file.gguf.path() + ": the weights on " + on.device->info().id,
                           total(m.plan.parts, Tier::gpu));
    on.weights = {*on.device, m.plan.device, "weights"};
    on.slots = {*on.device, n, "slots"};
    on.unpredicted = {*on.device, n, "unpredicted"};
    if (on.split.piece)
        on.prompt_upload = std::make_unique<PromptUpload>(*on.device, on.split.piece);
    if (on.frames.needed) {
        const bool changes = m.storage && m.storage->experts;
        on.experts = std::make_unique<ExpertFrames>(*on.device, on.frames, changes);
    }
}

void load_device_tables(Model& m) {
    DeviceModel& on = *m.device;
    const int64_t first = on.split.first_layer;
    on.cold.resize(m.layers.size());
    on.cold_rows.resize(m.layers.size());
    for (size_t i = size_t(first); i < m.layers.size(); i++) {
        const FeedForward* const part = m.ffn_of(int64_t(i));
        if (!part || part->routed()) continue;
        const Ffn& f = part->blocks[0];
        const int64_t at = m.neurons_from(first) - m.neurons_from(int64_t(i));
        if (!f.unpredicted.empty()) {
            on.upload(on.unpredicted.get() + at, f.unpredicted.data(), f.unpredicted.size());
        }
        if (!on.split.splits(int64_t(i))) continue;
        const std::vector<int32_t>& slot = on.split.slot[i];
        on.upload(on.slots.get() + at, slot.data(), slot.size() * sizeof(int32_t));
        ggml::Neurons& w = on.cold[i];
        w = f.neurons;
        w.down_bias = nullptr;  // the device adds it
        std::vector<int32_t>& rows = on.cold_rows[i];
        for (int32_t s : slot) {
            if (s < 0) rows.push_back(-1 - s);
        }
        if (stays_whole(slot)) continue;
        w.n = int64_t(rows.size());
        for (const float** bias : {&w.gate_bias, &w.up_bias}) {
            if (!*bias) continue;
            on.cold_biases.push_back(gathered(*bias, slot));
            *bias = on.cold_biases.back().data();
        }
    }
    if (!on.experts) return;
    const std::lock_guard<ggml::DeviceCard> lock(on.card);
    on.device->enter();
    // Mapped files are not pinned: who maps them counts on the system to drop their pages.
    if (on.frames.card.frames() < on.frames.experts()) {
        m.pinned = ggml::PinnedMemory(*on.device, m.packed.data(), m.packed.size());
    }
    on.experts->fill({}, [&](int32_t block, const ExpertFrames::Take& take) {
        const FeedForward& part = *m.ffns[size_t(on.experts->part_of(block))];
        const Ffn& f = part.blocks[size_t(block - part.first_block)];
        if (f.up.data == kElsewhere) return false;  // on the disk
        take(expert_weights(f));
        return true;
    });
}

}  // namespace powerinfer
