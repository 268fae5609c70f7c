// Loads a Model from a path, step by step.
#include "load/load.h"

#include <algorithm>
#include <cstring>

#include "files/placement_file.h"
#include "ggml/status.h"
#include "load/open_store.h"
#include "load/unread.h"
#include "model/families/family.h"
#include "plan/device_split.h"
#include "plan/expert_plan.h"
#include "plan/storage_plan.h"
#include "tokenizer/read_vocab.h"

namespace powerinfer {

using ggml::format;

namespace {

bool wants_device(const pi_model_params& params) {
    return params.device && std::strcmp(params.device, "cpu") != 0 && params.n_gpu_layers != 0;
}

void log_stale(const Placement& p, const pi_model_params& params) {
    const std::string why = p.path + " " + p.stale + " and is ignored; `powerinfer place`";
    if (params.log) params.log(2, (why + " makes a new one").c_str(), params.log_data);
}

// Logs what a placement asks for, and what becomes of it.
void log_placement(const Model& m, const pi_model_params& params) {
    if (!params.log || !m.placement) return;
    const Placement& p = *m.placement;
    const int64_t gpu = p.count(Tier::gpu), storage = p.count(Tier::storage);
    if (!(gpu || storage)) return;
    const double all = double(gpu + storage + p.count(Tier::ram));
    const auto share = [&](int64_t n, const char* where) {
        return format("%.0f%% of the neurons for %s", 100 * double(n) / all, where);
    };
    const bool counts = m.device && m.placement->applies(m.device->budget->limit());
    std::string marked = gpu ? share(gpu, "a GPU") : share(storage, "storage");
    if (gpu && storage) marked += format(" and %.0f%% for storage", 100 * double(storage) / all);
    int64_t there = 0;
    for (int64_t i = 0; m.device && i < m.config.n_layer; i++) {
        if (!m.device->split.has(i)) continue;
        const std::vector<Tier>& wanted = p.layers[size_t(i)][0].tier;
        const std::vector<int32_t>& slot = m.device->split.slot[size_t(i)];
        for (size_t n = 0; n < wanted.size(); n++) {
            there += wanted[n] == Tier::gpu && (slot.empty() || slot[n] >= 0);
        }
    }
    std::string done =
        !m.device ? "all of them are kept in RAM"
        : !counts
            ? format(
                  "that was solved for %.1f MiB of VRAM, and %.1f may be used: neurons are "
                  "chosen by firing rate",
                  double(p.vram_budget) / (1 << 20), double(m.device->budget->limit()) / (1 << 20))
            : format("%.0f%% of those for a GPU are on %s",
                     gpu ? 100 * double(there) / double(gpu) : 0.0, params.device);
    const std::string stay = " stay in RAM follows from what tokens need";
    if (m.storage) {
        done = m.device ? done + "; which of the others" + stay : "which of them" + stay;
    }
    params.log(3, (p.path + " marks " + marked + "; " + done).c_str(), params.log_data);
}

void log_notes(const Notes& notes, const pi_model_params& params) {
    if (!params.log) return;
    for (const Note& note : notes) params.log(note.level, note.text.c_str(), params.log_data);
}

// Logs where neurons are read from, and how many are in memory at the beginning.
void log_storage(const Model& m, const pi_model_params& params) {
    if (!params.log) return;
    const NeuronStore& store = *m.store;
    const ggml::Reader& reader = store.reader();
    int64_t n = 0;
    for (int32_t i = 0; i < store.shape().n_blocks; i++) n += store.resident(i);
    const std::string note = reader.note().empty() ? "" : " (" + reader.note() + ")";
    const std::string said = format(
        "%s: the model runs from storage: %lld of %lld neurons are in memory, the others "
        "are read by %s%s%s",
        reader.path().c_str(), (long long)n, (long long)store.blocks().parts(), reader.name(),
        reader.direct() ? ", directly" : "", note.c_str());
    params.log(3, said.c_str(), params.log_data);
}

void log_experts(const Model& m, const pi_model_params& params) {
    if (!params.log) return;
    const ExpertStore& store = *m.experts;
    const ggml::Reader& reader = store.reader();
    const std::string note = reader.note().empty() ? "" : " (" + reader.note() + ")";
    const PageShape& shape = store.shape();
    const std::string said = format(
        "%s: the model runs from storage: memory has room for %lld of %lld %s, the others are "
        "read by %s%s%s",
        reader.path().c_str(), (long long)shape.slots(), (long long)shape.n_blocks(),
        shape.in_order ? "feed-forward blocks" : "experts", reader.name(),
        reader.direct() ? ", directly" : "", note.c_str());
    params.log(3, said.c_str(), params.log_data);
    if (!shape.in_order) return;
    const std::string slow = format(
        "%s: the model does not fit the memory that may be used: each token reads %.1f MiB from "
        "the disk (mmap_anyway)",
        reader.path().c_str(), double(shape.missing()) / (1 << 20));
    params.log(2, slow.c_str(), params.log_data);
}

// Logs what a device holds and why not more: a warning where it has no operator for that, or where
// it holds nothing.
void log_split(const Model& m, const pi_model_params& params, const DeviceSplit& split) {
    const LeftToCpu& left = split.left;
    if (!params.log || (left.layer.empty() && left.head.empty())) return;
    const int64_t n = m.config.n_layer - split.first_layer;
    std::string said = m.file.gguf.path() + ": ";
    said += n == 0 ? "no layer"
                   : format("%lld of %lld layers", (long long)n, (long long)m.config.n_layer);
    said += format("%s %s on %s", split.head ? " and the head" : "", n > 0 ? "are" : "is",
                   params.device);
    if (!left.layer.empty()) said += ": " + left.layer;
    if (!left.head.empty()) said += "; the head is not: " + left.head;
    params.log(left.needs_operator || n == 0 ? 2 : 3, said.c_str(), params.log_data);
}

// Opens the device and decides what it holds. Without a layer for it the model has no device.
void open_device(Model& model, const pi_model_params& params) {
    model.device = std::make_unique<DeviceModel>(params.device, params.vram_budget);
    const pi_session_params session = kept_session(model, params);
    model.device->split = split_with_device(model, params, session);
    const DeviceSplit& split = model.device->split;
    model.device->frames = frame_shape(model, split.first_layer, split.expert_bytes, params);
    log_split(model, params, split);
    if (model.device_layers() > 0) return;
    model.left_to_cpu = split.left;
    model.device.reset();
}

// Plans the locations of all weights, and what else the model takes on its device. stored: as in
// plan_weights.
void plan_memory(Model& m, bool use_mmap, OnDisk stored) {
    const DeviceSplit* split = m.device ? &m.device->split : nullptr;
    m.plan = plan_weights(m.weights, use_mmap, split, stored);
    if (!split) return;
    std::vector<PlanPart>& parts = m.plan.parts;
    parts.push_back({Tier::gpu, Part::ffn, -1,
                     device_table_bytes(m.neurons_from(split->first_layer)) +
                         device_array_bytes(m.plan.device) - m.plan.device});
    if (split->piece) {
        for (Tier tier : {Tier::gpu, Tier::ram}) {
            parts.push_back({tier, Part::exchange, -1, 2 * split->piece});
        }
    }
    if (const FrameShape& frames = m.device->frames; frames.needed) {
        parts.push_back({Tier::gpu, Part::experts, -1, frames.device_bytes()});
        const bool changes = stored == OnDisk::experts;
        parts.push_back({Tier::ram, Part::exchange, -1, frames.shared_bytes(changes)});
    }
    const uint64_t context = m.device->device->context_bytes();
    if (context) parts.push_back({Tier::gpu, Part::context, -1, context});
}

// What of a model can stay on the disk.
OnDisk can_leave(const Model& model) {
    if (model.config.encoder) return OnDisk::nothing;
    if (keeps_to_ram(model).empty()) return OnDisk::neurons;
    if (keeps_experts(model).empty()) return OnDisk::experts;
    return keeps_blocks(model).empty() ? OnDisk::blocks : OnDisk::nothing;
}

// Leaves the neurons on the disk if RAM cannot take all of the model and its sessions and this
// helps. It does not where it needs even more; and too much, where the weights alone fit and nobody
// has said which sessions will be opened: those that do not fit are refused. Blocks that every
// token reads are left there only for callers who want even that.
void leave_on_disk(Model& model, const pi_model_params& params) {
    const uint64_t limit = model.budget->limit(), all = all_in_ram(model, params);
    if (all <= limit) return;
    const OnDisk what = can_leave(model);
    if (params.mmap_anyway && params.log && what == OnDisk::nothing) {
        const std::string said =
            model.file.gguf.path() + ": mmap_anyway does not help here: " + keeps_blocks(model);
        params.log(2, said.c_str(), params.log_data);
    }
    if (what == OnDisk::nothing) return;
    const bool opens = !params.session && total(model.plan.parts, Tier::ram) <= limit;
    FrameShape frames;
    if (model.device) {
        frames = model.device->frames;
        if (what == OnDisk::neurons) model.device->frames = frames.without_rows();
    }
    // What a budget limits is read, not mapped.
    plan_memory(model, false, what);
    StoragePlan storage =
        what == OnDisk::neurons ? plan_storage(model, params) : plan_experts(model, params);
    storage.twice = std::min(storage.twice, all);
    const bool blocks = what == OnDisk::blocks, helps = storage.least < all;
    if (blocks && helps) model.anyway = storage;
    const bool wanted = !blocks || (params.mmap_anyway && storage.least <= limit);
    if (!helps || !wanted || (storage.least > limit && opens)) {
        if (model.device) model.device->frames = frames;
        plan_memory(model, params.use_mmap, OnDisk::nothing);
        return;
    }
    for (const PlanPart& part : storage_parts(storage)) {
        if (part.bytes) model.plan.parts.push_back(part);
    }
    model.storage = storage;
}

// Lays the parts of neurons that RAM holds one after the other, if a token needs all rows of one:
// in tiles all rows where no neuron is skipped, and where neurons have no gates those of up, which
// tell who fires. What is read in order comes faster: experts of 1,856 neurons and 2,688 columns in
// Q4_0, a tenth of which fire, took a core as long as computing all neurons when up and down rows
// took turns, and now 0.8 times as long.
void part_neurons(Model& m) {
    if (m.device || m.storage || m.config.has_predictors) return;
    const bool all = !m.skips_neurons();
    const auto part = [&](BundleLayout& layout, int64_t n) {
        layout.apart = n;
        layout.needs_all = all;
    };
    for (const WeightSpec& w : m.weights) {
        if (w.rows % ggml::kStrip != 0) continue;
        if (const auto* neurons = std::get_if<NeuronPart>(&w.target)) {
            BundleLayout& layout = neurons->to->layout;
            const bool ungated = w.of && w.of->blocks[0].gates.rows.empty();
            if (all ? layout.can_tile() : ungated) part(layout, w.rows);
        } else if (const auto* stored = std::get_if<StoredBundle>(&w.target)) {
            BundleLayout *const gates = stored->gates ? &stored->gates->layout : nullptr,
                                *const layout = &stored->bundle->layout;
            const bool tiled = layout->can_tile() && (!gates || gates->can_tile());
            if (all ? !tiled : gates != nullptr) continue;
            part(*layout, w.rows);
            if (gates) part(*gates, w.rows);
        }
    }
}

void override_values(ggml::Gguf& gguf, const pi_model_params& params) {
    for (int32_t i = 0; i < params.n_overrides; i++) {
        const pi_override& o = params.overrides[i];
        ggml::Override given{o.key, o.integer};
        if (o.type == PI_F64) given.value = o.number;
        if (o.type == PI_BOOL) given.value = o.integer != 0;
        if (o.type == PI_STRING) given.value = std::string(o.string);
        gguf.override_value(given);
    }
}

// A key of an override that nobody reads is misspelt, or of another architecture. Those that only
// describe the model are for callers.
void refuse_unread_overrides(const ggml::Gguf& gguf) {
    const std::string key = gguf.unasked();
    if (key.empty() || key.compare(0, 8, "general.") == 0 ||
        key.compare(0, 23, "tokenizer.chat_template") == 0)
        return;
    throw ggml::Error(ggml::Code::argument,
                      gguf.path() + ": override of " + key +
                          ": the file has no such key, and the model reads none");
}

// A file of an unknown architecture may have a vocabulary of an unknown kind, too: that matters
// less.
[[noreturn]] void refuse_with_vocab(Model& model) {
    try {
        model.vocab = read_vocab(model.file.gguf);  // whose size is that of tensors
    } catch (const ggml::Error&) {
    }
    refuse_unknown_family(model);
}

void require_nextn(const Model& m, const Family& family) {
    const std::string key = m.config.architecture + ".nextn_predict_layers";
    if (!m.config.n_nextn) {
        throw ggml::Error(
            ggml::Code::unsupported,
            m.file.gguf.path() + ": the file has no layer that guesses tokens (" + key + ")");
    }
    if (family.nextn) return;
    throw ggml::Error(ggml::Code::unsupported, m.file.gguf.path() +
                                                   ": the layer that guesses tokens (" + key +
                                                   ") is not known for this architecture");
}

// Where the layer that guesses tokens would save no time: two rows need more of a disk than one,
// and a device would wait for the CPU, which has the layer.
std::unique_ptr<Model> inspect_without_guesses(const std::string& path,
                                               const pi_model_params& params, const char* why) {
    if (params.log) {
        const std::string said = path + ": no tokens are guessed (nextn): " + why;
        params.log(2, said.c_str(), params.log_data);
    }
    pi_model_params without = params;
    without.nextn = false;
    return Model::inspect(path, without);
}

}  // namespace

std::unique_ptr<Model> Model::inspect(const std::string& path, const pi_model_params& params) {
    auto model = std::make_unique<Model>();
    model->budget = Budget::make(params.ram_budget);
    model->n_sessions = std::max(params.n_sessions, 1);
    model->file = ModelFile::open(path);
    override_values(model->file.gguf, params);
    const Family* const family = params.vocab_only ? nullptr : find_family(model->file.gguf);
    if (!family && !params.vocab_only) refuse_with_vocab(*model);
    model->vocab = read_vocab(model->file.gguf);
    Notes notes = std::move(model->vocab.notes);
    if (params.vocab_only) {
        log_notes(notes, params);
        const std::string arch(model->file.gguf.string("general.architecture"));
        model->config.architecture = arch;
        model->config.n_vocab = model->vocab.size();
        model->config.n_ctx = model->file.gguf.integer(arch + ".context_length", 0, INT32_MAX, 0);
        model->config.n_embd =
            model->file.gguf.integer(arch + ".embedding_length", 0, INT32_MAX, 0);
        return model;
    }
    model->config = read_config(model->file.gguf, *family, model->vocab.size());
    if (params.nextn) require_nextn(*model, *family);
    model->layers.resize(size_t(model->config.n_layer + params.nextn));
    refuse_further_layers(*model);
    model->weights = weight_specs(*model, *family);
    notes.insert(notes.end(), model->config.notes.begin(), model->config.notes.end());
    refuse_unread_overrides(model->file.gguf);
    check_unread_keys(*model, params.allow_unknown, notes);
    resolve_weights(*model);
    check_unread_tensors(*model, params.allow_unknown, notes);
    if (params.placement == PI_PLACEMENT_FILE) model->placement = read_placement(*model, params);
    if (model->placement && !model->placement->stale.empty()) {
        log_stale(*model->placement, params);
        model->placement.reset();
    }
    if (wants_device(params)) open_device(*model, params);
    if (model->guesses() && model->device) {
        return inspect_without_guesses(path, params, "a device computes layers of the model");
    }
    plan_memory(*model, params.use_mmap, OnDisk::nothing);
    if (model->guesses() && all_in_ram(*model, params) > model->budget->limit()) {
        return inspect_without_guesses(path, params,
                                       "the model does not fit the memory that may be used with "
                                       "the layer for it");
    }
    leave_on_disk(*model, params);
    // A model without a bundled file is opened again when it has one.
    if (!model->stores_neurons() || is_bundled(*model)) {
        log_notes(notes, params);
        log_placement(*model, params);
    }
    return model;
}

namespace {

// A step of loading, whose progress is a part of the caller's: from `begin` to `end`.
struct Step {
    const pi_model_params& whole;
    float begin, end;

    // The caller's parameters, for this step. They refer to it.
    pi_model_params params() const {
        pi_model_params p = whole;
        if (p.progress) p.progress = report;
        p.progress_data = const_cast<Step*>(this);
        return p;
    }

 private:
    static bool report(float fraction, void* data) {
        const auto& s = *static_cast<const Step*>(data);
        return s.whole.progress(s.begin + fraction * (s.end - s.begin), s.whole.progress_data);
    }
};

// The share of a load that are weights, and not what the cache begins with.
float weights_share(const Model& m) {
    if (!m.storage) return 1;
    const double cache = m.storage->experts
                             ? double(m.storage->experts.bytes())
                             : double(m.storage->shape.cache_sectors) * StoreShape::kSector;
    return float(1 - cache / double(total(m.plan.parts, Tier::ram)));
}

}  // namespace

Model::Model() = default;
Model::~Model() {
    if ((store || experts) && keeps_resident) save_store(*this);
    if (device) device->experts.reset();  // before the memory that it copies from
}

bool Model::skips_neurons() const {
    const auto has_threshold = [](const FeedForward* f) {
        return f->blocks[0].neurons.threshold > 0;
    };
    return config.neuron_aware &&
           (relu_family(config.activation) || std::any_of(ffns.begin(), ffns.end(), has_threshold));
}

const FeedForward* Model::ffn_of(int64_t layer) const {
    const FeedForward* found = nullptr;
    for (const LayerPart& part : layers[size_t(layer)].parts) {
        const auto* f = std::get_if<FeedForward>(&part.op);
        if (f && (!found || f->routed())) found = f;
    }
    return found;
}

const FeedForward& Model::only_ffn(int64_t layer) const {
    if (const FeedForward* found = ffn_of(layer)) return *found;
    throw ggml::Error(ggml::Code::unsupported,
                      format("layer %lld has no feed-forward part", (long long)layer));
}

int64_t Model::neurons_from(int64_t layer) const {
    const auto from =
        std::lower_bound(ffns.begin(), ffns.end(), layer,
                         [](const FeedForward* f, int64_t first) { return f->layer < first; });
    if (from == ffns.end()) return 0;
    return ffns.back()->first_neuron + ffns.back()->n_ff - (*from)->first_neuron;
}

int64_t Model::device_neurons(int64_t layer) const {
    if (!device || !device->split.has(layer)) return 0;
    const std::vector<int32_t>& slot = device->split.slot[size_t(layer)];
    const FeedForward* const part = ffn_of(layer);
    if (!part) return 0;
    if (part->routed())
        return device->experts ? device->experts->n_here(part->index) * part->n_ff : 0;
    if (slot.empty()) return part->n_ff;
    return std::count_if(slot.begin(), slot.end(), [](int32_t at) { return at >= 0; });
}

int64_t Model::n_experts() const {
    int64_t n = 0;
    for (const FeedForward* part : ffns) {
        if (part->routed() && part->layer < config.n_layer) n += part->n_blocks();
    }
    return n;
}

int64_t Model::device_layers() const {
    return device ? config.n_layer - device->split.first_layer : 0;
}

std::shared_ptr<const Model> Model::load(const std::string& path, const pi_model_params& params) {
    std::unique_ptr<Model> model = inspect(path, params);
    if (params.vocab_only) return model;
    if (model->storage) require_least(*model);
    if (model->stores_neurons() && !is_bundled(*model)) {
        const float written = bundle_to_write(*model) ? 0.5f : 0;
        const Step writing{params, 0, written}, loading{params, written, 1};
        const std::string bundle = bundle_of(path, writing.params());
        model.reset();
        return load(bundle, loading.params());
    }
    model->reserved = model->budget->reserve(model->file.gguf.path() + ": the weights",
                                             total(model->plan.parts, Tier::ram));
    if (model->device) allocate_device(*model);
    const Step weights{params, 0, weights_share(*model)}, cache{params, weights.end, 1};
    pi_model_params how = weights.params();
    how.use_mmap = params.use_mmap && !model->storage;
    if (how.use_mmap) model->file.map();
    part_neurons(*model);
    load_weights(*model, how);
    if (model->storage && model->storage->experts) {
        model->experts = open_experts(*model, cache.params());
        for (const auto& file : model->file.files) file->require_unchanged();
        model->keeps_resident = params.bundle && !model->storage->experts.in_order;
        log_experts(*model, params);
    } else if (model->storage) {
        model->store = open_store(*model, cache.params());
        for (const auto& file : model->file.files) file->require_unchanged();
        model->keeps_resident = params.bundle;
        log_storage(*model, params);
    }
    return model;
}

}  // namespace powerinfer
